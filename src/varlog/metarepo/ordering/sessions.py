"""[A8] NodeSessions: one session per registered node: reports in, commits out.

One task per node connects to it, opens the session and sends what the node lacks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from varlog.metarepo.membership.leases import Leases
from varlog.metarepo.ordering.commit_loop import CommitLoop
from varlog.metarepo.ordering.commit_rules import Cut
from varlog.metarepo.ordering.outbox import Outbox, StreamRows
from varlog.metarepo.ordering.reports import ReportTable
from varlog.metarepo.state import RepositoryState
from varlog.model.cluster import ClusterView, StorageNode
from varlog.model.errors import InvalidRequest, PreconditionFailed, StaleTerm, Unavailable, VarlogError
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.rpc.messages import (
    KeepView,
    LeaseReply,
    Message,
    OpenSession,
    OpenSessionReply,
    Reports,
    RequestLease,
)
from varlog.rpc.transport import Call, Connection, ConnectionLost, Transport
from varlog.runtime.environment import Environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

CONNECT_TIMEOUT_S: Final = 3.0
OPEN_TIMEOUT_S: Final = 10.0
# After this many messages a session waits until the connection has space again; what accumulates meanwhile is sent merged.
MESSAGES_BEFORE_PAUSE: Final = 64
# Reports may overtake the task that opens the session by one turn of the loop.
EARLY_REPORTS_MAX: Final = 1_000

_log = get_logger("metarepo")


@dataclass(slots=True)
class _Link:
    """The session over one connection. Messages that arrive before the session has begun wait in `early`."""

    outbox: Outbox
    early: list[Reports | RequestLease]
    connection: Connection | None = None
    begun: bool = False
    paused: bool = False
    messages: int = 0


@dataclass(slots=True)
class _TrimWait:
    """A request that waits until the node has applied a trim. `serial` is None until the mark was sent."""

    topic: TopicID
    serial: int | None
    left: Callable[[], None]


class NodeSession:
    """The repository's side of the session with one node."""

    def __init__(self, node: StorageNode, context: SessionContext) -> None:
        self.node = node
        self._context = context
        self._link: _Link | None = None
        self._wake = asyncio.Event()
        self._trim_waits: list[_TrimWait] = []
        self._trims_sent: dict[TopicID, tuple[int, GLSN]] = {}
        self._trims_applied: dict[TopicID, GLSN] = {}
        self._logged_trouble = ""
        # The revision of the view copy that the node has, or was sent.
        self.view_revision = 0

    @property
    def is_open(self) -> bool:
        return self._link is not None and self._link.begun

    async def run(self) -> None:
        """Keep a session with the node, forever."""
        context = self._context
        while True:
            try:
                await self._one_session()
            except VarlogError as error:
                self._log_trouble(error)
            finally:
                self._end()
            await asyncio.sleep(context.retry_s * context.environment.entropy.uniform(0.5, 1.5))

    async def _one_session(self) -> None:
        link = _Link(Outbox(self._context.state, str(self.node.node)), [])

        def handle(call: Call | None, message: Message, payload: bytearray) -> None:
            self._receive(link, call, message)

        connection = await self._context.transport.connect(
            self.node.address, handler=handle, timeout_s=CONNECT_TIMEOUT_S
        )
        try:
            opened = await self._open(connection)
            self._wake.clear()
            connection.on_close(self._wake.set)
            link.connection = connection
            self._link = link
            self._begin(link, opened)
            while not connection.closed:
                await self._wake.wait()
                self._wake.clear()
                await connection.wait_writable()
                link.paused, link.messages = False, 0
                self.flush()
        finally:
            connection.close()

    def _opening(self) -> OpenSession:
        state, node = self._context.state, self.node.node
        units = [stream.log_stream for stream in state.units_on.get(node, ())]
        registered = (*state.streams_on.get(node, {}), *units)
        return OpenSession(self._context.owner.term, state.view.uuid, registered, self._context.nonce)

    async def _open(self, connection: Connection) -> OpenSessionReply:
        try:
            answer, _ = await connection.call(self._opening(), timeout_s=OPEN_TIMEOUT_S)
        except StaleTerm as stale:
            self._context.owner.term_over(self.node.node, stale)
            raise
        return self._checked(answer)

    def _checked(self, answer: Message) -> OpenSessionReply:
        if not isinstance(answer, OpenSessionReply):
            raise PreconditionFailed(f"{self.node.address} does not answer like a storage node")
        if answer.node != self.node.node:
            raise PreconditionFailed(
                f"storage node {answer.node} answers at {self.node.address}, where node {self.node.node} is registered: "
                "register it at its new address"
            )
        return answer

    # --- begin and end -------------------------------------------------------------------------------------------------

    def _begin(self, link: _Link, opened: OpenSessionReply) -> None:
        """Start sending, from what the node has. The first message is sent even if the node lacks nothing: the node waits for
        it."""
        state, reports = self._context.state, self._context.reports
        # This comes first: what the node knows of the order may stop a topic, before any of its reports count.
        self._context.owner.session_opened(self.node.node, opened)
        registered = state.streams_on.get(self.node.node, {})
        held = Counter(point.topic for point in opened.replicas)
        for point in opened.replicas:
            stream = registered.get(point.log_stream)
            if stream is None:
                continue  # not in the view: its reports do not count, and it gets no rows
            alone = state.is_alone(stream) and held[stream.topic] == 1
            ahead = point.committed_end > state.order.committed_end(point.log_stream)
            if alone or not ahead:
                reports.record_point(self.node.node, point, alone=alone)
            if ahead:
                link.outbox.begin(point.log_stream, None)
                continue
            link.outbox.begin(point.log_stream, point.committed_end)
        link.outbox.follow(registered.values())
        for stream in registered.values():
            link.outbox.add_topic(stream.topic)
        link.begun = True
        self._context.leases.session_began(self.node.node)
        for message in link.early:
            self._handle_message(link, message)
        link.early.clear()
        self.view_revision = opened.view_revision
        self._context.view_due.set()
        members = state.members
        if opened.largest_topic >= members.next_topic or opened.largest_log_stream >= members.next_log_stream:
            self._context.owner.raise_ids(opened.largest_topic, opened.largest_log_stream)
        self._logged_trouble = ""
        _log.info(logfmt("session opened", node=self.node.node, address=self.node.address))
        self.flush()
        if reports.changed:
            self._context.commits.wake()

    async def ask(self, request: Message) -> tuple[Message, bytearray]:
        """Send a request to the node in session."""
        link = self._link
        if link is None or link.connection is None:
            raise Unavailable(f"node {self.node.node} is not in session")
        return await link.connection.call(request, timeout_s=OPEN_TIMEOUT_S)

    def restart(self) -> None:
        """Restart the session, from what is known now."""
        if self._link is not None and self._link.connection is not None:
            self._link.connection.close()

    def _end(self) -> None:
        link, self._link = self._link, None
        self._context.owner.session_ended(self.node.node)
        if link is not None and link.begun:
            _log.info(logfmt("session ended", node=self.node.node, address=self.node.address))
        self._trims_sent.clear()
        self._trims_applied.clear()
        waits, self._trim_waits = self._trim_waits, []
        for wait in waits:
            wait.left()

    def _log_trouble(self, error: VarlogError) -> None:
        """Log a problem once, not at every attempt."""
        if (trouble := str(error)) != self._logged_trouble:
            self._logged_trouble = trouble
            _log.warning(logfmt("no session", node=self.node.node, address=self.node.address, why=trouble))

    # --- reports in ----------------------------------------------------------------------------------------------------

    def _receive(self, link: _Link, call: Call | None, message: Message) -> None:
        if call is not None or not isinstance(message, Reports | RequestLease):
            raise InvalidRequest(f"{type(message).__name__} is not for a session of the metadata repository")
        if link.begun:
            if link is self._link:
                self._handle_message(link, message)
        elif len(link.early) < EARLY_REPORTS_MAX:
            link.early.append(message)
        else:
            raise InvalidRequest("reports arrived before the session was opened")

    def _handle_message(self, link: _Link, message: Reports | RequestLease) -> None:
        if isinstance(message, Reports):
            self._record_reports(link, message)
        else:
            self._context.leases.asked(self.node.node, message)

    def send_lease(self, lease: LeaseReply) -> None:
        """R-SEQ-13: leases are few and small, so they do not wait for other messages."""
        link = self._link
        if link is not None and link.begun and link.connection is not None:
            with suppress(ConnectionLost):  # the session's task detects it as well
                link.connection.send(lease)

    def _record_reports(self, link: _Link, message: Reports) -> None:
        """[A7] Record reports in the table. A stream that is not registered on this node is ignored (law 2)."""
        registered = self._context.state.streams_on.get(self.node.node, {})
        taken = [report for report in message.reports if report.log_stream in registered]
        self._context.reports.record(self.node.node, taken)
        if link.outbox.needs_sync:
            for report in taken:
                link.outbox.resume(report.log_stream, report.rows_synced_end)
        if not link.outbox.empty:
            self.flush()
        if message.marks_applied and (self._trims_sent or self._trim_waits):
            self._trims_confirmed(message.marks_applied)
        # While a commit is in progress, the next one considers new reports by itself.
        if self._context.commits.asleep() and self._context.state.may_order(self._context.reports, taken):
            self._context.commits.wake()

    # --- commits out -----------------------------------------------------------------------------------------------------

    def add_rows(self, rows: list[StreamRows]) -> None:
        if self._link is not None:
            self._link.outbox.add_rows(rows)

    def add_topic(self, topic: TopicID) -> None:
        if self._link is not None:
            self._link.outbox.add_topic(topic)

    def adopt_view(self) -> None:
        """Update the node's streams after a view change."""
        link = self._link
        if link is not None and link.begun:
            link.outbox.follow(self._context.state.streams_on.get(self.node.node, {}).values())
            self.flush()

    def flush(self) -> None:
        """Send what the node lacks, unless its connection is full: then it is sent, merged, when there is space."""
        link = self._link
        if link is None or not link.begun or link.paused or link.connection is None:
            return
        message = link.outbox.next_message()
        if message is None:
            return
        try:
            link.connection.send(message)
        except ConnectionLost:
            return  # the session's task detects it as well
        for mark in message.marks:
            # The first message that carries a trim is the one to be confirmed.
            sent = self._trims_sent.get(mark.topic, (0, NO_GLSN))[1]
            if mark.trimmed > max(sent, self._trims_applied.get(mark.topic, NO_GLSN)):
                self._trims_sent[mark.topic] = (message.serial, mark.trimmed)
        for wait in self._trim_waits:
            if wait.serial is None and any(mark.topic == wait.topic for mark in message.marks):
                wait.serial = message.serial
        link.messages += 1
        if link.messages >= MESSAGES_BEFORE_PAUSE or not link.outbox.empty:
            link.paused = True
            self._wake.set()

    def send_view(self, revision: int, content: bytes) -> None:
        """Send a copy of the view, for the node to store."""
        link = self._link
        if link is not None and link.begun and link.connection is not None:
            with suppress(ConnectionLost):  # the session's task detects it as well
                link.connection.send(KeepView(revision), content)
                self.view_revision = revision

    # --- trims -----------------------------------------------------------------------------------------------------------

    def await_trim(self, topic: TopicID, glsn: GLSN, left: Callable[[], None]) -> bool:
        """True if `left` will be called once the node has applied the trim or its session has ended; False if it has applied it
        already."""
        if not self.is_open or self._trims_applied.get(topic, NO_GLSN) >= glsn:
            return False
        self._trim_waits.append(_TrimWait(topic, None, left))
        self.add_topic(topic)
        self.flush()
        return True

    def _trims_confirmed(self, serial: int) -> None:
        for topic, (sent, glsn) in list(self._trims_sent.items()):
            if sent <= serial:
                del self._trims_sent[topic]
                self._trims_applied[topic] = glsn
        waits, self._trim_waits = self._trim_waits, []
        for wait in waits:
            if wait.serial is not None and wait.serial <= serial:
                wait.left()
            else:
                self._trim_waits.append(wait)


