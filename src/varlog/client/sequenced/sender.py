"""[Q2 Q4] SequencedBatchSender: a token per batch, then the chain, head to tail.

A batch is written to the same positions for as long as it owns them, no matter what fails, and every unit accepts it once: so
retries never duplicate it (R-ORD-7). If another value was written there first, the batch is certainly not in the log, and gets new
positions (laws 8, 10).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from varlog.client.append_rules import TRY_S_MIN, Attempt, InflightBatch, ended, stopped
from varlog.client.retry import Backoff
from varlog.client.routing import expect
from varlog.client.sequenced.failure_rules import Token, in_doubt, place_of
from varlog.client.sequenced.projections import WRITE, CallTarget
from varlog.client.sequenced.repair import Repair
from varlog.client.sequenced.tokens import TokenClient
from varlog.client.sequenced.units import DIAL_S, TRY_S, Units
from varlog.model.admission import SHARE, late
from varlog.model.batch import parse_header, place_batch
from varlog.model.entry import Position
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import (
    AlreadyWritten,
    BatchTooLarge,
    CorruptBatch,
    InvalidRequest,
    NoLease,
    NotAccepted,
    NotInCluster,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    StaleEpoch,
    Trimmed,
    Unavailable,
    UnknownLogStream,
    UnknownTopic,
    VarlogError,
)
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.limits import GATHER_ENTRIES_MAX
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, StripePosition
from varlog.rpc.messages import Done, WriteUnit
from varlog.rpc.transport import CallTimeout, ConnectionLost
from varlog.runtime.logging import get_logger, logfmt

_log = get_logger("client")


class _ChainWrite:
    """The write of one batch with one token. `next` counts the nodes of the chain of `epoch` that have it. `open`: some unit may
    have it. `doubtful`: it may exist there already, but must not be written there again. `since`: when the token was
    requested."""

    __slots__ = ("doubtful", "epoch", "next", "open", "place", "since", "token")

    def __init__(self, token: Token, found: StripePosition, since: float) -> None:
        self.since = since
        self.token = token
        self.place = found
        self.epoch: Epoch = NO_EPOCH
        self.next = 0
        self.open = False
        self.doubtful = False

    @property
    def first(self) -> Position:
        return Position(self.token.first, self.place.llsn, self.place.log_stream)


class SequencedBatchSender:
    """Delivers the batches of one client. It chooses no stream: the sequencer determines where a batch goes."""

    def __init__(self, units: Units, tokens: TokenClient, repair: Repair) -> None:
        self._units = units
        self._routing = units.routing
        self._projections = units.projections
        self._tokens = tokens
        self._repair = repair
        self._load = ChainLoad()
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self.on_stall: Callable[[], None] = lambda: None

    @property
    def gather_entries_max(self) -> int:
        """The maximum number of entries per batch: it must fit into one stripe, also after a projection change while it is
        packed."""
        try:
            return min(GATHER_ENTRIES_MAX, self._routing.topic.stripe_size)
        except UnknownTopic:
            return GATHER_ENTRIES_MAX

    @property
    def _ended(self) -> bool:
        return self.closed or self._routing.closed

    @property
    def stalled(self) -> int:
        """Always 0: all batches are in one order, so none could avoid a stalled one."""
        return 0

    def is_probe_next(self) -> bool:
        """Always False: the position determines the stream of a batch."""
        return False

    def streams_free(self) -> int:
        """How many full batches may be in flight, in pairs: one per node that can be writing."""
        try:
            return max(1, sum(len(chain.nodes) for chain in self._projections.now.chains))
        except VarlogError:
            return 1

    async def deliver(self, inflight: InflightBatch) -> Position:
        """Returns the position of the batch's first entry. Rejected: certainly not in the log. OutcomeUnknown: it may be."""
        self._routing.use()
        if inflight.chosen is not None:
            self._check_chosen(inflight.chosen)
        backoff = Backoff(self._routing.environment, inflight.timeout_s)
        chain_write: _ChainWrite | None = None
        try:
            # A try without enough time for an answer would turn a certain rejection into an unknown outcome.
            while not (self._ended or inflight.dropped or backoff.remaining_s < TRY_S_MIN):
                if self._routing.stopped and await self._routing.stays_stopped(backoff):
                    raise stopped(inflight, self._routing.topic_name, self._routing.stopped)
                try:
                    projection = await self._projections.get(backoff)
                    if chain_write is not None:
                        chain_write = self._continue(inflight, chain_write, projection)
                    if chain_write is None:
                        chain_write = await self._begin(inflight, projection, backoff)
                    if chain_write.doubtful:
                        await self._check_held(chain_write, projection, backoff)
                    await self._write(inflight, chain_write, projection, backoff)
                    done, chain_write = chain_write, None
                    self._tokens.written(done.token, self._loop.time() - done.since)
                    return done.first
                except (AlreadyWritten, Trimmed) as taken:
                    inflight.last_error = taken
                    self._leave(inflight, chain_write)
                    chain_write = None
                except UnknownTopic as gone:
                    if inflight.sent:
                        raise OutcomeUnknown(
                            "sent, and its topic was deleted before the answer came"
                        ) from gone
                    raise
                except InvalidRequest as refused:
                    # If one node accepted the batch, another cannot refuse it for its content: it was damaged in transit.
                    if not (inflight.sent or isinstance(refused, UnknownLogStream | NotInCluster)):
                        raise
                    inflight.last_error = refused
                except Overloaded as refused:
                    # Certainly not in the log: its positions, if it has any, become junk. A retry would only be later still.
                    if not inflight.sent:
                        raise
                    inflight.last_error = refused
                except OutcomeUnknown:
                    raise
                except VarlogError as error:
                    inflight.last_error = error  # handled where it was raised
            raise ended(inflight, closed=self._ended)
        finally:
            if chain_write is not None and not chain_write.open:
                self._give_up(chain_write.token)

    def _check_chosen(self, log_stream: LogStreamID) -> None:
        streams = [stream.log_stream for stream in self._routing.streams]
        if log_stream not in streams:
            raise UnknownLogStream(log_stream)
        if len(streams) > 1:
            raise InvalidRequest(
                f"log stream {log_stream} cannot be chosen: a sequenced topic's positions say which one it is; append without it"
            )

    # --- Positions --------------------------------------------------------------------------------------------------------

    async def _begin(self, inflight: InflightBatch, projection: Projection, backoff: Backoff) -> _ChainWrite:
        count = parse_header(inflight.batch, signed=False).count
        if count > projection.run_max:
            raise BatchTooLarge("entries", count, projection.run_max)
        since = self._loop.time()
        self._load.check(backoff.remaining_s, since)
        try:
            token, skipped = await self._tokens.request(projection, count, backoff)
        except Overloaded as refused:
            self._load.refused(refused, backoff.remaining_s, self._loop.time())
            raise
        if skipped:
            # They are the rest of the previous stripe, too short for the batch: no other client gets them.
            self._repair.give_up(token._replace(first=GLSN(token.first - skipped), length=skipped))
        found = place_of(token, count, projection)
        if found is None:
            self._give_up(token)
            await self._projections.pause(projection.epoch, backoff)
            raise Unavailable(
                f"positions from {token.first} on are not in one stripe: the sequencer has another projection"
            )
        return _ChainWrite(token, found, since)

    def _continue(
        self, inflight: InflightBatch, chain_write: _ChainWrite, projection: Projection
    ) -> _ChainWrite | None:
        """The same positions under the current projection. None: they belong to others now, so the batch is not in the log."""
        if chain_write.epoch in (NO_EPOCH, projection.epoch):
            return chain_write
        count = parse_header(inflight.batch, signed=False).count
        found = place_of(chain_write.token, count, projection)
        if found is not None and found[:2] == chain_write.place[:2]:
            chain_write.doubtful = in_doubt(chain_write.token, projection)
            if chain_write.open or not chain_write.doubtful:
                return chain_write
        # No node that answered the seal has the batch, and the others serve no longer: it is certainly not in the log.
        self._leave(inflight, chain_write)
        return None

    async def _check_held(self, chain_write: _ChainWrite, projection: Projection, backoff: Backoff) -> None:
        """Check whether a value exists at the batch's positions: then writing the batch once more shows whether it is this one."""
        if not await self._repair.holds(projection, chain_write.place, backoff):
            raise OutcomeUnknown(
                "sent, and epochs passed before its outcome could be resolved: its positions may belong to another batch"
            )
        chain_write.doubtful = False

    def _leave(self, inflight: InflightBatch, chain_write: _ChainWrite | None) -> None:
        """Record that the batch is certainly not in the log; it gets new positions."""
        if chain_write is not None:
            self._nowhere(inflight, chain_write)
            self._give_up(chain_write.token)

    def _give_up(self, token: Token) -> None:
        """Abandon positions at which nothing of this client is or will be written: they become junk."""
        self._tokens.given_up(token)
        self._repair.give_up(token)

    def _nowhere(self, inflight: InflightBatch, chain_write: _ChainWrite) -> None:
        was_open, chain_write.open = chain_write.open, False
        if inflight.attempt is None:
            return
        inflight.attempt = None
        before = inflight.batch
        if inflight.on_nowhere is not None:
            inflight.on_nowhere(inflight)
        if was_open and inflight.batch is before:
            # The old buffer may still be in transmission, and the new one gets another header.
            inflight.batch = bytearray(before)

    # --- The chain --------------------------------------------------------------------------------------------------------

    async def _write(
        self, inflight: InflightBatch, chain_write: _ChainWrite, projection: Projection, backoff: Backoff
    ) -> None:
        """Write from head to tail, starting at `next`. Errors raised were handled, unless the head stores another value."""
        if chain_write.epoch != projection.epoch:
            chain_write.epoch, chain_write.next = projection.epoch, 0
        chain = projection.chain(chain_write.place.log_stream)
        head_at = 0.0
        while chain_write.next < len(chain.nodes):
            node, began, was_open = chain.nodes[chain_write.next], self._loop.time(), chain_write.open
            try:
                await self._write_one(inflight, chain_write, node, backoff)
                self._projections.answered(node, WRITE)
            except Trimmed:
                # A batch that the head accepted was in the log before it was trimmed.
                if not chain_write.next:
                    if was_open:
                        raise OutcomeUnknown(
                            "sent, and its position was trimmed before the answer came"
                        ) from None
                    raise
            except AlreadyWritten as other:
                if chain_write.next:
                    self._log_contradiction(chain, node, chain_write, other)
                    raise OutcomeUnknown(f"the nodes of a chain contradict each other: {other}") from other
                raise
            except VarlogError as error:
                if inflight.dropped and not chain_write.open:
                    raise
                self._classify(inflight, chain_write, error, was_open)
                if isinstance(error, Overloaded) and not chain_write.open:
                    self._load.refused(error, backoff.remaining_s, self._loop.time())
                    raise
                who = CallTarget(node, WRITE)
                await self._projections.node_failed(projection, chain.log_stream, who, error, began, backoff)
                raise
            chain_write.next += 1
            if chain_write.next == 1 < len(chain.nodes):
                head_at = self._loop.time()
        if head_at:
            now = self._loop.time()
            self._load.written(chain.log_stream, now - head_at, now)

    async def _write_one(
        self, inflight: InflightBatch, chain_write: _ChainWrite, node: NodeID, backoff: Backoff
    ) -> None:
        connection = await self._routing.connection_to(node, min(DIAL_S, backoff.remaining_s))
        try:
            async with asyncio.timeout(min(TRY_S, backoff.remaining_s)):
                await connection.wait_writable()
        except TimeoutError:
            raise CallTimeout(f"node {node} accepts nothing more", sent=True) from None
        log_stream, within_ms = chain_write.place.log_stream, 0
        if not chain_write.open:
            head_s = self._load.head_s(log_stream, backoff.remaining_s, self._loop.time())
            within_ms = max(1, int(1000 * head_s))
        batch = self._placed(inflight, chain_write)
        request = WriteUnit(log_stream, chain_write.epoch, within_ms)
        answer, _ = await connection.call(request, batch, timeout_s=min(TRY_S, backoff.remaining_s))
        expect(answer, Done)

    def _placed(self, inflight: InflightBatch, chain_write: _ChainWrite) -> bytearray:
        """The batch with its position in the header. Until here entries could be removed from it; from here on it never changes."""
        if not chain_write.open:
            if inflight.dropped:
                raise NotAccepted("nobody waits for it any more")
            token = chain_write.token
            place_batch(inflight.batch, token.epoch, chain_write.place.llsn)
            inflight.attempt = Attempt(
                chain_write.place.log_stream, token.epoch, LLSN(chain_write.place.llsn - 1)
            )
            chain_write.open = True
            count = parse_header(inflight.batch, signed=False).count
            if count < token.length:
                chain_write.token = token._replace(length=count)
                self._repair.give_up(
                    token._replace(first=GLSN(token.first + count), length=token.length - count)
                )
        return inflight.batch

    def _classify(
        self, inflight: InflightBatch, chain_write: _ChainWrite, error: VarlogError, was_open: bool
    ) -> None:
        """After a first try that certainly had no effect, the batch is not in the log. A seal is no such answer: the batch may be
        written."""
        if was_open or not chain_write.open:
            return
        if isinstance(error, ConnectionLost | CallTimeout):
            certain = not error.sent
        else:
            said_no = isinstance(error, Rejected | CorruptBatch | NoLease)
            certain = said_no and not isinstance(error, StaleEpoch)
        if certain:
            self._nowhere(inflight, chain_write)

    def _log_contradiction(
        self, chain: Chain, node: NodeID, chain_write: _ChainWrite, error: VarlogError
    ) -> None:
        _log.critical(
            logfmt(
                "law 8 violated: a node stores another value than the head of its chain",
                log_stream=chain.log_stream,
                llsn=chain_write.place.llsn,
                head=chain.head,
                node=node,
                error=error,
            )
        )


