"""[A2] BatchSender: delivers one batch to a primary and resolves its outcome.

A batch moves to another log stream only once it is known not to be in the log (law 10). A try without an answer leaves its outcome
unknown. The outcome is resolved before anything else is done with the batch (R-ORD-7): see append_rules. So an append ends with its
position, with a certain rejection, or, if the outcome is not known before its deadline, with OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence

from varlog.client.append_rules import (
    TRY_S_MIN,
    Attempt,
    ErrorClass,
    InflightBatch,
    ResolveStep,
    classify,
    ended,
    floor_of,
    resolve_step,
    stopped,
)
from varlog.client.committed.stalled_appends import CancellableWait, StalledAppends
from varlog.client.committed.stream_costs import StreamCosts
from varlog.client.retry import Backoff
from varlog.client.routing import Routing, expect
from varlog.client.routing_rules import in_turn, preferred
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
    Unavailable,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.limits import CONNECTION_WRITE_BYTES_MAX, GATHER_ENTRIES_MAX
from varlog.model.lsn import GLSN, LLSN, NO_GLSN, NO_LLSN
from varlog.rpc.messages import Append, AppendReply, FindAppend, FindAppendReply
from varlog.rpc.transport import CallTimeout, Connection, ConnectionLost

# A stream with a request unanswered for this long is stalled: new batches go to other streams if they can.
SLOW_S = 0.5
# Timeout of one try: a connection can be dead without any sign. The same batch is then sent again.
TRY_S_MAX = 3.0
DIAL_S = 1.0
# How long to wait for one replica to resolve the outcome of a batch, before the next one is asked.
ASK_S = 1.0


class BatchSender:
    """Delivers batches. Tracks which streams are stalled, and distributes the batches that have no chosen stream."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._failure_detector = routing.failure_detector
        self._stalled = StalledAppends(routing)
        self._costs = StreamCosts()
        self._newest: dict[LogStreamID, LLSN] = {}  # newest LLSN acknowledged to this client, per stream
        self._tail: GLSN = NO_GLSN  # the newest known position
        self._learning_tail = False
        # Bytes sent and not answered: below a connection's write limit there is space, and a batch is sent without waiting.
        self._out_bytes = 0
        self._answered_at: dict[NodeID, float] = {}
        self._turn = routing.turn
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self.on_stall: Callable[[], None] = lambda: None
        self.gather_entries_max = GATHER_ENTRIES_MAX

    @property
    def stalled(self) -> int:
        """How many batches have been in flight too long, or are in too slow a stream, for others to wait behind them."""
        return len(self._stalled) + sum(
            self._costs.in_flight(log_stream)
            for log_stream in self._slow_streams()
            if log_stream not in self._stalled
        )

    def _slow_streams(self) -> list[LogStreamID]:
        running = self._routing.running
        return self._costs.slow(running, self._loop.time()) if len(running) > 1 else []

    def streams_free(self) -> int:
        """How many running streams are neither stalled nor slow."""
        slow = self._slow_streams()
        if not self._stalled and not slow:
            return len(self._routing.running)
        return sum(
            stream.log_stream not in self._stalled and stream.log_stream not in slow
            for stream in self._routing.running
        )

    def is_probe_next(self) -> bool:
        """Whether the next batch would go to a stream whose latest answer was slow, although there are others."""
        streams: Sequence[LogStream] = self._routing.running
        if len(streams) < 2 or not self._costs.suspects:
            return False
        if self._stalled or self._failure_detector.has_suspects:
            streams = self._trusted(streams, ())
        stream = self._costs.cheapest(streams, self._turn + 1, self._loop.time())
        return stream.log_stream in self._costs.suspects

    async def deliver(self, inflight: InflightBatch) -> Position:
        """Returns the position of the batch's first entry. Rejected: certainly not in the log. OutcomeUnknown: it may be."""
        self._routing.use()
        if not self._learning_tail:
            self._learning_tail = True
            _ = self._routing.tasks.spawn("learn tail", self._learn_tail())
        backoff = Backoff(self._routing.environment, inflight.timeout_s)
        try:
            # A try without enough time for an answer would turn a certain rejection into an unknown outcome.
            while not (self.closed or inflight.dropped or backoff.remaining_s < TRY_S_MIN):
                if self._routing.stopped and await self._routing.stays_stopped(backoff):
                    raise stopped(inflight, self._routing.topic_name, self._routing.stopped)
                if inflight.attempt is None:
                    position = await self._send(inflight, backoff)
                else:
                    position = await self._find_out(inflight, inflight.attempt, backoff)
                if position is not None:
                    return position
            raise ended(inflight, closed=self.closed)
        finally:
            self._stalled.release(inflight)

    async def _learn_tail(self) -> None:
        """Fetch the tail. Later batches get positions above it; without it, an unknown outcome would be searched for in the whole
        log."""
        with contextlib.suppress(VarlogError):
            self._tail = max(self._tail, (await self._routing.tail(DIAL_S)).high_watermark)

    # --- A batch that is certainly not in the log: send it to a stream --------------------------------------------------------

    async def _send(self, inflight: InflightBatch, backoff: Backoff) -> Position | None:
        stream = self._pick(inflight)
        if stream is not None:
            inflight.tried[stream.log_stream] = None
            floor = floor_of(stream, self._newest.get(stream.log_stream, NO_LLSN))
            after = max(self._tail, self._routing.trimmed)
            attempt = Attempt(stream.log_stream, stream.epoch, floor, after)
            try:
                return await self._try(stream, inflight, attempt, backoff)
            except Overloaded as refused:
                self._nowhere(inflight)
                if inflight.dropped or self._another(inflight):
                    return None
                raise refused
            except VarlogError as error:
                self._classify(stream, inflight, error)
        self._routing.refresh_soon()
        if not inflight.sent and (stream is None or not self._another(inflight)):
            inflight.tried.clear()
            self._stalled.watch(inflight)
            await self._stalled.wait_news(backoff)
        return None

    def _classify(self, stream: LogStream, inflight: InflightBatch, error: VarlogError) -> None:
        """Raise a final error; otherwise record whether another try is allowed or the outcome is unknown."""
        sent = inflight.sent and (error.sent if isinstance(error, ConnectionLost | CallTimeout) else True)
        kind = classify(error, sent=sent)
        if kind is ErrorClass.REFUSED:
            raise error
        inflight.last_error = error
        self._failure_detector.stream_failed(stream, surely=isinstance(error, Rejected))
        if kind is ErrorClass.UNKNOWN:
            self._mark_stalled(inflight)
        else:
            self._nowhere(inflight)

    def _nowhere(self, inflight: InflightBatch) -> None:
        """Record that the batch is certainly not in the log."""
        self._stalled.release(inflight)
        if inflight.attempt is not None:
            inflight.attempt = None
            if inflight.on_nowhere is not None:
                inflight.on_nowhere(inflight)

    # --- A batch whose outcome is unknown: resolve it -------------------------------------------------------------------------

    async def _find_out(self, inflight: InflightBatch, attempt: Attempt, backoff: Backoff) -> Position | None:
        """One step. Returns None if the outcome is still unknown, or if the batch is not in the log: then no attempt is open any
        more."""
        stream = self._routing.view.stream(attempt.log_stream)
        step = resolve_step(attempt, stream)
        if stream is None:
            raise OutcomeUnknown(
                f"sent, and its log stream was deleted before the answer came ({inflight.last_error})"
            )
        try:
            if step is ResolveStep.AGAIN:
                try:
                    return await self._try(stream, inflight, attempt, backoff, again=True)
                except (Sealed, StaleEpoch, ConnectionLost):
                    # The refusal proves nothing about the first try, but the epoch may have ended and the view be old: ask the
                    # replicas.
                    step = ResolveStep.ASK
            if step is ResolveStep.ASK:
                return await self._ask(stream, inflight, attempt, backoff)
        except VarlogError as error:
            inflight.last_error = error
        self._routing.refresh_soon()
        await self._stalled.wait_news(backoff)
        return None

    async def _ask(
        self, stream: LogStream, inflight: InflightBatch, attempt: Attempt, backoff: Backoff
    ) -> Position | None:
        """Ask the replicas for the outcome of the batch. Returns its position by the first one that knows, or None: it is not in
        the log."""
        header = parse_header(inflight.batch, signed=False)
        request = FindAppend(
            attempt.log_stream,
            attempt.epoch,
            header.producer,
            header.sequence,
            attempt.min_llsn,
            attempt.min_glsn,
        )
        self._turn += 1
        last: VarlogError = Unavailable(f"log stream {attempt.log_stream} has no replicas")
        for node in in_turn(stream.replicas, self._turn, self._failure_detector.avoided()):
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
            self._nowhere(inflight)
            return None
        raise last

    # --- One try ----------------------------------------------------------------------------------------------------------

    async def _try(
        self,
        stream: LogStream,
        inflight: InflightBatch,
        attempt: Attempt,
        backoff: Backoff,
        *,
        again: bool = False,
    ) -> Position:
        node = stream.primary
        connection = self._routing.cached_connection(node)
        if connection is None or self._out_bytes + len(inflight.batch) > CONNECTION_WRITE_BYTES_MAX:
            connection = await self._reach(node, backoff)
        if inflight.dropped:
            raise NotAccepted("nobody waits for it any more")
        inflight.attempt = attempt
        # A batch that may be in the log already must not be refused for being late: that would not resolve its outcome.
        within_ms = 0 if again else int(1000 * backoff.remaining_s)
        request = Append(
            attempt.log_stream, attempt.epoch, again, attempt.min_llsn, attempt.min_glsn, within_ms=within_ms
        )
        try:
            with CancellableWait() as patience:  # ended only if the epoch is over: see StalledAppends
                answer = await self._call(node, connection, request, inflight, backoff, patience)
        except TimeoutError:
            raise Unavailable(f"epoch {attempt.epoch} of log stream {attempt.log_stream} is over") from None
        self._failure_detector.stream_succeeded(stream)
        return self._acknowledged(attempt.log_stream, answer.glsn, answer.llsn)

    async def _reach(self, node: NodeID, backoff: Backoff) -> Connection:
        """A connection with space for a batch. Raises ConnectionLost(sent=False) if there is none in time."""
        dial_s = min(backoff.remaining_s, DIAL_S)
        try:
            async with asyncio.timeout(dial_s):
                connection = await self._routing.connection_to(node, dial_s)
                await connection.wait_writable()
                return connection
        except TimeoutError:
            self._failure_detector.node_failed(node, "it could not be reached in time")
            raise ConnectionLost(f"node {node} could not be reached in time", False) from None
        except ConnectionLost as error:
            self._failure_detector.node_failed(node, error.what, refused=True)
            raise ConnectionLost(error.what, False) from error

    async def _call(
        self,
        node: NodeID,
        connection: Connection,
        request: Append,
        inflight: InflightBatch,
        backoff: Backoff,
        patience: CancellableWait,
    ) -> AppendReply:
        began, size = self._loop.time(), len(inflight.batch)
        limit_s = min(backoff.remaining_s, TRY_S_MAX)
        self._stalled.call_began(inflight, patience)
        slow = self._loop.call_later(SLOW_S, self._slow, inflight, node, began, patience)
        self._out_bytes += size
        self._costs.sent(request.log_stream, began)
        answered = False
        try:
            answer, _ = await connection.call(request, inflight.batch, timeout_s=limit_s)
            answered = True
        except VarlogError as error:
            self._failed(node, error, began, limit_s)
            raise
        finally:
            self._out_bytes -= size
            self._costs.ended(request.log_stream, began, self._loop.time(), answered=answered)
            slow.cancel()
            self._stalled.call_ended(inflight)
        self._answered(node)
        return expect(answer, AppendReply)

    def _acknowledged(self, log_stream: LogStreamID, glsn: GLSN, llsn: LLSN) -> Position:
        if llsn > self._newest.get(log_stream, NO_LLSN):
            self._newest[log_stream] = llsn
        if glsn > self._tail:
            self._tail = glsn
        return Position(glsn, llsn, log_stream)

    # --- Failures of nodes --------------------------------------------------------------------------------------------------

    def _answered(self, node: NodeID) -> None:
        self._answered_at[node] = self._loop.time()
        self._failure_detector.node_answered(node)

    def _failed(self, node: NodeID, error: VarlogError, began: float, limit_s: float) -> None:
        """A call failed. If the deadline was short, the failure proves nothing about the node."""
        if isinstance(error, ConnectionLost):
            self._failure_detector.node_failed(node, error.what, refused=not error.sent)
        elif not isinstance(error, CallTimeout):
            self._answered(node)
        elif limit_s >= SLOW_S and self._answered_at.get(node, 0.0) < began:
            self._failure_detector.node_failed(node, error.what)
            self._routing.disconnect(node)

    def _slow(self, inflight: InflightBatch, node: NodeID, began: float, patience: CancellableWait) -> None:
        if self._answered_at.get(node, 0.0) < began:
            self._failure_detector.node_failed(node, f"no answer within {SLOW_S:g} s")
        self._mark_stalled(inflight, patience)

    def _mark_stalled(self, inflight: InflightBatch, patience: CancellableWait | None = None) -> None:
        if self._stalled.mark_stalled(inflight, patience):
            self.on_stall()

    # --- Which stream ---------------------------------------------------------------------------------------------------

    def _pick(self, inflight: InflightBatch) -> LogStream | None:
        if inflight.chosen is not None:
            return self._chosen(inflight)
        streams: Sequence[LogStream] = self._routing.running
        if not streams:
            inflight.last_error = inflight.last_error or Unavailable(
                f"topic {self._routing.topic.name!r} has no running log stream"
            )
            return None
        if self._stalled or inflight.tried or self._failure_detector.has_suspects:
            streams = self._trusted(streams, inflight.tried)
        self._turn += 1
        return self._costs.cheapest(streams, self._turn, self._loop.time())

    def _trusted(self, streams: Sequence[LogStream], tried: Collection[LogStreamID]) -> Sequence[LogStream]:
        """The streams that were not tried yet and are not suspected, if there are any."""
        doubted = self._failure_detector.is_suspect()
        return preferred(streams, tried, lambda stream: stream.log_stream in self._stalled or doubted(stream))

    def _chosen(self, inflight: InflightBatch) -> LogStream | None:
        for stream in self._routing.streams:
            if stream.log_stream == inflight.chosen:
                if stream.state is StreamState.RUNNING:
                    return stream
                inflight.last_error = Sealed(stream.log_stream)
                return None
        raise UnknownLogStream(inflight.chosen or LogStreamID(0))

    def _another(self, inflight: InflightBatch) -> bool:
        """Whether some running stream has not been tried since the last pause."""
        if inflight.chosen is not None:
            return False
        return any(stream.log_stream not in inflight.tried for stream in self._routing.running)
