"""ProjectionService: the RPC of the repository for projections and sequencers.

A projection takes effect once a node of each of its chains has a copy on disk: a store that is rolled back to an older state may
lose it after clients have acted on it, and then the nodes are asked for it (docs/decisions/0021).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from varlog.metarepo.membership import projection_rules as rules
from varlog.metarepo.membership.leases import Leases
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.ordering.commit_loop import CommitLoop, Facts, MembershipOperation
from varlog.metarepo.recovery.witnesses import AskNode
from varlog.metarepo.state import RepositoryState
from varlog.model.errors import Unavailable, VarlogError
from varlog.model.ids import NodeID, TopicID
from varlog.model.projection import Projection, Proposal
from varlog.rpc import messages as m
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import Message
from varlog.rpc.transport import Call
from varlog.runtime.fair_places import FairPlaces
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

# The maximum number of proposals that wait for leases.
PROPOSALS_WAITING_MAX: Final = 1_000
# A node that does not store the next projection within this time counts as unable to.
KEEP_S: Final = 2.0

_log = get_logger("metarepo")


class ProjectionService:
    """A part of RepositoryService: `expected` raises if the term answers no more."""

    def __init__(
        self,
        state: RepositoryState,
        commits: CommitLoop,
        leases: Leases,
        expected: Callable[[Call | None], Call],
        when_reported: Callable[[Call, Callable[[], None]], None],
        term: Callable[[], int],
        ask: AskNode,
        tasks: Tasks,
    ) -> None:
        self._state = state
        self._commits = commits
        self._leases = leases
        self._expected = expected
        self._when_reported = when_reported
        self._term = term
        self._ask = ask
        self._tasks = tasks
        self._waiting: FairPlaces[Call, Call] = FairPlaces()
        # Per topic, one proposal at a time is stored by nodes and then put into effect: of two that a node stores, the later one
        # counts.
        self._turns: dict[TopicID, asyncio.Lock] = {}
        self._serial = 0  # serial number of the newest proposal sent to nodes

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(m.ProposeProjection, self._propose)
        dispatcher.on(m.RenewSequencer, self._renew)

    def stop(self, error: Unavailable) -> None:
        """Fail the proposals that wait for a lease."""
        waiting, self._waiting = self._waiting, FairPlaces()
        for call in waiting:
            call.fail(error)

    def _propose(self, call: Call | None, request: m.ProposeProjection, payload: bytearray) -> None:
        """Not before the nodes have reported: one of them may know a newer projection."""
        call = self._expected(call)
        self._when_reported(call, lambda: self._accept(call, request))

    def _accept(self, call: Call, request: m.ProposeProjection) -> None:
        """R-SEQ-10. An invalid proposal is refused before any lease is affected; it is checked again once all leases have ended."""
        proposed, sealed = request.projection, dict(request.sealed)
        before = self._state.members
        if rules.accept(before, proposed, sealed) is before:
            call.reply(m.ProposeProjectionReply(proposed))
            return
        left = self._waiting.make_room(call.connection, PROPOSALS_WAITING_MAX)
        if left is None:
            raise _too_many()
        for other in left:
            other.fail(_too_many())
        handover = rules.handover(before.view.projection(proposed.topic), proposed, sealed)

        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            if (why := self._state.distrusted.get(proposed.topic)) is not None:
                raise Unavailable(f"no projection of topic {proposed.topic} is made: {why}")
            return rules.accept(members, proposed, sealed, self._term()), m.ProposeProjectionReply(proposed)

        made = asyncio.Event()

        def decided(answer: Message | BaseException) -> None:
            made.set()
            self._leases.handed_over(handover)
            if isinstance(answer, BaseException):
                call.fail(answer)
            else:
                _log.info(
                    logfmt("projection", topic=proposed.topic, epoch=proposed.epoch, begin=proposed.begin)
                )
                call.reply(answer)

        async def make() -> None:
            refusal: VarlogError | None = None
            async with self._turns.setdefault(proposed.topic, asyncio.Lock()):
                try:
                    if rules.accept(self._state.members, proposed, sealed) is not self._state.members:
                        await self._kept_by_chains(proposed)
                except VarlogError as error:
                    refusal = error
                if self._waiting.pop(call, None) is None:
                    self._leases.handed_over(handover)  # it was displaced by another, and answered
                    return
                try:
                    if refusal is not None:
                        raise refusal
                    self._commits.submit(MembershipOperation(decide, decided, client=call.connection))
                except VarlogError as error:
                    decided(error)
                await made.wait()

        def over() -> None:
            _ = self._tasks.spawn(f"projection/{proposed.topic}", make())

        self._waiting.put(call, call.connection, call)
        self._leases.hand_over(handover, over)

    async def _kept_by_chains(self, proposed: Projection) -> None:
        """Wait until a node of each chain has stored the proposal. Raises Unavailable if no node of some chain has. A node
        without a session cannot get a lease either, so that chain would not serve for long."""
        self._serial += 1
        request = m.KeepProjection(Proposal(self._term(), self._serial, proposed))
        kept: dict[NodeID, None] = {}
        changed = asyncio.Event()

        async def keep(node: NodeID) -> None:
            try:
                await self._ask(node, request)
                kept[node] = None
            except VarlogError as error:
                _log.info(
                    logfmt(
                        "a node did not store the next projection", topic=proposed.topic, node=node, why=error
                    )
                )
            del asked[node]
            changed.set()

        nodes = dict.fromkeys(node for chain in proposed.chains for node in chain.nodes)
        asked = {
            node: self._tasks.spawn(f"keep projection/{proposed.topic}/{node}", keep(node)) for node in nodes
        }
        lacking = list(proposed.chains)
        try:
            async with asyncio.timeout(KEEP_S):
                while lacking and asked:
                    await changed.wait()
                    changed.clear()
                    lacking = [chain for chain in lacking if not any(node in kept for node in chain.nodes)]
        except TimeoutError:
            pass
        if lacking:
            raise Unavailable(
                f"no projection of topic {proposed.topic} is made: none of the nodes {list(lacking[0].nodes)} of log stream "
                f"{lacking[0].log_stream} keeps it for the metadata repository"
            )

    def _renew(self, call: Call | None, request: m.RenewSequencer, payload: bytearray) -> None:
        """R-SEQ-13. Not before the nodes have reported: another sequencer may have taken over in a projection that only they
        know."""
        call = self._expected(call)
        self._when_reported(call, lambda: self._grant(call, request))

    def _grant(self, call: Call, request: m.RenewSequencer) -> None:
        """Grant a lease. A sequencer that is registered already needs no commit."""
        sequencer, stamp = request.sequencer, request.stamp
        if sequencer in self._state.view.sequencers:
            call.reply(self._leases.renewed(sequencer, stamp))
            return

        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            return rules.register_sequencer(members, sequencer), m.Done()

        def registered(answer: Message | BaseException) -> None:
            if isinstance(answer, BaseException):
                call.fail(answer)
            else:
                _log.info(logfmt("sequencer registered", address=sequencer.address))
                call.reply(self._leases.renewed(sequencer, stamp))

        self._commits.submit(MembershipOperation(decide, registered, client=call.connection))


def _too_many() -> Unavailable:
    return Unavailable(
        "too many concurrent proposals of projections, and this one was not accepted: try again later"
    )
