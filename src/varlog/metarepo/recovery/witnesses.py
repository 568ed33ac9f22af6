"""Witnesses: what nodes know of the order, collected before any is assigned.

When a term begins, no position is assigned until every registered node has opened a session, or was unreachable for a grace time;
after that, none in a topic with a log stream of which no replica has reported: no other node knows its newest position. A node that
knows more than this repository, or something else, stops the topic, durably. The order is then adopted from the nodes: by an
operator, or automatically if every replica has reported and only the newest cuts can have been lost. The order of a sequenced topic
is its projection, which nodes store in their copies of the view. See docs/decisions/0021.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from varlog.metarepo.membership import projection_rules
from varlog.metarepo.membership import rules as rules
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.ordering.commit_loop import CommitLoop, Facts, MembershipOperation
from varlog.metarepo.ordering.reports import ReportTable
from varlog.metarepo.records import BaseRecord
from varlog.metarepo.recovery.rebuild import ProjectionFound, find_projection
from varlog.metarepo.recovery.recover import evidence
from varlog.metarepo.recovery.view_copies import view_copy
from varlog.metarepo.recovery.witness_rules import (
    JoinedOrder,
    ReplicaWord,
    ReportedRange,
    WitnessClaim,
    claim_of_copy,
    claim_of_lows,
    claim_of_replica,
    claim_of_topic,
    claim_of_unit,
    join,
)
from varlog.metarepo.state import RepositoryState
from varlog.model.cluster import LogStream, StreamState, Topic, changed
from varlog.model.commit import CommitRow, OrderAdoption
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import PreconditionFailed, Unavailable, UnknownTopic, VarlogError
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN, NO_GLSN
from varlog.model.projection import Projection
from varlog.rpc.messages import (
    Done,
    ListRows,
    ListRowsReply,
    Message,
    OpenSessionReply,
    ReplicaPoint,
)
from varlog.rpc.transport import Call
from varlog.runtime.fair_places import FairPlaces
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

# At most this many lost cuts are adopted from the nodes without an operator: as many as a journal can lose, and fewer than an older
# copy of a store lacks.
CUTS_ADOPTED_MAX: Final = 64
CALLS_WAITING_MAX: Final = 10_000
# More rows than this are not held in memory: a store that has lost more must be restored from a newer copy.
ROWS_MAX: Final = 4_000_000

_log = get_logger("metarepo")


class AskNode(Protocol):
    """Sends a request to a node in session."""

    def __call__(self, node: NodeID, request: Message) -> Awaitable[tuple[Message, bytearray]]: ...


@dataclass(frozen=True, slots=True)
class Adoption:
    """What can be adopted from the nodes, after `ends`. `silent`: registered nodes without a session, or that reported nothing of a
    replica that they have. `raised`: streams that are sealed in another epoch, and where. `projection`: that of a sequenced
    topic."""

    topic: Topic
    joined: JoinedOrder
    ends: dict[LogStreamID, LLSN]
    silent: tuple[NodeID, ...]
    raised: dict[LogStreamID, tuple[Epoch, LLSN]]
    trimmed: GLSN
    order_alone: bool
    projection: ProjectionFound | None = None
    lost: Epoch = NO_EPOCH

    @property
    def takes(self) -> Projection | None:
        """The projection that is adopted from a node."""
        found = self.projection
        return found.found.projection if found is not None and found.source is not None else None

    def summary(self, *, adopted: bool) -> OrderAdoption:
        joined, found, taken_over = self.joined, self.projection, self.takes
        taken = tuple(
            (one.node, one.log_stream, one.row.glsn_begin, one.row.glsn_end, one.row.llsn_begin)
            for one in joined.taken[:1_000]
        )
        return OrderAdoption(
            self.topic.topic,
            joined.begin,
            joined.end,
            taken,
            joined.missing[:1_000],
            joined.conflicts,
            self.silent,
            tuple(self.raised),
            self.trimmed,
            adopted,
            self.topic.stopped,
            taken_over.epoch if taken_over is not None else NO_EPOCH,
            found.source if found is not None and found.source is not None else NodeID(0),
            self.lost,
            found.needed if found is not None else (),
        )


class Witnesses:
    """The witnesses of one term. `restart` restarts the sessions with some nodes from what is known then. `on_all_reported` is
    called once the nodes have reported."""

    def __init__(
        self,
        state: RepositoryState,
        reports: ReportTable,
        commits: CommitLoop,
        ask: AskNode,
        restart: Callable[[tuple[NodeID, ...]], None],
        tasks: Tasks,
        grace_s: float,
        term: Callable[[], int] = lambda: 0,
        on_all_reported: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = state
        self._reports = reports
        self._commits = commits
        self._ask = ask
        self._restart = restart
        self._tasks = tasks
        self._grace_s = grace_s
        self._term = term
        self._on_all_reported = on_all_reported
        self._words: dict[NodeID, OpenSessionReply] = {}
        self._awaited: dict[NodeID, None] = {}
        self._waiting: FairPlaces[Call, tuple[Call, Callable[[], None]]] = FairPlaces()
        self._timer: asyncio.TimerHandle | None = None
        self._revision = state.view.revision  # when the term began
        self._adopting: dict[TopicID, None] = {}
        # The newest position and epoch for which each topic was stopped, while that is not durable yet.
        self._stopping: dict[TopicID, tuple[GLSN, Epoch]] = {}
        # The replicas when the term began: those registered later know nothing newer than this repository.
        self._begun_with: dict[LogStreamID, tuple[NodeID, ...]] = _replicas(state)
        # The replicas and log units that have reported in this term, whether they are in session now or not.
        self._reported: set[tuple[LogStreamID, NodeID]] = set()
        self._units_reported: set[tuple[LogStreamID, NodeID]] = set()

    # --- The beginning of a term -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Wait for every registered node: one may have a replica that is no longer in the repository's view."""
        self._revision = self._state.view.revision
        self._begun_with = _replicas(self._state)
        self._awaited = {found.node: None for found in self._state.view.nodes}
        if self._awaited:
            self._state.witnessed = False
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._grace_over)

    def end(self, error: Unavailable) -> None:
        """Fail the waiting requests with `error`."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, FairPlaces()
        for call, _ in waiting.values():
            call.fail(error)

    @property
    def awaited(self) -> tuple[NodeID, ...]:
        """Registered nodes that have not reported in this term, even after the grace time."""
        return tuple(self._awaited)

    def when_reported(self, call: Call, act: Callable[[], None]) -> None:
        """Call `act`, which answers `call`, once the nodes have reported: immediately, except at the beginning of a term."""
        if self._state.witnessed:
            act()
            return
        left = self._waiting.make_room(call.connection, CALLS_WAITING_MAX)
        if left is None:
            raise _too_many()
        for other, _ in left:
            other.fail(_too_many())
        self._waiting.put(call, call.connection, (call, act))

    def _grace_over(self) -> None:
        if not self._state.witnessed:
            _log.warning(logfmt("nodes were not reached within the grace time", nodes=list(self._awaited)))
            self._all_reported()

    def _all_reported(self) -> None:
        for topic, unreported in self._unreported().items():
            self._miss(self._state.topics[topic], unreported)
        self._state.witnessed = True
        self._on_all_reported()
        self._end_missing()
        waiting, self._waiting = self._waiting, FairPlaces()
        for call, act in waiting.values():
            try:
                act()
            except VarlogError as error:
                call.fail(error)
        self._commits.wake()

    # --- Reports of a node -------------------------------------------------------------------------------------------------

    def opened(self, node: NodeID, word: OpenSessionReply) -> None:
        """Examine what a node knows when its session begins, before any of its reports count."""
        self._words[node] = word
        self._reported.update((point.log_stream, node) for point in word.replicas)
        self._units_reported.update((unit.log_stream, node) for unit in word.units if unit.epoch > NO_EPOCH)
        for topic, claim in self._claims(node, word):
            self.stop(topic, claim.why, claim.position, claim.epoch)
        self._awaited.pop(node, None)
        if not self._awaited and not self._state.witnessed:
            self._all_reported()
        self._end_missing()
        for found in self._state.topics.values():
            if found.stopped:
                self._adopt_soon(found.topic)

    def ended(self, node: NodeID) -> None:
        self._words.pop(node, None)

    def stop(self, topic: TopicID, why: str, known: GLSN, epoch: Epoch = NO_EPOCH) -> None:
        """Order nothing more in the topic from now on, and make that durable."""
        state = self._state
        found = state.topics.get(topic)
        known = max(known, NO_GLSN)
        if found is None or rules.is_stopped_for(found, known, epoch):
            return
        if topic in self._stopping:
            stopping = self._stopping[topic]
            if stopping[0] >= known and stopping[1] >= epoch:
                return
            known, epoch = max(known, stopping[0]), max(epoch, stopping[1])
        state.distrusted[topic], self._stopping[topic] = why, (known, epoch)
        _log.critical(logfmt(f"topic {found.name!r} is STOPPED (law 3): {why}", topic=topic))

        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            stopped = rules.stop_topic(
                members, topic, why, known, epoch, revision=self._revision_after_loss()
            )
            return stopped, Done()

        def durable(answer: Message | BaseException) -> None:
            if self._stopping.get(topic) == (known, epoch):
                del self._stopping[topic]
                state.distrusted.pop(topic, None)
            self._adopt_soon(topic)

        self._commits.submit(MembershipOperation(decide, durable))

    def _revision_after_loss(self) -> int:
        return rules.revision_after_loss(self._revision, self._term())

    # --- Log streams without a report ---------------------------------------------------------------------------------

    def _unreported(self) -> dict[TopicID, list[LogStream]]:
        """The log streams of which no replica has reported in this term, by topic. Once all registered nodes have reported, these
        are the streams of which every replica is lost or damaged: each replica existed before its log stream was registered
        (R-REG-2)."""
        found: dict[TopicID, list[LogStream]] = {}
        reported = {log_stream for log_stream, _ in self._reported}
        for stream in self._state.streams.values():
            topic = self._state.topics.get(stream.topic)
            if topic is None or (topic.sequenced and not self._awaited):
                continue
            if stream.log_stream not in reported and stream.log_stream in self._begun_with:
                found.setdefault(stream.topic, []).append(stream)
        if not self._awaited:
            return found
        view = self._state.view
        for projection in view.projections:
            for chain in projection.chains:
                of_chain = view.stream(chain.log_stream)
                is_reported = any((chain.log_stream, node) in self._units_reported for node in chain.nodes)
                if of_chain is not None and not is_reported:
                    found.setdefault(projection.topic, []).append(changed(of_chain, replicas=chain.nodes))
        return found

    def unreported_on(self, topic: TopicID) -> tuple[NodeID, ...]:
        """Nodes that have not reported a replica of this topic in this term, although they have one: they are away, or it is lost
        or damaged. It may know newer positions than all that have reported: their newest rows may be lost as well."""
        found = self._state.topics.get(topic)
        if found is None or found.sequenced:
            return ()
        unreported = {
            node
            for stream in self._state.streams.values()
            if stream.topic == topic
            for node in self._begun_with.get(stream.log_stream, ())
            if node in stream.replicas and (stream.log_stream, node) not in self._reported
        }
        return tuple(sorted(unreported))

    def _miss(self, topic: Topic, unreported: list[LogStream]) -> None:
        """Stop a topic after the grace time: nothing is ordered while no replica of one of its log streams has reported."""
        if topic.stopped and not topic.missed:
            return
        missed = tuple(sorted({node for stream in unreported for node in stream.replicas}))
        streams = ", ".join(str(stream.log_stream) for stream in unreported)
        nodes = " or ".join(map(str, missed))
        why = (
            f"no replica of log stream {streams} was reached since the metadata repository started, and it may know newer positions"
            f": start node {nodes}, or continue without it"
        )
        if not self._awaited:
            why = (
                f"no replica of log stream {streams} was reached since the metadata repository started: each is lost, damaged or "
                f"cannot be opened, and may know newer positions: restore the one on node {nodes}, or continue without it"
            )
        self._state.distrusted.setdefault(topic.topic, why)
        _log.warning(logfmt(f"topic {topic.name!r} is STOPPED (law 3): {why}", topic=topic.topic))

        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            revision = self._revision_after_loss()
            return rules.miss_nodes(members, topic.topic, why, missed, revision=revision), Done()

        def durable(answer: Message | BaseException) -> None:
            if topic.topic not in self._stopping:
                self._state.distrusted.pop(topic.topic, None)
            self._end_missing()

        self._commits.submit(MembershipOperation(decide, durable))

    def _end_missing(self) -> None:
        """Resume the topics of which every log stream has reported and that no node contradicts."""
        missing = [topic for topic in self._state.topics.values() if topic.missed]
        if not missing or not self._state.witnessed:
            return
        unreported = self._unreported()
        for topic in missing:
            if topic.topic not in self._stopping and topic.topic not in unreported:
                self._end_missing_of(topic.topic)

    def _end_missing_of(self, topic: TopicID) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            return rules.end_missing(members, topic), Done()

        def durable(answer: Message | BaseException) -> None:
            self._look_again(topic)

        self._commits.submit(MembershipOperation(decide, durable))

    def _look_again(self, topic: TopicID) -> None:
        """Examine the reports again that arrived while the topic was stopped: they were not ordered then."""
        for stream in self._state.streams.values():
            if stream.topic == topic:
                self._reports.touch(stream.log_stream)
        self._commits.wake()

    def _claims(self, node: NodeID, word: OpenSessionReply) -> Iterator[tuple[TopicID, WitnessClaim]]:
        state = self._state
        for mark in word.marks:
            found = state.topics.get(mark.topic)
            if found is not None and not found.sequenced:
                claim = claim_of_topic(node, state.mark(mark.topic), mark)
                if claim is not None:
                    yield mark.topic, claim
        for point in word.replicas:
            stream = state.streams.get(point.log_stream)
            if stream is None:
                continue
            end, ours = state.order.committed_end(point.log_stream), None
            if point.committed_end > FIRST_LLSN:
                ours = state.order.glsn_of(point.log_stream, LLSN(point.committed_end - 1))
            said = ReplicaWord(point.epoch, point.committed_end, point.last_glsn)
            claim = claim_of_replica(node, stream, said, end, ours)
            if claim is not None:
                yield stream.topic, claim
        for topic, epoch in word.epochs:
            if topic in state.topics:
                claim = claim_of_unit(node, epoch, state.view.projection(topic))
                if claim is not None:
                    yield topic, claim
        for topic, epoch, term in word.copied:
            if (found := state.topics.get(topic)) is not None and found.sequenced:
                claim = claim_of_unit(node, epoch, state.view.projection(topic))
                claim = claim or claim_of_copy(node, epoch, term, found)
                if claim is not None:
                    yield topic, claim
        yield from self._claims_of_lows(node, word)

    def _claims_of_lows(self, node: NodeID, word: OpenSessionReply) -> Iterator[tuple[TopicID, WitnessClaim]]:
        lows: dict[TopicID, dict[LogStreamID, LLSN]] = {}
        newest = dict(word.epochs)
        for unit in word.units:
            projection = self._state.view.projection(unit.topic)
            # A newer projection may map other positions, and is a claim of its own. A unit that was only sealed with a newer
            # epoch is still mapped by this one: its trim counts.
            if projection is not None and newest.get(unit.topic, unit.epoch) <= projection.epoch:
                lows.setdefault(unit.topic, {})[unit.log_stream] = unit.low
        for topic, of_units in lows.items():
            projection = self._state.view.projection(topic)
            if projection is not None and topic in self._state.topics:
                claim = claim_of_lows(node, self._state.topics[topic], projection, of_units)
                if claim is not None:
                    yield topic, claim

    # --- Adopting the order from the nodes -----------------------------------------------------------------------------------

    async def adopt(self, topic: TopicID, *, dry_run: bool) -> OrderAdoption:
        """Adopt the order for an operator. Raises PreconditionFailed if the reports of the nodes do not form an order."""
        adoption = await self._survey(topic)
        if dry_run or not adoption.joined.is_whole:
            return adoption.summary(adopted=False)
        await self._adopt(adoption)
        return adoption.summary(adopted=True)

    def _adopt_soon(self, topic: TopicID) -> None:
        """Adopt the order automatically, if every registered node has reported and only the newest cuts are lost."""
        found = self._state.topics.get(topic)
        everyone = all(node.node in self._words for node in self._state.view.nodes)
        if found is None or not found.stopped or found.missed or not everyone or topic in self._adopting:
            return
        self._adopting[topic] = None
        _ = self._tasks.spawn(f"adopt/{topic}", self._adopt_alone(topic))

    async def _adopt_alone(self, topic: TopicID) -> None:
        try:
            adoption = await self._survey(topic)
            joined = adoption.joined
            lost = joined.version - self._state.order.version if joined.taken else 0
            # A replica that has not reported may have positions that no node reports.
            whole = joined.is_whole and not adoption.silent
            if not whole or not adoption.order_alone or lost > CUTS_ADOPTED_MAX:
                name, why = adoption.topic.name, adoption.topic.stopped
                remedy = f"run `varlog topic adopt-order {name}`"
                _log.critical(
                    logfmt(f"topic {name!r} stays STOPPED: {why}; {remedy}", topic=topic, cuts_lost=lost)
                )
                return
            await self._adopt(adoption)
        except VarlogError as error:
            _log.warning(logfmt("the order cannot be adopted from the nodes now", topic=topic, why=error))
        finally:
            self._adopting.pop(topic, None)

    async def _survey(self, topic: TopicID) -> Adoption:
        """Query every node in session for the rows that the repository lacks."""
        state = self._state
        found = state.topics.get(topic)
        if found is None:
            raise UnknownTopic(str(topic))
        claims = [
            claim
            for node, word in self._words.items()
            for at, claim in self._claims(node, word)
            if at == topic
        ]
        if found.sequenced:
            return await self._survey_sequenced(found)
        rows: list[ReportedRange] = []
        for node, word in list(self._words.items()):
            for point in word.replicas:
                if (point.topic or self._topic_of(point)) == topic:
                    rows.append(await self._rows_of(node, point))
        marks = [mark.trimmed for word in self._words.values() for mark in word.marks if mark.topic == topic]
        trimmed = max([found.trimmed, *marks])
        # Trimmed positions need not be reported.
        begin = GLSN(max(state.order.high_watermark(topic), trimmed) + 1)
        known = max([NO_GLSN, found.known, *(claim.position for claim in claims)])
        ends = {
            stream.log_stream: state.order.committed_end(stream.log_stream)
            for stream in state.streams.values()
            if stream.topic == topic
        }
        if trimmed > state.order.high_watermark(topic):
            ends = self._ends_at(begin, ends, rows)
        joined = join(begin, known, ends, rows)
        if foreign := {one.log_stream for one in joined.taken} - set(ends):
            what = f"log streams {sorted(foreign)} hold positions, and are not known here: restore a newer copy of the store"
            joined = JoinedOrder(
                joined.begin, joined.end, joined.taken, joined.missing, (*joined.conflicts, what)
            )
        # If a node has a copy of a newer view, more than the order is lost.
        view_lost = any(word.view_revision > self._revision for word in self._words.values())
        alone = all(claim.order_alone for claim in claims) and not view_lost
        silent = tuple(sorted({*self._silent(), *self.unreported_on(topic)}))
        return Adoption(found, joined, ends, silent, self._raised(joined, ends), trimmed, alone)

    async def _survey_sequenced(self, topic: Topic) -> Adoption:
        """The order of a sequenced topic is its projection. The newest one is in the copies of the view that nodes store; the
        units know what was trimmed."""
        state = self._state
        nodes = [await evidence(partial(self._ask, node), f"node {node}") for node in sorted(self._words)]
        ours = view_copy(state, self._term())
        present = state.topics.get(topic.topic)
        if present is None:
            raise UnknownTopic(topic.name)
        found = find_projection(ours, present, nodes)
        known = max(
            [epoch for one in nodes for of, epoch in one.epochs if of == topic.topic], default=NO_EPOCH
        )
        lost = state.view.projection(topic.topic)
        alone = found.source is None and known <= (lost.epoch if lost is not None else NO_EPOCH)
        return Adoption(
            present,
            JoinedOrder(NO_GLSN, NO_GLSN, (), (), tuple(found.found.problems)),
            {},
            self._silent(),
            {},
            found.found.topic.trimmed,
            order_alone=alone and found.found.topic.trimmed == present.trimmed,
            projection=found,
            lost=lost.epoch if lost is not None else NO_EPOCH,
        )

    def _silent(self) -> tuple[NodeID, ...]:
        return tuple(node.node for node in self._state.view.nodes if node.node not in self._words)

    def _ends_at(
        self, begin: GLSN, ours: dict[LogStreamID, LLSN], rows: list[ReportedRange]
    ) -> dict[LogStreamID, LLSN]:
        """Where the streams end before `begin`, as the nodes report it: everything before that is trimmed."""
        ends = dict(ours)
        for word in self._words.values():
            for point in word.replicas:
                if point.log_stream in ends:
                    ends[point.log_stream] = max(ends[point.log_stream], point.committed_end)
        for found in rows:
            for row in found.rows:
                if row.glsn_end > begin and found.log_stream in ends:
                    first = LLSN(row.llsn_begin + max(0, begin - row.glsn_begin))
                    ends[found.log_stream] = min(ends[found.log_stream], first)
        return ends

    def _topic_of(self, point: ReplicaPoint) -> TopicID:
        stream = self._state.streams.get(point.log_stream)
        return stream.topic if stream is not None else TopicID(0)

    async def _rows_of(self, node: NodeID, point: ReplicaPoint) -> ReportedRange:
        begin = self._state.order.committed_end(point.log_stream)
        at, rows = LLSN(max(FIRST_LLSN, begin - 1)), list[CommitRow]()
        while at < point.committed_end:
            answer, _ = await self._ask(node, ListRows(point.log_stream, at))
            if not isinstance(answer, ListRowsReply):
                raise Unavailable(f"node {node} does not answer like a storage node")
            rows += answer.rows
            if len(rows) > ROWS_MAX:
                raise PreconditionFailed(
                    f"node {node} reports more than {ROWS_MAX} rows: restore a newer copy of the store"
                )
            if answer.next_llsn <= at or answer.next_llsn >= answer.committed_end:
                break
            at = answer.next_llsn
        return ReportedRange(node, point.log_stream, tuple(rows))

    def _raised(
        self, joined: JoinedOrder, before: Mapping[LogStreamID, LLSN]
    ) -> dict[LogStreamID, tuple[Epoch, LLSN]]:
        """Streams whose epoch or state was lost: they are sealed where their order ends, above every reported epoch. A stream
        that runs in an epoch that all nodes know continues unchanged."""
        ends = {one.log_stream: one.row.llsn_end for one in joined.taken}
        raised: dict[LogStreamID, tuple[Epoch, LLSN]] = {}
        for stream in self._state.streams.values():
            if stream.log_stream not in before:
                continue
            end = ends.get(stream.log_stream, before[stream.log_stream])
            epochs = [
                point.epoch
                for word in self._words.values()
                for point in word.replicas
                if point.log_stream == stream.log_stream
            ]
            newest = max([stream.epoch, *epochs])
            if newest > stream.epoch or (stream.state is StreamState.SEALED and stream.sealed_end != end):
                raised[stream.log_stream] = (Epoch(newest + 1), end)
        return raised

    async def _adopt(self, adoption: Adoption) -> None:
        """Make the adoption durable, and restart all sessions of the topic: nodes that lack rows get them."""
        state, topic, joined = self._state, adoption.topic.topic, adoption.joined
        stood = state.order.high_watermark(topic)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            if state.order.high_watermark(topic) != stood:
                raise Unavailable("the order has changed meanwhile: try again")
            members = rules.adopt_order(members, topic, adoption.trimmed, adoption.raised)
            return self._with_projection(members, adoption), Done()

        def learns() -> BaseRecord:
            rows = [(one.log_stream, one.row) for one in joined.taken]
            newest = GLSN(joined.end - 1)
            return state.order.learned(
                topic,
                adoption.ends,
                rows,
                joined.begin,
                newest,
                lambda found: self._reports.synced_end(state.streams[found]),
            )

        def durable(answer: Message | BaseException) -> None:
            # Before anything else: a waiting seal ends after what is reported (R-SEAL-3).
            self._look_again(topic)
            if done.done():
                return
            if isinstance(answer, BaseException):
                done.set_exception(
                    answer if isinstance(answer, VarlogError) else PreconditionFailed(str(answer))
                )
            else:
                done.set_result(None)

        sequenced = adoption.topic.sequenced
        self._commits.submit(MembershipOperation(decide, durable, learns=None if sequenced else learns))
        await done
        _log.critical(
            logfmt(
                f"the order of topic {adoption.topic.name!r} was adopted from the nodes: it continues",
                topic=topic,
                positions=f"[{joined.begin}, {joined.end})",
                projection=adoption.takes.epoch if adoption.takes is not None else NO_EPOCH,
            )
        )
        self._restart(tuple(self._words))

    def _with_projection(self, members: Members, adoption: Adoption) -> Members:
        found, taken = adoption.projection, adoption.takes
        if found is None or taken is None:
            return members
        now = members.view.projection(taken.topic)
        if now is not None and now.epoch != adoption.lost:
            raise Unavailable("the projection has changed meanwhile: try again")
        copied, terms = found.copy.view, found.found.topic.terms
        before = copied.projection(taken.topic)
        if before is None or taken.epoch > before.epoch:  # raised above a seal without a projection
            terms = (*terms, (taken.epoch, self._term()))
        return projection_rules.restored(members, taken, copied.streams_of(taken.topic), copied.nodes, terms)


def _replicas(state: RepositoryState) -> dict[LogStreamID, tuple[NodeID, ...]]:
    return {stream.log_stream: stream.replicas for stream in state.streams.values()}


def _too_many() -> Unavailable:
    return Unavailable("too many requests wait for the nodes to report: try again later")