# [Q2] PURE. ChainLoad: how busy a topic's chains are, as far as one client knows. A batch that would be late requests no token.
#
# A token without a write leaves a hole that must be filled on every node of its chain (law 4). So the sequencer refuses a token
# request whose batch would be late, and the head of a chain refuses a write that would be (Overloaded). Both name the time from
# which another try has a chance: until then the client itself refuses batches with no more time than that. This expires by itself,
# so a wrong estimate does not last.
#
# The head knows only its own queue. The time of the nodes behind it is measured here, and subtracted from the time that the head
# may take.

# The weight of the latest measurement; and the share of the estimate that remains after a second without one.
GAIN: Final = 0.25
KEPT_PER_S: Final = 0.5
# The smallest share of its timeout that a write gets at the head, however slow the rest of the chain was.
HEAD_SHARE_MIN: Final = 0.2


class _Rest(NamedTuple):
    """The time that the nodes behind the head took, as of `at`."""

    seconds: float
    at: float


class ChainLoad:
    """The load of one client's topic; `now` is the time of its loop."""

    __slots__ = ("_busy_until", "_rest", "_waiting")

    def __init__(self) -> None:
        # When the queue that made the last refused batch late will be served, and how many batches are in it.
        self._busy_until = -math.inf
        self._waiting = 0
        self._rest: dict[LogStreamID, _Rest] = {}

    def check(self, left_s: float, now: float) -> None:
        """Raise Overloaded if a batch with `left_s` left for its answer would be late."""
        if self._busy_until > now and (
            refusal := late(self._busy_until - now, left_s, self._waiting, share=SHARE)
        ):
            raise refusal

    def refused(self, refusal: Overloaded, left_s: float, now: float) -> None:
        """Record that a batch with `left_s` left was refused by the sequencer, or by the head of its chain."""
        self._busy_until = now + refusal.retry_after_s + SHARE * max(left_s, 0.0)
        self._waiting = refusal.waiting

    def head_s(self, log_stream: LogStreamID, left_s: float, now: float) -> float:
        """How much of `left_s` the head may use."""
        if not self._rest:
            return left_s
        return max(left_s - self._rest_s(log_stream, now), HEAD_SHARE_MIN * left_s)

    def written(self, log_stream: LogStreamID, rest_s: float, now: float) -> None:
        """Record that a batch is on every node; the nodes behind the head took `rest_s`."""
        before = self._rest_s(log_stream, now)
        self._rest[log_stream] = _Rest(before + GAIN * (rest_s - before), now)

    def _rest_s(self, log_stream: LogStreamID, now: float) -> float:
        known = self._rest.get(log_stream)
        return 0.0 if known is None else known.seconds * KEPT_PER_S ** (now - known.at)
