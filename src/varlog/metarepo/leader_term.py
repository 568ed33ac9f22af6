"""LeaderTerm: one term of leadership, over one opening of the store.

It owns the state, the commit loop, the sessions and the services, and ends them together.
"""

from __future__ import annotations

import asyncio

from varlog.metarepo import state as states
from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.membership import rules
from varlog.metarepo.membership.leases import Leases
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.ordering.commit_loop import CommitLoop, Facts, MembershipOperation
from varlog.metarepo.ordering.commit_rules import Cut
from varlog.metarepo.ordering.reports import ReportTable
from varlog.metarepo.ordering.sessions import NodeSessions, SessionContext
from varlog.metarepo.recovery.backup import BackupService
from varlog.metarepo.recovery.view_copies import ViewCopies
from varlog.metarepo.recovery.witnesses import Witnesses
from varlog.metarepo.service import RepositoryService
from varlog.metarepo.state import RepositoryState
from varlog.metarepo.store.base import MetadataStore
from varlog.model.cluster import ClusterView
from varlog.model.errors import NotLeader, StaleTerm, Unavailable
from varlog.model.ids import LogStreamID, NodeID, TopicID, make_cluster_uuid
from varlog.model.limits import TERM_JUMP_MAX
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import Done, Message, OpenSessionReply
from varlog.rpc.transport import Call, Transport
from varlog.runtime.environment import Environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

_log = get_logger("metarepo")


