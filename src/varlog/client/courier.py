"""[A2] Courier: carries one packed batch to a primary, and on to another stream while it is certainly not in the log (law 10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from varlog.client.append_rules import Verdict, judge, spent, unknown
from varlog.client.retry import Backoff
from varlog.client.routing import Routing, expect
from varlog.model.cluster import LogStream, StreamState
from varlog.model.entry import Position
from varlog.model.errors import NotAccepted, Sealed, Unavailable, UnknownLogStream, VarlogError
from varlog.model.ids import LogStreamID
from varlog.rpc.messages import Append, Appended
from varlog.rpc.transport import CallTimeout, ConnectionLost

# A request without an answer for so long says that its stream is stuck: new batches go elsewhere if they can.
SLOW_S = 0.5
# Less than this is not enough for an answer.
TRY_S_MIN = 0.005


class Parcel:
    """One packed batch on its way. `sent` is True while a try is out and unanswered: then its outcome is not known.
    `dropped`: everyone in it was told that it is not in the log, so it must not be sent any more."""

    __slots__ = ("batch", "chosen", "dropped", "last_error", "sent", "slow", "timeout_s", "tried")

    def __init__(self, batch: bytearray, chosen: LogStreamID | None, timeout_s: float) -> None:
        self.batch = batch
        self.chosen = chosen
        self.timeout_s = timeout_s
        self.sent = False
        self.dropped = False
        self.slow = False
        self.last_error: BaseException | None = None
        self.tried: dict[LogStreamID, None] = {}


class Courier:
    """Delivers parcels. Knows which streams are stuck, and spreads what may go anywhere."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._stuck: dict[LogStreamID, int] = {}
        self._turn = routing.turn
        self.closed = False
        self.on_slow: Callable[[], None] = lambda: None

    @property
    def stuck(self) -> int:
        """Requests that are out for so long that nobody should wait behind them."""
        return sum(self._stuck.values())

    def streams_free(self) -> int:
        """Running streams with nothing stuck in them."""
        if not self._stuck:
            return len(self._routing.running)
        return sum(stream.log_stream not in self._stuck for stream in self._routing.running)

    async def deliver(self, parcel: Parcel) -> Position:
        """The position of the batch's first entry. Rejected: certainly not in the log. OutcomeUnknown: maybe."""
        backoff = Backoff(self._routing.doors, parcel.timeout_s)
        while not self.closed:
            # A try with no time left for its answer would turn a certain no into an unknown.
            if backoff.remaining_s < TRY_S_MIN or parcel.dropped:
                raise spent(parcel.chosen, parcel.last_error, parcel.timeout_s)
            stream = self._pick(parcel)
            if stream is not None:
                parcel.tried[stream.log_stream] = None
                try:
                    return await self._try(stream, parcel, backoff)
                except VarlogError as error:
                    self._judge(stream, parcel, error)
            self._routing.refresh_soon()
            if stream is None or not self._another(parcel):
                parcel.tried.clear()
                await backoff.wait()
        raise NotAccepted("the log was closed")

    async def _try(self, stream: LogStream, parcel: Parcel, backoff: Backoff) -> Position:
        try:
            async with asyncio.timeout_at(backoff.deadline):
                connection = await self._routing.connection_to(stream.primary, backoff.remaining_s)
                await connection.wait_writable()
        except TimeoutError as error:
            raise ConnectionLost(f"node {stream.primary} could not be reached in time", False) from error
        except ConnectionLost as error:
            raise ConnectionLost(error.what, False) from error  # it broke before anything was sent
        if parcel.dropped:
            raise NotAccepted("nobody waits for it any more")
        parcel.sent = True
        slow = asyncio.get_running_loop().call_later(SLOW_S, self._slow, stream.log_stream, parcel)
        try:
            answer, _ = await connection.call(
                Append(stream.log_stream), parcel.batch, timeout_s=backoff.remaining_s
            )
            appended = expect(answer, Appended)
        finally:
            slow.cancel()
            self._answered(stream.log_stream, parcel)
        return Position(appended.glsn, appended.llsn, stream.log_stream)

    def _judge(self, stream: LogStream, parcel: Parcel, error: VarlogError) -> None:
        """Raise what is final; remember what allows another try."""
        sent = parcel.sent and (error.sent if isinstance(error, ConnectionLost | CallTimeout) else True)
        verdict = judge(error, sent=sent)
        if verdict is Verdict.UNKNOWN:
            self._routing.shun_stream(stream.log_stream)
            raise unknown(error) from error
        if verdict is Verdict.REFUSED:
            raise error
        parcel.sent = False
        parcel.last_error = error
        if isinstance(error, ConnectionLost):
            self._routing.shun_node(stream.primary)
        self._routing.shun_stream(stream.log_stream)

    # --- Which stream ---------------------------------------------------------------------------------------------------

    def _pick(self, parcel: Parcel) -> LogStream | None:
        if parcel.chosen is not None:
            return self._chosen(parcel)
        streams = self._routing.running
        if not streams:
            parcel.last_error = parcel.last_error or Unavailable(
                f"topic {self._routing.topic.name!r} has no running log stream"
            )
            return None
        shunned = self._routing.shunned_streams()
        if shunned or self._stuck or parcel.tried:
            free = tuple(
                stream
                for stream in streams
                if stream.log_stream not in shunned
                and stream.log_stream not in self._stuck
                and stream.log_stream not in parcel.tried
            )
            streams = free or streams
        self._turn += 1
        return streams[self._turn % len(streams)]

    def _chosen(self, parcel: Parcel) -> LogStream | None:
        for stream in self._routing.streams:
            if stream.log_stream == parcel.chosen:
                if stream.state is StreamState.RUNNING:
                    return stream
                parcel.last_error = Sealed(stream.log_stream)
                return None
        raise UnknownLogStream(parcel.chosen or LogStreamID(0))

    def _another(self, parcel: Parcel) -> bool:
        """Some running stream has not been tried since the last pause."""
        if parcel.chosen is not None:
            return False
        return any(stream.log_stream not in parcel.tried for stream in self._routing.running)

    # --- What is stuck --------------------------------------------------------------------------------------------------

    def _slow(self, log_stream: LogStreamID, parcel: Parcel) -> None:
        parcel.slow = True
        self._stuck[log_stream] = self._stuck.get(log_stream, 0) + 1
        self.on_slow()

    def _answered(self, log_stream: LogStreamID, parcel: Parcel) -> None:
        if parcel.slow:
            parcel.slow = False
            self._stuck[log_stream] -= 1
            if not self._stuck[log_stream]:
                del self._stuck[log_stream]
