"""[A7 A9] CommitService: the metadata repository's session with this node.

Reports out, commits and trims in; one session at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from varlog.model.commit import TopicMark
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import PreconditionFailed, StaleTerm, Unavailable, UnknownLogStream, VarlogError
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.limits import TERM_JUMP_MAX
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.model.projection import Proposal
from varlog.rpc.messages import (
    Commits,
    Done,
    KeepProjection,
    ListRows,
    Message,
    OpenSession,
    OpenSessionReply,
    Reports,
    UnitPoint,
)
from varlog.rpc.transport import Call, Connection, ConnectionLost
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks
from varlog.runtime.worker import Worker
from varlog.storage.witness_file import Witness, WitnessFile
from varlog.storagenode.committed.replica import Replica
from varlog.storagenode.committed.replica_machine import CommitGap
from varlog.storagenode.topic_watermarks import TopicWatermarks

# After a disk has refused a trim, it is retried this much later.
TRIM_RETRY_S: Final = 1.0

_log = get_logger("session")


class KnownToNode(NamedTuple):
    """What a node reports at the start of a session besides its replicas: the largest ids it knows, its copy of the view, and its
    log units."""

    largest_topic: TopicID = TopicID(0)
    largest_log_stream: LogStreamID = LogStreamID(0)
    view_revision: int = 0
    units: tuple[UnitPoint, ...] = ()
    copied: tuple[tuple[TopicID, Epoch, int], ...] = ()


class CommitService:
    """Serves the repository with the newest term; an older one is refused (law 7)."""

    def __init__(
        self,
        node: NodeID,
        replicas: Mapping[LogStreamID, Replica],
        marks: TopicWatermarks,
        tasks: Tasks,
        witness: WitnessFile,
        worker: Worker,
        on_open: Callable[[], None] = lambda: None,
        known: Callable[[], KnownToNode] = lambda: KnownToNode(),
    ) -> None:
        """`witness` is what the node has seen of repositories, `worker` writes it."""
        self._node = node
        self._replicas = replicas
        self._marks = marks
        self._tasks = tasks
        self._on_open = on_open
        self._known = known
        self._file = witness
        self._worker = worker
        self._seen = witness.read()
        self._keeping = asyncio.Lock()
        self._session: Connection | None = None
        self._dirty: dict[LogStreamID, Replica] = {}
        self._flush_soon = False
        self._confirm = False
        self._serial = 0
        self._serial_applied = 0
        self._trims_in_flight = 0
        self._epochs: dict[TopicID, Epoch] = dict(self._seen.epochs)

    def open(self, call: Call, request: OpenSession) -> None:
        """A repository opens its session, which replaces any older one. Its term is durable here before it is accepted."""
        if (request.term, request.nonce) == (
            self._seen.term,
            self._seen.nonce,
        ) and not self._keeping.locked():
            self._begin(call)
        else:
            _ = self._tasks.spawn(f"open/{request.term}", self._open(call, request))

    async def _open(self, call: Call, request: OpenSession) -> None:
        async with self._keeping:
            try:
                check_term(self._node, self._seen.term, self._seen.nonce, request.term, request.nonce)
            except VarlogError as refusal:
                call.fail(refusal)
                return
            if (request.term, request.nonce) != (self._seen.term, self._seen.nonce):
                await self._keep(msgspec.structs.replace(self._seen, term=request.term, nonce=request.nonce))
        self._begin(call)

    async def scrub_metadata(self) -> str:
        """Rewrite the witness file where it is damaged or missing; returns where, or ''."""
        async with self._keeping:
            seen = self._seen
            return (
                await self._worker.run(lambda: self._file.scrub_metadata(seen)) if seen != Witness() else ""
            )

    async def _keep(self, seen: Witness) -> bool:
        """False: it is in memory only."""
        kept = await self._worker.run(lambda: self._file.keep(seen))
        self._seen = seen
        return kept

    def keep_projection(self, call: Call, request: KeepProjection) -> None:
        """The next projection of a topic. It takes effect once it is on disk here or on another node of the chain: if the
        repository forgets it, clients that use it are not the only ones that know it."""
        if not self.is_from(call.connection):
            raise PreconditionFailed(
                "a projection is kept for the metadata repository that is in session here"
            )
        name = f"keep/{request.proposal.projection.topic}"
        _ = self._tasks.spawn(name, self._keep_projection(call, request.proposal))

    async def _keep_projection(self, call: Call, proposal: Proposal) -> None:
        async with self._keeping:
            kept = await self._keep(self._seen.keeping(proposal))
        if kept:
            call.reply(Done())
        else:
            call.fail(Unavailable(f"no disk of node {self._node} accepts the next projection"))

    @property
    def proposed(self) -> tuple[Proposal, ...]:
        """The newest projection of each topic that was about to take effect."""
        return self._seen.proposed

    def record_epochs(self, topics: Iterable[tuple[TopicID, Epoch]]) -> None:
        """The epochs of the projections of sequenced topics, from the repository or from a client that writes by one: kept for the
        next repository."""
        known = dict(self._epochs)
        newer = [(topic, epoch) for topic, epoch in topics if epoch > known.get(topic, NO_EPOCH)]
        if newer:
            self._epochs.update(newer)
            _ = self._tasks.spawn("witness", self._keep_epochs())

    async def _keep_epochs(self) -> None:
        async with self._keeping:
            epochs = tuple(self._epochs.items())
            if epochs != self._seen.epochs:
                await self._keep(msgspec.structs.replace(self._seen, epochs=epochs))

    def _begin(self, call: Call) -> None:
        if self._session is not None and self._session is not call.connection:
            self._session.close()
        self._session = call.connection
        self._serial = self._serial_applied = 0
        self._dirty = {}
        known = self._known()
        points = tuple(replica.point() for replica in self._replicas.values())
        call.reply(
            OpenSessionReply(
                self._node,
                points,
                known.largest_topic,
                known.largest_log_stream,
                known.view_revision,
                self.known_marks(),
                tuple(self._epochs.items()),
                known.units,
                known.copied,
            )
        )
        self._on_open()

    def restart_session(self, replica: Replica) -> None:
        """A replica that the session does not know was opened: end the session, so that the next one begins with what it knows."""
        if self._session is not None and not self._session.closed:
            self._session.close()
        else:
            self.report_soon(replica)

    @property
    def term(self) -> int:
        """The newest term that was seen."""
        return self._seen.term

    @property
    def in_session(self) -> bool:
        return self._session is not None and not self._session.closed

    @property
    def epochs(self) -> tuple[tuple[TopicID, Epoch], ...]:
        """The epochs of the newest projections that are known here."""
        return tuple(self._epochs.items())

    def known_marks(self) -> tuple[TopicMark, ...]:
        """The newest order that this node knows: what it received, and the newest commit context of each replica."""
        high: dict[TopicID, GLSN] = {}
        trimmed: dict[TopicID, GLSN] = {}
        for replica in self._replicas.values():
            topic, row = replica.topic, replica.store.last_row
            newest = row.high_watermark if row is not None else NO_GLSN
            high[topic] = max(high.get(topic, NO_GLSN), newest, self._marks.high_watermark(topic))
            trimmed[topic] = max(
                trimmed.get(topic, NO_GLSN), replica.store.trimmed, self._marks.trimmed(topic)
            )
        return tuple(TopicMark(topic, high[topic], trimmed[topic]) for topic in high)

    def list_rows(self, call: Call, request: ListRows) -> None:
        """In any state of the replica: a frozen one may be the only one that knows."""
        replica = self._replicas.get(request.log_stream)
        if replica is None:
            raise UnknownLogStream(request.log_stream)
        replica.list_rows(call, request.llsn)

    def is_from(self, connection: Connection) -> bool:
        """Whether this is the connection of the present session."""
        return connection is self._session

    def send(self, message: Message) -> bool:
        """Send a message to the repository. Returns False if none has a session with this node."""
        session = self._session
        if session is None or session.closed:
            return False
        try:
            session.send(message)
        except ConnectionLost:
            self._session = None
            return False
        return True

    # --- reports -----------------------------------------------------------------------------------------------------

    def report_soon(self, replica: Replica) -> None:
        """[A7] The first report in a turn of the loop is sent immediately, because an append waits for it; the others of the turn
        are sent together as one message."""
        self._dirty[replica.log_stream] = replica
        if not self._flush_soon:
            self._flush()
            self._schedule_flush()

    def _confirm_soon(self) -> None:
        """Watermarks were applied: the next message confirms them, and is sent soon."""
        self._confirm = True
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_soon:
            self._flush_soon = True
            asyncio.get_running_loop().call_soon(self._flush_gathered)

    def _flush_gathered(self) -> None:
        self._flush_soon = False
        if self._dirty or self._confirm:
            self._flush()

    def _flush(self) -> None:
        self._confirm = False
        dirty, self._dirty = self._dirty, {}
        # Without a session it is lost, and the next session starts with the points of every replica.
        self.send(Reports(tuple(replica.report() for replica in dirty.values()), self._serial_applied))

    # --- commits -----------------------------------------------------------------------------------------------------

    def commits(self, session: Connection, message: Commits) -> None:
        """[A9] Rows first, then marks: a topic's watermark is raised only when this node has applied what is below it."""
        if session is not self._session:
            session.close()
            return
        try:
            for log_stream, rows in message.rows:
                replica = self._replicas.get(log_stream)
                if replica is not None:
                    replica.commit(rows)
        except CommitGap as gap:
            _log.warning(logfmt("commit rows are missing; asking for them again", why=gap))
            self._session = None
            session.close()
            return
        self._serial = message.serial
        self._apply_marks(message)

    def _apply_marks(self, message: Commits) -> None:
        trimmed: dict[TopicID, GLSN] = {}
        # The first message of a session may repeat a trim that was applied before: the repository needs that confirmed as well.
        confirm = message.serial == 1
        for mark in message.marks:
            self._marks.raise_high(mark.topic, mark.high_watermark)
            confirm |= self._marks.raise_trimmed(mark.topic, mark.trimmed)
            if mark.trimmed > NO_GLSN:
                trimmed[mark.topic] = mark.trimmed
        # Each replica by itself: one may have crashed before it persisted a trim that another one here has. All marks in one pass:
        # a busy node receives those of hundreds of topics at once, and has a replica of each.
        trims = [
            (replica, glsn)
            for replica in (self._replicas.values() if trimmed else ())
            if (glsn := trimmed.get(replica.topic, NO_GLSN)) and replica.claim_trim(glsn)
        ]
        self._marks.received = True
        if trims:
            self._trims_in_flight += 1
            _ = self._tasks.spawn(f"trim/{message.serial}", self._trim(trims))
        elif not self._trims_in_flight:
            self._serial_applied = message.serial
            if confirm:
                self._confirm_soon()

    def add_replica(self, replica: Replica) -> None:
        """A replica is new here. Earlier trims are not sent again, so they are applied to it now (law 9)."""
        glsn = self._marks.trimmed(replica.topic)
        if replica.claim_trim(glsn):
            self._trims_in_flight += 1
            _ = self._tasks.spawn(f"trim/ls={replica.log_stream}", self._trim([(replica, glsn)]))

    async def _trim(self, trims: list[tuple[Replica, GLSN]]) -> None:
        try:
            kept = await asyncio.gather(*(replica.trim(glsn) for replica, glsn in trims))
        finally:
            self._trims_in_flight -= 1
        if not self._trims_in_flight:
            self._serial_applied = self._serial
            self._confirm_soon()
        late = [trim for trim, done in zip(trims, kept, strict=True) if not done]
        await asyncio.gather(*(self._trim_late(replica, glsn) for replica, glsn in late))

    async def _trim_late(self, replica: Replica, glsn: GLSN) -> None:
        """A disk that is full or fails now may accept the trim later."""
        while True:
            await asyncio.sleep(TRIM_RETRY_S)
            if await replica.trim(glsn):
                return


# PURE. Which repository a node accepts: the newest term, its first opening.


def check_term(node: NodeID, seen: int, seen_nonce: int, term: int, nonce: int) -> None:
    """Refuse a term that is over, a twin (a restored copy of the store uses the same term again), and a term that no repository
    can have reached: if it were accepted, it would lock out every real one forever (law 7)."""
    if term < seen or (term == seen and nonce != seen_nonce and seen_nonce and nonce):
        raise StaleTerm(term, seen, node)
    if term - seen > TERM_JUMP_MAX:
        raise PreconditionFailed(
            f"term {term} is too far above term {seen}, the newest that node {node} has seen: it is refused"
        )