class LeaderTerm:
    """Created by `begin`. It serves until the term ends; then no part of it answers, orders or sends anything any more."""

    def __init__(
        self,
        config: MetadataRepositoryConfig,
        store: MetadataStore,
        environment: Environment,
        transport: Transport,
        term: int,
        state: RepositoryState,
    ) -> None:
        self.opened_term = term
        self.state = state
        self._raising_term = False
        self._store = store
        self._over: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks(f"term {term}", self._task_failed)
        self._dispatcher = Dispatcher("the metadata repository")
        reports = ReportTable()
        self._commits = CommitLoop(state, reports, store, self._applied)
        self._leases = Leases(
            state,
            environment.clock,
            leads=lambda: store.leads,
            send=lambda node, lease: self.sessions.send_lease(node, lease),
            survive_restart=config.leases_survive_restart,
        )
        context = SessionContext(
            self,
            state,
            reports,
            self._commits,
            self._leases,
            environment,
            transport,
            environment.entropy.getrandbits(62) + 1,
            config.node_retry_s,
        )
        self.sessions = NodeSessions(context, self._tasks)
        self._copies = ViewCopies(state, lambda: self.term, self.sessions, context.view_due)
        self.witnesses = Witnesses(
            state,
            reports,
            self._commits,
            self.sessions.ask,
            self.sessions.restart,
            self._tasks,
            config.witness_grace_s,
            lambda: self.term,
            self._leases.witnesses_reported,
        )
        self._service = RepositoryService(
            state,
            self._commits,
            self.sessions,
            self._leases,
            self.witnesses,
            self._tasks,
            lambda: store.complaints,
            lambda: transport.corrupt_frames,
            lambda: self.term,
        )
        self._service.register(self._dispatcher)
        BackupService(state, lambda: self.term).register(self._dispatcher)

    @classmethod
    async def begin(
        cls,
        config: MetadataRepositoryConfig,
        store: MetadataStore,
        environment: Environment,
        transport: Transport,
        address: str,
    ) -> LeaderTerm:
        """Wait until this process owns the store, load its content, and start. Raises StartupError with the reason if that
        fails."""
        opened = await store.open(address)
        fresh_uuid = make_cluster_uuid(environment.entropy.getrandbits(128))
        state, first = states.load_state(opened.items, config.cluster, store.place, fresh_uuid)
        if first:
            await store.commit(first)
        leader_term = cls(config, store, environment, transport, opened.term, state)
        leader_term._start()
        return leader_term

    def _start(self) -> None:
        _ = self._tasks.spawn("commits", self._commits.run())
        _ = self._tasks.spawn("view copies", self._copies.run())
        _ = self._tasks.spawn("lost", self._wait_lost())
        _ = self._tasks.spawn("repositories", self._follow_repositories())
        self.witnesses.start()
        self.sessions.follow_view()

    def handle(self, call: Call | None, message: Message, payload: bytearray) -> None:
        self._dispatcher.handle(call, message, payload)

    async def wait_over(self) -> BaseException:
        """Wait until the term ends. Returns why: the leadership was lost, the store failed, or a law was violated."""
        return await asyncio.shield(self._over)

    def silence(self, error: Unavailable) -> None:
        """Answer every request with `error` from now on."""
        self._service.stop(error)
        self.witnesses.end(error)
        self._leases.end()
        self.sessions.end()

    async def end(self, error: Unavailable) -> None:
        """End everything of this term. Waiting requests fail with `error`, or with an unknown outcome."""
        self.silence(error)
        await self._tasks.close()
        await self._dispatcher.close()

    @property
    def term(self) -> int:
        """The term of its sessions: that of the store, plus the terms that a store rolled back to an older state has lost."""
        return self.opened_term + self.state.members.terms_lost

    def session_opened(self, node: NodeID, opened: OpenSessionReply) -> None:
        self.witnesses.opened(node, opened)

    def session_ended(self, node: NodeID) -> None:
        self.witnesses.ended(node)

    def term_over(self, node: NodeID, stale: StaleTerm) -> None:
        """A node has seen a later term, or another opening of the store in this term. If another repository leads, the store
        refuses the next commit, and this term ends. Otherwise the store was rolled back to an older state: its terms then
        continue above the one seen, and no topic is ordered before all nodes have reported what they know."""
        if self._raising_term or stale.seen < self.term:
            return
        if stale.seen - self.term > TERM_JUMP_MAX:
            _log.critical(logfmt("a node claims to have seen an impossible term", node=node, why=stale))
            return
        self._raising_term = True
        why = f"the metadata went back in time: {stale}"
        _log.critical(
            logfmt(why + "; every topic waits until all nodes have reported what they know", node=node)
        )
        for topic in self.state.view.topics:
            self.witnesses.stop(topic.topic, why, topic.known)

        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            return rules.raise_term(members, self.term, stale.seen), Done()

        def durable(answer: Message | BaseException) -> None:
            self._raising_term = False

        self._commits.submit(MembershipOperation(decide, durable))

    async def _wait_lost(self) -> None:
        raise await self._store.wait_lost()

    async def _follow_repositories(self) -> None:
        """Keep the addresses of the other repositories in the view, for clients and the manager."""
        known = self.state.view.repositories
        while True:
            known = found = await self._store.wait_repositories(known)

            def decide(
                members: Members, facts: Facts, found: tuple[str, ...] = found
            ) -> tuple[Members, Message]:
                return rules.set_repositories(members, found), Done()

            self._commits.submit(MembershipOperation(decide, lambda answer: None))

    def raise_ids(self, largest_topic: TopicID, largest_log_stream: LogStreamID) -> None:
        """A node has ids that were never assigned here: assign ids above them from now on."""

        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            return rules.raise_ids(members, largest_topic, largest_log_stream), Done()

        def done(answer: Message | BaseException) -> None:
            if isinstance(answer, BaseException):
                _log.error(logfmt("cannot raise ids above those of a node", why=answer))

        self._commits.submit(MembershipOperation(decide, done))

    def _applied(self, cut: Cut | None, before: ClusterView) -> None:
        self.sessions.applied(cut, before)
        if self.state.view is not before:
            self._leases.view_changed()
            self._service.view_changed()

    def _task_failed(self, name: str, error: BaseException) -> None:
        """Durable state and memory may differ now, so no answer of this term can be trusted any more (law 10)."""
        if not self._over.done():
            _log.info(logfmt("the term has ended", term=self.term, task=name, why=error))
            deposed = self._store.shared and isinstance(error, Unavailable)
            stopped = Unavailable(f"the metadata repository has stopped: {error}")
            self.silence(NotLeader(self._store.leader) if deposed else stopped)
            self._over.set_result(error)
