"""RepositoryService: the RPC of the repository for clients and the manager.

It serves the view, tails, trims and membership. Handlers never wait in a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from varlog.metarepo.membership import named_rules
from varlog.metarepo.membership import rules as rules
from varlog.metarepo.membership.leases import Leases
from varlog.metarepo.membership.named_service import NamedService
from varlog.metarepo.membership.projection_service import ProjectionService
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.membership.suspicions import Suspicions
from varlog.metarepo.ordering.commit_loop import (
    CommitLoop,
    Decide,
    Facts,
    MembershipOperation,
    OnCommitted,
    newest_position,
)
from varlog.metarepo.ordering.sessions import NodeSessions
from varlog.metarepo.recovery.witnesses import Witnesses
from varlog.metarepo.state import RepositoryState
from varlog.model.errors import InvalidRequest, PreconditionFailed, Unavailable, UnknownTopic, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.limits import FETCH_WAIT_S_MAX
from varlog.rpc import messages as m
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import Message
from varlog.rpc.transport import Call
from varlog.runtime.fair_places import FairPlaces
from varlog.runtime.tasks import Tasks

VIEW_WAITERS_MAX: Final = 10_000
# The newest warnings of the store are sent with each view.
COMPLAINTS_MAX: Final = 8
# A node in session that does not confirm a trim within this time no longer delays the answer: the trim itself is durable.
TRIM_CONFIRM_S: Final = 10.0


class RepositoryService:
    """Answers requests. Reads are served from durable state; changes go through the commit loop."""

    def __init__(
        self,
        state: RepositoryState,
        commits: CommitLoop,
        sessions: NodeSessions,
        leases: Leases,
        witnesses: Witnesses,
        tasks: Tasks,
        complaints: Callable[[], Sequence[str]],
        corrupt_frames: Callable[[], int],
        term: Callable[[], int],
    ) -> None:
        self._state = state
        self._commits = commits
        self._sessions = sessions
        self._leases = leases
        self._witnesses = witnesses
        self._tasks = tasks
        self._complaints = complaints
        self._corrupt_frames = corrupt_frames
        self._view_waiters: FairPlaces[object, tuple[Call, int, asyncio.TimerHandle]] = FairPlaces()
        self._suspicions = Suspicions(self._answer_view_waiters)
        self._named = NamedService(state, self._submit, self._expected)
        self._projections = ProjectionService(
            state,
            commits,
            leases,
            self._expected,
            lambda call, act: witnesses.when_reported(call, act),
            term,
            sessions.ask,
            tasks,
        )
        self._stopped: str | None = None

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each message."""
        dispatcher.on(m.GetView, self._get_view)
        dispatcher.on(m.GetTail, self._get_tail)
        dispatcher.on(m.TrimTopic, self._trim_topic)
        dispatcher.on(m.RegisterNode, self._register_node)
        dispatcher.on(m.UnregisterNode, self._unregister_node)
        dispatcher.on(m.RegisterTopic, self._register_topic)
        dispatcher.on(m.UnregisterTopic, self._unregister_topic)
        dispatcher.on(m.NewLogStreamID, self._new_log_stream_id)
        dispatcher.on(m.RegisterLogStream, self._register_log_stream)
        dispatcher.on(m.SealStream, self._seal_stream)
        dispatcher.on(m.UnsealStream, self._unseal_stream)
        dispatcher.on(m.SetSealedByAdmin, self._hold_stream)
        dispatcher.on(m.SetReplicas, self._set_replicas)
        dispatcher.on(m.Suspect, self._suspect)
        dispatcher.on(m.SetManager, self._set_manager)
        dispatcher.on(m.AdoptOrder, self._adopt_order)
        self._named.register(dispatcher)
        self._projections.register(dispatcher)

    def stop(self, error: Unavailable) -> None:
        """Answer nothing more: the state here may be out of date."""
        self._stopped = str(error)
        self._suspicions.clear()
        self._projections.stop(error)
        waiters, self._view_waiters = self._view_waiters, FairPlaces()
        for call, _, timer in waiters.values():
            timer.cancel()
            call.fail(error)

    def view_changed(self) -> None:
        """Answer the requests that wait for a newer view."""
        revision = self._state.view.revision
        self._answer_view_waiters(lambda newer_than: revision > newer_than)

    def _answer_view_waiters(self, wanted: Callable[[int], bool] = lambda newer_than: True) -> None:
        """Answer the waiting requests that match `wanted`; a changed suspicion concerns all of them."""
        answer = self._view_is()
        for call, newer_than, timer in list(self._view_waiters.values()):
            if wanted(newer_than):
                del self._view_waiters[call]
                timer.cancel()
                call.reply(answer)

    def _view_is(self) -> m.GetViewReply:
        members = self._state.members
        suspects = tuple(node for node in self._suspicions.nodes if members.view.node(node) is not None)
        complaints = tuple(self._complaints()[-COMPLAINTS_MAX:])
        return m.GetViewReply(
            members.view,
            suspects,
            members.next_log_stream,
            members.unused,
            members.foreign,
            complaints,
            self._corrupt_frames(),
        )

    # --- reads ---------------------------------------------------------------------------------------------------------

    def _get_view(self, call: Call | None, request: m.GetView, payload: bytearray) -> None:
        call = self._expected(call)
        view = self._state.view
        if view.revision > request.newer_than or request.wait_s <= 0:
            call.reply(self._view_is())
            return
        left = self._view_waiters.make_room(call.connection, VIEW_WAITERS_MAX)
        if left is None:
            raise Unavailable("too many requests wait for a newer view: try again later")
        for other, _, waited in left:
            waited.cancel()
            other.reply(self._view_is())
        wait_s = min(request.wait_s, FETCH_WAIT_S_MAX)
        timer = asyncio.get_running_loop().call_later(wait_s, self._view_wait_over, call)
        self._view_waiters.put(call, call.connection, (call, request.newer_than, timer))

    def _view_wait_over(self, call: Call) -> None:
        if self._view_waiters.pop(call, None) is not None:
            call.reply(self._view_is())

    def _get_tail(self, call: Call | None, request: m.GetTail, payload: bytearray) -> None:
        """Linearizable: an append is acknowledged only after its cut is durable and known here. For a sequenced topic only the trim
        is known here; its tail is with the sequencer. For a stopped topic: the newest position that any node knows, once every
        registered node and every replica has reported in this term. Refused if the topic misses nodes, or has lost or damaged
        replicas: they may know newer positions."""
        call = self._expected(call)

        def answer() -> None:
            topic = self._state.topics.get(request.topic)
            if topic is None:
                call.fail(UnknownTopic(str(request.topic)))
                return
            if topic.missed or topic.topic in self._state.distrusted:
                why = topic.stopped or self._state.distrusted[topic.topic]
                call.fail(Unavailable(f"the newest position of topic {topic.name!r} is not known: {why}"))
                return
            if topic.stopped and (
                unreported := self._witnesses.awaited or self._witnesses.unreported_on(topic.topic)
            ):
                whose = "" if self._witnesses.awaited else "the replica on "
                why = (
                    f"{topic.stopped}, and {whose}node {', '.join(map(str, unreported))} has not reported yet"
                )
                call.fail(Unavailable(f"the newest position of topic {topic.name!r} is not known: {why}"))
                return
            newest = topic.trimmed if topic.sequenced else self._state.order.high_watermark(topic.topic)
            call.reply(m.GetTailReply(max(newest, topic.known), topic.trimmed))

        if request.topic not in self._state.topics:
            raise UnknownTopic(str(request.topic))
        self._witnesses.when_reported(call, answer)

    # --- trims ---------------------------------------------------------------------------------------------------------

    def _trim_topic(self, call: Call | None, request: m.TrimTopic, payload: bytearray) -> None:
        """R-TRIM-1: make the trim durable here, then have every node in session that stores the topic apply it, then answer. Not
        before the nodes have reported: they may know newer positions, which can be trimmed as well."""
        call = self._expected(call)

        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            if (why := self._state.distrusted.get(request.topic)) is not None:
                raise Unavailable(f"the newest position of topic {request.topic} is not known: {why}")
            high_watermark = newest_position(members, facts, request.topic)
            if request.respect_readers:
                named_rules.check_trim(members, request.topic, request.glsn)
            return rules.trim_topic(members, request.topic, request.glsn, high_watermark), m.Done()

        def durable(answer: Message | BaseException) -> None:
            if isinstance(answer, BaseException):
                call.fail(answer)
            else:
                self._confirm_trim(call, request)

        self._witnesses.when_reported(
            call, lambda: self._commits.submit(MembershipOperation(decide, durable, client=call.connection))
        )

    def _confirm_trim(self, call: Call, request: m.TrimTopic) -> None:
        answered = False

        def applied() -> None:
            nonlocal answered
            timer.cancel()
            if not answered:
                answered = True
                call.reply(m.Done())

        def late() -> None:
            nonlocal answered
            answered = True
            call.fail(
                Unavailable(
                    "the trim is durable, but a node has not applied it yet: repeat the request to wait for it"
                )
            )

        timer = asyncio.get_running_loop().call_later(TRIM_CONFIRM_S, late)
        topic = self._state.topics.get(request.topic)
        waits = self._leases if topic is not None and topic.sequenced else self._sessions
        waits.await_trim(request.topic, request.glsn, applied)

    # --- membership ------------------------------------------------------------------------------------------------------

    def _register_node(self, call: Call | None, request: m.RegisterNode, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            node, address, volumes = request.node, request.address, request.volumes
            members = rules.register_node(
                members, node, address, volumes, self._sessions, request.cluster_uuid
            )
            return rules.raise_ids(members, request.largest_topic, request.largest_log_stream), m.Done()

        self._submit(call, decide)

    def _unregister_node(self, call: Call | None, request: m.UnregisterNode, payload: bytearray) -> None:
        self._submit(call, lambda members, facts: (rules.unregister_node(members, request.node), m.Done()))

    def _register_topic(self, call: Call | None, request: m.RegisterTopic, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            members, topic = rules.register_topic(
                members, request.name, request.ordering, request.first, request.stripe_size, request.grouping
            )
            return members, m.TopicReply(topic)

        self._submit(call, decide)

    def _unregister_topic(self, call: Call | None, request: m.UnregisterTopic, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            return rules.unregister_topic(members, request.topic, forced=request.forced), m.Done()

        self._submit(call, decide)

    def _adopt_order(self, call: Call | None, request: m.AdoptOrder, payload: bytearray) -> None:
        """Adopt the order of a stopped topic from the nodes, which are queried page by page."""
        call = self._expected(call)

        async def adopt() -> None:
            try:
                adoption = await self._witnesses.adopt(request.topic, dry_run=request.dry_run)
                call.reply(m.AdoptOrderReply(adoption))
            except VarlogError as error:
                call.fail(error)

        _ = self._tasks.spawn(f"adopt-order/{request.topic}", adopt())

    def _new_log_stream_id(self, call: Call | None, request: m.NewLogStreamID, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            members, log_stream = rules.new_log_stream_id(members)
            return members, m.NewLogStreamIDReply(log_stream)

        self._submit(call, decide)

    def _register_log_stream(
        self, call: Call | None, request: m.RegisterLogStream, payload: bytearray
    ) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            topic, log_stream, replicas = request.topic, request.log_stream, request.replicas
            members, stream = rules.register_log_stream(
                members, topic, log_stream, replicas, request.streams_max
            )
            return members, m.StreamReply(stream)

        self._submit(call, decide)

    def _seal_stream(self, call: Call | None, request: m.SealStream, payload: bytearray) -> None:
        """Refused before the nodes have reported, and while one of them contradicts: the seal would end at an older order than
        exists (law 6)."""
        call = self._expected(call)

        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            stream = members.view.stream(request.log_stream)
            if stream is not None and (why := self._state.distrusted.get(stream.topic)) is not None:
                raise PreconditionFailed(f"log stream {request.log_stream} is not sealed: {why}")
            committed_end = facts.committed_end(request.log_stream)
            members, stream = rules.seal_stream(members, request.log_stream, committed_end)
            return members, m.StreamReply(stream)

        self._witnesses.when_reported(call, lambda: self._submit(call, decide, seals=request.log_stream))

    def _unseal_stream(self, call: Call | None, request: m.UnsealStream, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            members, stream = rules.unseal_stream(members, request.log_stream, request.epoch)
            return members, m.StreamReply(stream)

        self._submit(call, decide)

    def _hold_stream(self, call: Call | None, request: m.SetSealedByAdmin, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            members, stream = rules.set_sealed_by_admin(members, request.log_stream, request.sealed_by_admin)
            return members, m.StreamReply(stream)

        self._submit(call, decide)

    def _set_replicas(self, call: Call | None, request: m.SetReplicas, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            log_stream, epoch, replicas = request.log_stream, request.epoch, request.replicas
            members, stream = rules.set_replicas(members, log_stream, epoch, replicas)
            return members, m.StreamReply(stream)

        self._submit(call, decide)

    def _suspect(self, call: Call | None, request: m.Suspect, payload: bytearray) -> None:
        """R-FAIL-2: pass the suspicion on to all followers of the view. A node that is not registered is ignored."""
        call = self._expected(call)
        if self._state.view.node(request.node) is not None:
            self._suspicions.suspect(request.node)
        call.reply(m.Done())

    def _set_manager(self, call: Call | None, request: m.SetManager, payload: bytearray) -> None:
        address, auto_create = request.address, request.auto_create_topics
        self._submit(
            call, lambda members, facts: (rules.set_manager(members, address, auto_create), m.Done())
        )

    def _submit(self, call: Call | None, decide: Decide, *, seals: LogStreamID | None = None) -> None:
        call = self._expected(call)
        self._commits.submit(MembershipOperation(decide, _answering(call), seals, client=call.connection))

    def _expected(self, call: Call | None) -> Call:
        if self._stopped is not None:
            raise Unavailable(self._stopped)
        if call is None:
            raise InvalidRequest("the metadata repository accepts requests, not one-way messages")
        return call


def _answering(call: Call) -> OnCommitted:
    def done(answer: Message | BaseException) -> None:
        if isinstance(answer, BaseException):
            call.fail(answer)
        else:
            call.reply(answer)

    return done