class SessionOwner(Protocol):
    """The leader term that owns these sessions: it is notified of what concerns more than one session."""

    @property
    def term(self) -> int: ...

    def session_opened(self, node: NodeID, opened: OpenSessionReply) -> None:
        """Called with what a node knows when its session begins, before any of its reports count."""
        ...

    def session_ended(self, node: NodeID) -> None: ...

    def raise_ids(self, largest_topic: TopicID, largest_log_stream: LogStreamID) -> None:
        """Called if a node has ids that were never assigned here."""
        ...

    def term_over(self, node: NodeID, stale: StaleTerm) -> None:
        """Called if a node has seen a newer term, or another opening of the store in this term."""
        ...


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What all sessions share. `view_due` is set when nodes may lack the newest view."""

    owner: SessionOwner
    state: RepositoryState
    reports: ReportTable
    commits: CommitLoop
    leases: Leases
    environment: Environment
    transport: Transport
    nonce: int
    retry_s: float
    view_due: asyncio.Event = field(default_factory=asyncio.Event)


class NodeSessions:
    """The sessions with all registered nodes."""

    def __init__(self, context: SessionContext, tasks: Tasks) -> None:
        self._context = context
        self._tasks = tasks
        self._sessions: dict[NodeID, NodeSession] = {}
        self._running: dict[NodeID, asyncio.Task[None]] = {}

    def __contains__(self, node: object) -> bool:
        """Whether a session with this node is open."""
        return any(found == node and session.is_open for found, session in self._sessions.items())

    def applied(self, cut: Cut | None, before: ClusterView) -> None:
        """Send the nodes what the last commit changed, to each only its own streams and topics."""
        state = self._context.state
        if state.view is not before:
            self.follow_view()
        touched: dict[NodeID, list[StreamRows]] = {}
        for topic_cut in cut.topics if cut is not None else ():
            # Streams before topics, so that each stream's primary comes before its backups: its client waits for this message.
            for log_stream, row in topic_cut.rows:
                if (stream := state.streams.get(log_stream)) is not None:
                    new = (log_stream, (row,))
                    for node in stream.replicas:
                        if (rows := touched.get(node)) is None:
                            rows = touched[node] = []
                        rows.append(new)
            for node in state.holders.get(topic_cut.topic, ()):
                touched.setdefault(node, [])
                if (session := self._sessions.get(node)) is not None:
                    session.add_topic(topic_cut.topic)
        for node, rows in touched.items():
            if (session := self._sessions.get(node)) is not None:
                session.add_rows(rows)
                session.flush()

    def follow_view(self) -> None:
        """Keep a session for every registered node at its address, and for no other."""
        self._context.view_due.set()
        nodes = {found.node: found for found in self._context.state.view.nodes}
        for node, session in list(self._sessions.items()):
            if node not in nodes or nodes[node].address != session.node.address:
                del self._sessions[node]
                self._running.pop(node).cancel()
        for node, found in nodes.items():
            if node in self._sessions:
                self._sessions[node].node = found
                self._sessions[node].adopt_view()
            else:
                self._sessions[node] = session = NodeSession(found, self._context)
                self._running[node] = self._tasks.spawn(f"session/{node}", session.run())

    def without_view(self, revision: int) -> list[NodeSession]:
        """The sessions whose node has no copy of the view of this revision."""
        return [
            found for found in self._sessions.values() if found.is_open and found.view_revision != revision
        ]

    def send_lease(self, node: NodeID, lease: LeaseReply) -> None:
        """Send a lease to a node in session; a node without one will ask."""
        if (session := self._sessions.get(node)) is not None:
            session.send_lease(lease)

    async def ask(self, node: NodeID, request: Message) -> tuple[Message, bytearray]:
        if (session := self._sessions.get(node)) is None:
            raise Unavailable(f"node {node} is not registered")
        return await session.ask(request)

    def restart(self, nodes: tuple[NodeID, ...]) -> None:
        """Restart the sessions with these nodes."""
        for node in nodes:
            if (session := self._sessions.get(node)) is not None:
                session.restart()

    def end(self) -> None:
        """End all sessions."""
        self._sessions.clear()
        running, self._running = self._running, {}
        for task in running.values():
            task.cancel()

    def await_trim(self, topic: TopicID, glsn: GLSN, done: Callable[[], None]) -> None:
        """Call `done` once every node in session that stores the topic has applied the trim, or left."""
        waiting = 1

        def left() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                done()

        for node in self._context.state.holders.get(topic, ()):
            session = self._sessions.get(node)
            if session is not None and session.await_trim(topic, glsn, left):
                waiting += 1
        left()
