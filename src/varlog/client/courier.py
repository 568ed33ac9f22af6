"""[A2] Courier: carries one packed batch to a primary, and on to another stream only while it is certainly not in the log (law 10).

A try that ends without a word leaves its outcome open. It is found out before anything else is done with the batch (R-ORD-7): see
append_rules. So an append ends as its position, as a certain no, or, if nobody could say before its deadline, as OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence

from varlog.client.append_rules import Attempt, Step, Verdict, floor_of, judge, next_step, spent, unknown
from varlog.client.parcel import Parcel
from varlog.client.retry import Backoff
from varlog.client.routing import Routing, expect
from varlog.client.routing_rules import in_turn, preferred
from varlog.client.stream_costs import StreamCosts
from varlog.client.stuck import Patience, Stuck
from varlog.model.batch import parse_header
from varlog.model.cluster import LogStream, StreamState
from varlog.model.entry import Position
from varlog.model.errors import (
    NotAccepted,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    Sealed,
    StaleEpoch,
    TopicStopped,
    Unavailable,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.limits import CONNECTION_WRITE_BYTES_MAX, GATHER_ENTRIES_MAX
from varlog.model.lsn import GLSN, LLSN, NO_GLSN, NO_LLSN
from varlog.rpc.messages import Append, AppendReply, FindAppend, FindAppendReply
from varlog.rpc.transport import CallTimeout, Connection, ConnectionLost

# A request without an answer for so long says that its stream is stuck: new batches go elsewhere if they can.
SLOW_S = 0.5
# Less than this is not enough for an answer.
TRY_S_MIN = 0.005
# More than this is too much: a connection can be dead without a sign. The same batch is then sent again.
TRY_S_MAX = 3.0
DIAL_S = 1.0
# A topic that is stopped for longer needs an operator.
STOPPED_S = 3.0
# One replica is asked for so long what became of a batch; then the next one.
ASK_S = 1.0


async def still_stopped(routing: Routing, backoff: Backoff) -> bool:
    """Whether the topic is stopped by a fresh view, and stays so for a moment: the repository may be taking its order from the
    nodes right now."""
    loop = asyncio.get_running_loop()
    until = loop.time() + min(STOPPED_S, backoff.remaining_s - TRY_S_MIN)
    while routing.stopped:
        if loop.time() >= until:
            return True
        with contextlib.suppress(Unavailable):
            await routing.refresh(max(TRY_S_MIN, until - loop.time()))
        if routing.stopped:
            await backoff.wait()
    return False


class Courier:
    """Delivers parcels. Knows which streams are stuck, and spreads what may go anywhere."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._trust = routing.trust
        self._stuck = Stuck(routing)
        self._costs = StreamCosts()
        self._newest: dict[LogStreamID, LLSN] = {}  # acknowledged to us, by stream
        self._tail: GLSN = NO_GLSN  # the newest position that we know of
        self._learning_tail = False
        # Sent and not answered: up to a connection's write limit there is room in it, and a batch leaves without waiting for any.
        self._out_bytes = 0
        self._heard: dict[NodeID, float] = {}
        self._turn = routing.turn
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self.on_slow: Callable[[], None] = lambda: None
        self.gather_entries_max = GATHER_ENTRIES_MAX

    @property
    def stuck(self) -> int:
        """Parcels that are out too long, or in too slow a stream, for others to wait behind them."""
        return len(self._stuck) + sum(
            self._costs.in_flight(log_stream)
            for log_stream in self._slow_streams()
            if log_stream not in self._stuck
        )

    def _slow_streams(self) -> list[LogStreamID]:
        running = self._routing.running
        return self._costs.slow(running, self._loop.time()) if len(running) > 1 else []

    def streams_free(self) -> int:
        """Running streams with nothing stuck in them, and not slow."""
        slow = self._slow_streams()
        if not self._stuck and not slow:
            return len(self._routing.running)
        return sum(
            stream.log_stream not in self._stuck and stream.log_stream not in slow
            for stream in self._routing.running
        )

    def is_probe_next(self) -> bool:
        """The next batch would go to a stream whose newest answer was slow, although others are there."""
        streams: Sequence[LogStream] = self._routing.running
        if len(streams) < 2 or not self._costs.suspects:
            return False
        if self._stuck or self._trust.shaken:
            streams = self._trusted(streams, ())
        stream = self._costs.cheapest(streams, self._turn + 1, self._loop.time())
        return stream.log_stream in self._costs.suspects

    async def deliver(self, parcel: Parcel) -> Position:
        """The position of the batch's first entry. Rejected: certainly not in the log. OutcomeUnknown: maybe."""
        self._routing.use()
        if not self._learning_tail:
            self._learning_tail = True
            _ = self._routing.tasks.spawn("learn tail", self._learn_tail())
        backoff = Backoff(self._routing.environment, parcel.timeout_s)
        try:
            # A try with no time left for its answer would turn a certain no into an unknown.
            while not (self.closed or parcel.dropped or backoff.remaining_s < TRY_S_MIN):
                if self._routing.stopped and await still_stopped(self._routing, backoff):
                    raise self._topic_stopped(parcel)
                if parcel.attempt is None:
                    position = await self._send(parcel, backoff)
                else:
                    position = await self._find_out(parcel, parcel.attempt, backoff)
                if position is not None:
                    return position
            raise self._over(parcel)
        finally:
            self._stuck.release(parcel)

    def _topic_stopped(self, parcel: Parcel) -> VarlogError:
        """Only an operator can let the topic continue: no append waits for that."""
        stopped = TopicStopped(self._routing.topic_name, self._routing.stopped)
        return OutcomeUnknown(f"sent, and not ordered: {stopped}") if parcel.attempt is not None else stopped

    async def _learn_tail(self) -> None:
        """What is sent from now on comes behind this: who has appended nothing yet would be looked for in the whole log."""
        with contextlib.suppress(VarlogError):
            self._tail = max(self._tail, (await self._routing.tail(DIAL_S)).high_watermark)

    def _over(self, parcel: Parcel) -> VarlogError:
        if parcel.sent and self.closed:
            return OutcomeUnknown("the log was closed before the answer came")
        if parcel.sent:
            return unknown(parcel.last_error, parcel.timeout_s)
        if self.closed:
            return NotAccepted("the log was closed")
        return spent(parcel.chosen, parcel.last_error, parcel.timeout_s)

    # --- A batch that is certainly not in the log: send it somewhere ----------------------------------------------------------

    async def _send(self, parcel: Parcel, backoff: Backoff) -> Position | None:
        stream = self._pick(parcel)
        if stream is not None:
            parcel.tried[stream.log_stream] = None
            floor = floor_of(stream, self._newest.get(stream.log_stream, NO_LLSN))
            after = max(self._tail, self._routing.trimmed)
            attempt = Attempt(stream.log_stream, stream.epoch, floor, after)
            try:
                return await self._try(stream, parcel, attempt, backoff)
            except Overloaded as refused:
                self._nowhere(parcel)
                if parcel.dropped or self._another(parcel):
                    return None
                raise refused
            except VarlogError as error:
                self._judge(stream, parcel, error)
        self._routing.refresh_soon()
        if not parcel.sent and (stream is None or not self._another(parcel)):
            parcel.tried.clear()
            self._stuck.watch(parcel)
            await self._stuck.wait_news(backoff)
        return None

    def _judge(self, stream: LogStream, parcel: Parcel, error: VarlogError) -> None:
        """Raise what is final; remember what allows another try, or that the outcome is open."""
        sent = parcel.sent and (error.sent if isinstance(error, ConnectionLost | CallTimeout) else True)
        verdict = judge(error, sent=sent)
        if verdict is Verdict.REFUSED:
            raise error
        parcel.last_error = error
        self._trust.stream_failed(stream, surely=isinstance(error, Rejected))
        if verdict is Verdict.UNKNOWN:
            self._hold_up(parcel)
        else:
            self._nowhere(parcel)

    def _nowhere(self, parcel: Parcel) -> None:
        """The batch is certainly not in the log."""
        self._stuck.release(parcel)
        if parcel.attempt is not None:
            parcel.attempt = None
            if parcel.on_nowhere is not None:
                parcel.on_nowhere(parcel)

    # --- A batch whose outcome is open: find it out ---------------------------------------------------------------------------

    async def _find_out(self, parcel: Parcel, attempt: Attempt, backoff: Backoff) -> Position | None:
        """One step. None: not known yet, or known to be nowhere: then no attempt is open any more."""
        stream = self._routing.view.stream(attempt.log_stream)
        step = next_step(attempt, stream)
        if stream is None:
            raise OutcomeUnknown(
                f"sent, and its log stream was deleted before the answer came ({parcel.last_error})"
            )
        try:
            if step is Step.AGAIN:
                try:
                    return await self._try(stream, parcel, attempt, backoff, again=True)
                except (Sealed, StaleEpoch, ConnectionLost):
                    # It says nothing of the first try, but the epoch may be over and our view old: the replicas know.
                    step = Step.ASK
            if step is Step.ASK:
                return await self._ask(stream, parcel, attempt, backoff)
        except VarlogError as error:
            parcel.last_error = error
        self._routing.refresh_soon()
        await self._stuck.wait_news(backoff)
        return None

    async def _ask(
        self, stream: LogStream, parcel: Parcel, attempt: Attempt, backoff: Backoff
    ) -> Position | None:
        """What the first replica that can say says became of the batch. None: nowhere."""
        header = parse_header(parcel.batch, signed=False)
        request = FindAppend(
            attempt.log_stream,
            attempt.epoch,
            header.producer,
            header.sequence,
            attempt.floor,
            attempt.after,
        )
        self._turn += 1
        last: VarlogError = Unavailable(f"log stream {attempt.log_stream} has no replicas")
        for node in in_turn(stream.replicas, self._turn, self._trust.avoided()):
            began, limit_s = self._loop.time(), min(ASK_S, backoff.remaining_s)
            try:
                address = self._routing.address_of(node)
                outcome = await self._routing.ask_once(address, request, FindAppendReply, limit_s)
            except VarlogError as error:
                last = error
                self._failed(node, error, began, limit_s)
                continue
            self._answered(node)
            if outcome.found:
                return self._acknowledged(attempt.log_stream, outcome.glsn, outcome.llsn)
            self._nowhere(parcel)
            return None
        raise last

    # --- One try ----------------------------------------------------------------------------------------------------------

    async def _try(
        self, stream: LogStream, parcel: Parcel, attempt: Attempt, backoff: Backoff, *, again: bool = False
    ) -> Position:
        node = stream.primary
        connection = self._routing.at_hand(node)
        if connection is None or self._out_bytes + len(parcel.batch) > CONNECTION_WRITE_BYTES_MAX:
            connection = await self._reach(node, backoff)
        if parcel.dropped:
            raise NotAccepted("nobody waits for it any more")
        parcel.attempt = attempt
        # A batch that may be there already is not refused for being late: that would not say what became of it.
        within_ms = 0 if again else int(1000 * backoff.remaining_s)
        request = Append(
            attempt.log_stream, attempt.epoch, again, attempt.floor, attempt.after, within_ms=within_ms
        )
        try:
            with Patience() as patience:  # it ends only the wait for an epoch that is over: see Stuck
                answer = await self._call(node, connection, request, parcel, backoff, patience)
        except TimeoutError:
            raise Unavailable(f"epoch {attempt.epoch} of log stream {attempt.log_stream} is over") from None
        self._trust.stream_took(stream)
        return self._acknowledged(attempt.log_stream, answer.glsn, answer.llsn)

    async def _reach(self, node: NodeID, backoff: Backoff) -> Connection:
        """A connection with room for a batch. ConnectionLost, not sent: there is none in time."""
        dial_s = min(backoff.remaining_s, DIAL_S)
        try:
            async with asyncio.timeout(dial_s):
                connection = await self._routing.connection_to(node, dial_s)
                await connection.wait_writable()
                return connection
        except TimeoutError:
            self._trust.node_failed(node, "it cannot be reached in time")
            raise ConnectionLost(f"node {node} could not be reached in time", False) from None
        except ConnectionLost as error:
            self._trust.node_failed(node, error.what, refused=True)
            raise ConnectionLost(error.what, False) from error

    async def _call(
        self,
        node: NodeID,
        connection: Connection,
        request: Append,
        parcel: Parcel,
        backoff: Backoff,
        patience: Patience,
    ) -> AppendReply:
        began, size = self._loop.time(), len(parcel.batch)
        limit_s = min(backoff.remaining_s, TRY_S_MAX)
        self._stuck.call_began(parcel, patience)
        slow = self._loop.call_later(SLOW_S, self._slow, parcel, node, began, patience)
        self._out_bytes += size
        self._costs.sent(request.log_stream, began)
        answered = False
        try:
            answer, _ = await connection.call(request, parcel.batch, timeout_s=limit_s)
            answered = True
        except VarlogError as error:
            self._failed(node, error, began, limit_s)
            raise
        finally:
            self._out_bytes -= size
            self._costs.ended(request.log_stream, began, self._loop.time(), answered=answered)
            slow.cancel()
            self._stuck.call_ended(parcel)
        self._answered(node)
        return expect(answer, AppendReply)

    def _acknowledged(self, log_stream: LogStreamID, glsn: GLSN, llsn: LLSN) -> Position:
        if llsn > self._newest.get(log_stream, NO_LLSN):
            self._newest[log_stream] = llsn
        if glsn > self._tail:
            self._tail = glsn
        return Position(glsn, llsn, log_stream)

    # --- What is held against a node ----------------------------------------------------------------------------------------

    def _answered(self, node: NodeID) -> None:
        self._heard[node] = self._loop.time()
        self._trust.node_answered(node)

    def _failed(self, node: NodeID, error: VarlogError, began: float, limit_s: float) -> None:
        """A call ended without what was asked for. An impatient caller's deadline says nothing of the node."""
        if isinstance(error, ConnectionLost):
            self._trust.node_failed(node, error.what, refused=not error.sent)
        elif not isinstance(error, CallTimeout):
            self._answered(node)
        elif limit_s >= SLOW_S and self._heard.get(node, 0.0) < began:
            self._trust.node_failed(node, error.what)
            self._routing.hang_up(node)

    def _slow(self, parcel: Parcel, node: NodeID, began: float, patience: Patience) -> None:
        if self._heard.get(node, 0.0) < began:
            self._trust.node_failed(node, f"no answer within {SLOW_S:g} s")
        self._hold_up(parcel, patience)

    def _hold_up(self, parcel: Parcel, patience: Patience | None = None) -> None:
        if self._stuck.hold_up(parcel, patience):
            self.on_slow()

    # --- Which stream ---------------------------------------------------------------------------------------------------

    def _pick(self, parcel: Parcel) -> LogStream | None:
        if parcel.chosen is not None:
            return self._chosen(parcel)
        streams: Sequence[LogStream] = self._routing.running
        if not streams:
            parcel.last_error = parcel.last_error or Unavailable(
                f"topic {self._routing.topic.name!r} has no running log stream"
            )
            return None
        if self._stuck or parcel.tried or self._trust.shaken:
            streams = self._trusted(streams, parcel.tried)
        self._turn += 1
        return self._costs.cheapest(streams, self._turn, self._loop.time())

    def _trusted(self, streams: Sequence[LogStream], tried: Collection[LogStreamID]) -> Sequence[LogStream]:
        """Those that were not tried yet and with nothing against them, if there are any."""
        doubted = self._trust.doubts()
        return preferred(streams, tried, lambda stream: stream.log_stream in self._stuck or doubted(stream))

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
