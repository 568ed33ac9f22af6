"""[A8] CommitLoop: the one task that changes members and order.

Membership operations and a cut become one durable commit; then nodes and callers are notified.

Nothing is applied, answered or pushed before the store's commit returned (law 3: an order that could still be lost was never
assigned). One commit at a time; what arrives meanwhile is gathered for the next one: batching without a timer, and no work when
idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from varlog.metarepo import records
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.ordering.commit_rules import Cut
from varlog.metarepo.ordering.reports import ReportTable
from varlog.metarepo.state import RepositoryState
from varlog.metarepo.store.base import MetadataStore, StoreChange
from varlog.model.cluster import ClusterView
from varlog.model.errors import Unavailable, VarlogError
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.invariant import InvariantBroken
from varlog.model.lsn import GLSN, LLSN, LSN_MAX, NO_GLSN
from varlog.rpc.messages import Message
from varlog.runtime.fair_places import FairPlaces

# After this many cuts the next commit replaces them by a new base: that bounds the store, the memory and the startup time.
CUTS_PER_BASE: Final = 512
# A cut of at least this many rows is followed by a pause, in which reports gather for the next one: see `_gather`.
ROWS_GATHERED_MIN: Final = 256
GATHER_S_MAX: Final = 0.25
# The maximum number of operations per commit, and of waiting operations.
OPERATIONS_PER_COMMIT_MAX: Final = 256
OPERATIONS_WAITING_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Facts:
    """The order as it will be once the commit in progress is durable: the input of membership rules."""

    committed_end: Callable[[LogStreamID], LLSN]
    high_watermark: Callable[[TopicID], GLSN]


Decide = Callable[[Members, Facts], tuple[Members, Message]]
OnCommitted = Callable[[Message | BaseException], None]


@dataclass(frozen=True, slots=True)
class MembershipOperation:
    """One change of the members. `decide` raises a refusal; `done` gets the answer once the change is durable, or the error."""

    decide: Decide
    done: OnCommitted
    seals: LogStreamID | None = None
    # The order that nodes reported, to be stored in place of ours: it needs a commit of its own.
    learns: Callable[[], records.BaseRecord] | None = None
    # The submitter: a connection, or None for the repository itself. Each has a share of the queue.
    client: object = None


_Answer = tuple[OnCommitted, Message | BaseException]


@dataclass(frozen=True, slots=True)
class _Plan:
    changes: list[StoreChange]
    base: records.BaseRecord | None
    cut: Cut | None
    members: Members
    answers: list[_Answer]
    learned: bool = False


class CommitLoop:
    """The owner of all changes. `on_applied(cut, view before)` pushes them; it is called after each commit, before the answers."""

    def __init__(
        self,
        state: RepositoryState,
        reports: ReportTable,
        store: MetadataStore,
        on_applied: Callable[[Cut | None, ClusterView], None],
    ) -> None:
        self._state = state
        self._reports = reports
        self._store = store
        self._on_applied = on_applied
        # In order of arrival, each by a number.
        self._operations: FairPlaces[int, MembershipOperation] = FairPlaces()
        self._submitted = 0
        self._work = asyncio.Event()
        self._waits = True
        self._spent_s = 0.0  # processor time of the newest cut
        self._failed: BaseException | None = None

    def submit(self, operation: MembershipOperation) -> None:
        """Queue `operation`, to be decided and made durable after all earlier ones."""
        if self._failed is not None:
            raise Unavailable(f"the metadata repository has stopped: {self._failed}")
        left = self._operations.make_room(operation.client, OPERATIONS_WAITING_MAX)
        if left is None:
            raise _too_many()
        self._submitted += 1
        self._operations.put(self._submitted, operation.client, operation)
        self._work.set()
        for other in left:
            other.done(_too_many())

    def asleep(self) -> bool:
        """Whether the loop would not examine new reports by itself."""
        return self._waits and not self._work.is_set()

    def wake(self) -> None:
        """Examine new reports: something may be ordered."""
        self._work.set()

    async def run(self) -> None:
        """Run until cancelled, or until the store or a law fails: then the state is unknown, and the term ends."""
        plan: _Plan | None = None
        try:
            while True:
                self._waits = True
                await self._work.wait()
                self._waits = False
                self._work.clear()
                while (plan := self._plan()) is not None:
                    if plan.changes:
                        await self._store.commit(plan.changes)
                    self._apply(plan)
                    if plan.cut is not None and plan.cut.rows >= ROWS_GATHERED_MIN:
                        await self._gather()
        except (Exception, asyncio.CancelledError) as error:
            self._fail(error, plan.answers if plan is not None else [])
            raise

    async def _gather(self) -> None:
        """Pause after a large cut. The cost of a cut depends on its streams, however little is new in each. So after a cut of
        many streams, reports gather for as long as the cut took to make and to send: cuts take at most half of the time. After a
        small one there is no pause."""
        await _sleep(min(self._spent_s, GATHER_S_MAX))

    def _plan(self) -> _Plan | None:
        """The content of the next commit. Changes nothing but the queue."""
        began_s = _now_s()
        plan = self._next_plan()
        self._spent_s = _now_s() - began_s
        return plan

    def _next_plan(self) -> _Plan | None:
        state = self._state
        if self._operations and (learns := self._operations.first.learns) is not None:
            return self._learning(self._operations.pop_first(), learns)
        cut = state.next_cut(self._reports) if self._reports.changed else None
        if cut is None and not self._operations:
            return None
        members, answers = self._decide(cut)
        changes = records.changes_between(state.members, members)
        base = None
        if cut is not None:
            if state.order.cuts_after_base >= CUTS_PER_BASE or state.order.many_rows:
                base = state.base(self._reports)
                changes += records.put_base(base)
            changes.append(records.put_cut(cut))
        return _Plan(changes, base, cut, members, answers)

    def _learning(self, operation: MembershipOperation, learns: Callable[[], records.BaseRecord]) -> _Plan:
        """A plan that replaces the order by one that nodes reported."""
        state = self._state
        try:
            members, answer = operation.decide(state.members, _facts_after(state, None))
            base = learns()
        except (VarlogError, InvariantBroken) as refusal:
            return _Plan([], None, None, state.members, [(operation.done, refusal)])
        changes = records.changes_between(state.members, members) + records.put_base(base)
        return _Plan(changes, base, None, members, [(operation.done, answer)], learned=True)

    def _decide(self, cut: Cut | None) -> tuple[Members, list[_Answer]]:
        """Decide as many waiting operations as fit into one commit. The cut comes first: a seal ends at it."""
        members = self._state.members
        answers: list[_Answer] = []
        if not self._operations:
            return members, answers
        facts = _facts_after(self._state, cut)
        while self._operations and len(answers) < OPERATIONS_PER_COMMIT_MAX:
            operation = self._operations.first
            if operation.learns is not None:
                break
            if operation.seals is not None and self._was_unsealed(operation.seals, members):
                break  # reports since the unseal are ordered first (R-SEAL-3), in a commit of their own
            self._operations.pop_first()
            answer: Message | BaseException
            try:
                members, answer = operation.decide(members, facts)
            except VarlogError as refusal:
                answer = refusal
            answers.append((operation.done, answer))
        return members, answers

    def _was_unsealed(self, log_stream: LogStreamID, members: Members) -> bool:
        before, after = self._state.streams.get(log_stream), members.view.stream(log_stream)
        return before is not None and after is not None and before.state is not after.state

    def _apply(self, plan: _Plan) -> None:
        """Apply a durable plan, and publish it."""
        began_s = _now_s()
        self._apply_plan(plan)
        self._spent_s += _now_s() - began_s

    def _apply_plan(self, plan: _Plan) -> None:
        state = self._state
        before = state.view
        if plan.base is not None and plan.learned:
            state.order.learn(plan.base)
        elif plan.base is not None:
            state.order.rebase(plan.base)
        if plan.cut is not None:
            state.order.apply(plan.cut)
        if plan.members is not state.members:
            state.adopt(plan.members)
        if state.view is not before:
            self._after_view_changed(before)
        if plan.cut is not None or state.view is not before:
            self._on_applied(plan.cut, before)
        for done, answer in plan.answers:
            done(answer)

    def _after_view_changed(self, before: ClusterView) -> None:
        known = {stream.log_stream: stream for stream in before.streams}
        self._reports.keep_only(self._state.streams)
        for log_stream, stream in self._state.streams.items():
            if known.get(log_stream) != stream:
                self._reports.touch(log_stream)  # it may run now, and have waiting reports

    def _fail(self, error: BaseException, undecided: list[_Answer]) -> None:
        self._failed = error = _reason(error)
        waiting, self._operations = self._operations, FairPlaces()
        for done, _ in undecided:
            done(Unavailable(f"the metadata repository failed, and this may or may not be done: {error}"))
        for operation in waiting.values():
            operation.done(Unavailable(f"the metadata repository has stopped: {error}"))


def _too_many() -> Unavailable:
    return Unavailable(
        "the metadata repository has too many changes waiting, and did not make this one: try again later"
    )


def newest_position(members: Members, facts: Facts, topic: TopicID) -> GLSN:
    """The newest position of a topic. A topic created in this very commit has no order yet: it starts above what counts as
    trimmed. The newest position of a sequenced topic is known to its sequencer only: the caller has asked it."""
    found = members.view.topic(topic)
    if found is not None and found.sequenced:
        return GLSN(LSN_MAX)
    return max(facts.high_watermark(topic), found.trimmed if found is not None else NO_GLSN)


_sleep: Final = asyncio.sleep


def _now_s() -> float:
    """The time of the loop's clock: in a simulation, computing takes no time."""
    return asyncio.get_running_loop().time()


def _reason(error: BaseException) -> BaseException:
    """Why the loop ended; a loop cancelled from outside has lost the leadership."""
    return Unavailable("it no longer leads") if isinstance(error, asyncio.CancelledError) else error


def _facts_after(state: RepositoryState, cut: Cut | None) -> Facts:
    if cut is None:
        return Facts(state.order.committed_end, state.order.high_watermark)
    high_watermarks = {part.topic: part.high_watermark for part in cut.topics}
    ends = {log_stream: row.llsn_end for part in cut.topics for log_stream, row in part.rows}

    def committed_end(log_stream: LogStreamID) -> LLSN:
        return ends.get(log_stream) or state.order.committed_end(log_stream)

    def high_watermark(topic: TopicID) -> GLSN:
        return high_watermarks.get(topic) or state.order.high_watermark(topic)

    return Facts(committed_end, high_watermark)
