"""Projections and leases at a real repository, in virtual time: only nodes that lose a role are waited for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.metarepo.helpers import ScriptedNode, World, settle, until, world
from varlog.metarepo.membership.projection_service import KEEP_S
from varlog.metarepo.ordering import commit_loop
from varlog.model.cluster import Ordering, StreamState
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed, ProjectionConflict, Unavailable
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.limits import LEASE_S
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, SequencerID
from varlog.reconfiguration.rules import SealAnswer, Wish, first_projection, next_projection
from varlog.rpc import messages as m
from varlog.runtime.disk import OsDisk
from varlog.runtime.environment import Environment
from varlog.runtime.worker import ThreadWorker
from varlog.testing.sim.core.loop import run_simulated as run_virtual

NODES = (NodeID(1), NodeID(2), NodeID(3))
SEQUENCER, OTHER = SequencerID("s1:1", 1), SequencerID("s2:1", 2)
# A lease here, with what both clocks may drift; never much longer.
LEASE_MAX_S = LEASE_S * 1.2


class LoopClock:
    """The loop's own time."""

    def wall_us(self) -> int:
        return self.steady_us()

    def steady_us(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e6)

    def monotonic_us(self) -> int:
        return self.steady_us()


def run(body: Coroutine[Any, Any, None]) -> None:
    async def within_time() -> None:
        async with asyncio.timeout(600):
            await body

    run_virtual(within_time())


class Sequenced:
    """A world of three nodes with one sequenced topic of one stream, in its first epoch."""

    def __init__(self, made: World) -> None:
        self.world = made
        self.topic = TopicID(0)
        self.log_stream = LogStreamID(0)

    async def begin(self) -> None:
        ask = self.world.ask
        self.topic = (await ask(m.RegisterTopic("log", Ordering.SEQUENCED), m.TopicReply)).topic.topic
        self.log_stream = (await ask(m.NewLogStreamID(), m.NewLogStreamIDReply)).log_stream
        for node in self.nodes:
            node.hold_unit(self.log_stream)
        await ask(m.RegisterLogStream(self.topic, self.log_stream, NODES), m.StreamReply)
        for sequencer in (SEQUENCER, OTHER):
            await self.renew(sequencer)
        sealed = {self.log_stream: dict.fromkeys(NODES, SealAnswer(LLSN(0)))}
        first = first_projection(self.topic, GLSN(1), 16, {self.log_stream: NODES}, sealed, SEQUENCER)
        self.seal(1, *NODES)
        await self.propose(first, {self.log_stream: NODES})

    @property
    def nodes(self) -> list[ScriptedNode]:
        return list(self.world.nodes.values())

    def seal(self, epoch: int, *nodes: int) -> None:
        for node in nodes:
            self.world.nodes[node].hold_unit(self.log_stream, epoch)

    async def renew(self, sequencer: SequencerID, stamp: int = 5) -> m.LeaseReply:
        return await self.world.ask(m.RenewSequencer(sequencer, stamp), m.LeaseReply)

    async def propose(
        self, found: Projection, sealed: Mapping[LogStreamID, tuple[NodeID, ...]]
    ) -> Projection:
        request = m.ProposeProjection(found, tuple(sealed.items()))
        return (await self.world.ask(request, m.ProposeProjectionReply)).projection

    async def present(self) -> Projection:
        found = (await self.world.view()).projection(self.topic)
        assert found is not None
        return found

    async def reconfigure(self, *sealed: int, sequencer: SequencerID = SEQUENCER) -> float:
        """The next projection by those who were sealed; how long that took."""
        begun = asyncio.get_running_loop().time()
        now = await self.present()
        nodes = tuple(map(NodeID, sealed))
        self.seal(now.epoch + 1, *sealed)
        answers = {self.log_stream: dict.fromkeys(nodes, SealAnswer(LLSN(0)))}
        await self.propose(next_projection(now, answers, Wish(), sequencer), {self.log_stream: nodes})
        return asyncio.get_running_loop().time() - begun

    async def lease(self, number: int, stamp: int) -> m.LeaseReply:
        """What a node is answered that asks now."""
        node = self.world.nodes[number]
        node.leases.clear()
        node.ask_lease(stamp)
        await until(lambda: bool(node.leases))
        return node.leases[0]

    async def over(self) -> None:
        """Every lease that was given is over."""
        await asyncio.sleep(2 * LEASE_MAX_S)


@asynccontextmanager
async def sequenced() -> AsyncIterator[Sequenced]:
    environment = Environment(LoopClock(), random.Random(1), OsDisk(), ThreadWorker)
    async with world(1, 2, 3, environment=environment) as made:
        found = Sequenced(made)
        await found.begin()
        yield found


def test_a_projection_is_in_the_view_and_survives_a_restart() -> None:
    """R-SEQ-3."""

    async def body() -> None:
        async with sequenced() as found:
            before = await found.present()
            assert await found.propose(before, {}) == before, "asked again, after an answer that was lost"
            await found.world.stop_repository()
            await found.world.start_repository()
            view = await found.world.view()
            assert view.projections == (before,)
            assert view.sequencers == (SEQUENCER, OTHER)
            assert [stream.state for stream in view.streams] == [StreamState.RUNNING]

    run(body())


def test_a_new_projection_reaches_followers_of_the_view_immediately() -> None:
    async def body() -> None:
        async with sequenced() as found:
            revision = (await found.world.view()).revision
            waiting = asyncio.ensure_future(found.world.ask(m.GetView(revision, 30.0), m.GetViewReply))
            await found.reconfigure(1, 2, 3)
            projection = (await waiting).view.projection(found.topic)
            assert projection is not None
            assert projection.epoch == 2

    run(body())


def test_where_all_were_sealed_nobody_is_waited_for() -> None:
    async def body() -> None:
        async with sequenced() as found:
            for node in NODES:
                await found.lease(node, 100)
            assert await found.reconfigure(1, 2, 3) == 0.0

    run(body())


@pytest.mark.parametrize("reached", [False, True])
def test_an_unsealed_node_is_waited_for_until_its_lease_is_over(reached: bool) -> None:
    """R-SEQ-13: cut off from everybody, or hanging. Its lease was asked for half a lease ago."""

    async def body() -> None:
        async with sequenced() as found:
            await found.over()
            await found.lease(1, 100)
            await asyncio.sleep(LEASE_S / 2)
            dead = found.world.nodes[1]
            dead.obeys = False
            if not reached:
                await dead.stop()
            took_s = await found.reconfigure(2, 3)
            assert LEASE_S / 2 <= took_s <= LEASE_MAX_S - LEASE_S / 2

    run(body())


def test_an_unsealed_node_in_session_is_sealed_by_the_repository() -> None:
    """One client is cut off from a node that everybody else reaches: that costs no pause."""

    async def body() -> None:
        async with sequenced() as found:
            await found.lease(1, 100)
            assert await found.reconfigure(2, 3) < 0.01
            assert found.world.nodes[1].units[found.log_stream].epoch == 2

    run(body())


def test_while_it_is_waited_for_a_lease_does_not_grow() -> None:
    async def body() -> None:
        async with sequenced() as found:
            await found.over()
            node = found.world.nodes[1]
            node.obeys = False
            await found.lease(1, 100)
            proposing = asyncio.ensure_future(found.reconfigure(2, 3))
            await asyncio.sleep(LEASE_S / 4)
            answer = await found.lease(1, 350)
            assert (answer.stamp, answer.lease_s) == (100, LEASE_S), "returned again as it was"
            assert await proposing < LEASE_MAX_S
            behind = await found.lease(1, 2_000)
            assert (behind.stamp, behind.orders[0].epoch) == (100, 2), "and not before it is in the new epoch"
            found.seal(2, 1)
            assert (await found.lease(1, 3_000)).stamp == 3_000

    run(body())


def test_a_node_that_reports_nothing_of_its_unit_cannot_delay_a_projection() -> None:
    """Its unit is frozen, say, or lost: it asks on and on, and its lease ends all the same."""

    async def body() -> None:
        async with sequenced() as found:
            await found.over()
            node = found.world.nodes[1]
            node.units.clear()
            await found.lease(1, 100)
            proposing = asyncio.ensure_future(found.reconfigure(2, 3))
            for stamp in range(200, 1_200, 100):
                await asyncio.sleep(LEASE_S / 10)
                assert (await found.lease(1, stamp)).stamp == 100
            assert await proposing < LEASE_MAX_S
            assert (await found.lease(1, 2_000)).stamp == 2_000

    run(body())


def test_a_projection_is_made_once_a_node_of_its_chain_keeps_it() -> None:
    """Law 3: clients act by it as soon as it exists, and the store may go back in time. One node is enough."""

    async def body() -> None:
        async with sequenced() as found:
            for node in found.nodes:
                node.keeps = False
            with pytest.raises(Unavailable, match=r"none of the nodes \[1, 2, 3\] of log stream 1 keeps it"):
                await found.reconfigure(*NODES)
            assert (await found.present()).epoch == 1
            found.world.nodes[2].keeps = True
            assert await found.reconfigure(*NODES) < KEEP_S
            made = await found.present()
            assert made.epoch == 2 and found.world.nodes[2].proposed[-1].projection == made
            for node in found.nodes:
                serials = [(one.term, one.serial) for one in node.proposed]
                assert serials == sorted(set(serials)) and len(serials) == 3

    run(body())


def test_a_proposal_that_comes_again_or_too_late_is_not_kept_a_second_time() -> None:
    async def body() -> None:
        async with sequenced() as found:
            now = await found.present()
            sealed = {found.log_stream: NODES}
            assert await found.propose(now, sealed) == now
            found.seal(2, *NODES)
            answers = {found.log_stream: dict.fromkeys(NODES, SealAnswer(LLSN(0)))}
            following = next_projection(now, answers, Wish(), SEQUENCER)
            without = next_projection(
                now, {found.log_stream: {node: SealAnswer(LLSN(0)) for node in NODES[:2]}}, Wish(), SEQUENCER
            )
            made, refused = await asyncio.gather(
                found.propose(following, sealed),
                found.propose(without, {found.log_stream: NODES}),
                return_exceptions=True,
            )
            assert made == following and isinstance(refused, ProjectionConflict)
            assert [one.projection.epoch for one in found.world.nodes[1].proposed] == [1, 2]

    run(body())


def test_a_node_that_comes_back_gets_no_lease_in_an_epoch_that_is_over() -> None:
    """Also for a unit that is no member any more: clients that missed the change may ask it."""

    async def body() -> None:
        async with sequenced() as found:
            await found.over()
            back = found.world.nodes[1]
            back.obeys = False
            await found.reconfigure(2, 3)
            now = await found.present()
            chain = now.chain(found.log_stream)
            left = Projection(
                now.topic,
                Epoch(3),
                now.begin,
                now.ranges,
                (Chain(chain.log_stream, chain.nodes),),
                SEQUENCER,
            )
            await found.propose(left, {found.log_stream: chain.nodes})
            answer = await found.lease(1, 100)
            assert (answer.lease_s, answer.orders) == (
                0.0,
                (m.UnitOrder(found.log_stream, Epoch(3), LLSN(1)),),
            )
            found.seal(3, 1)
            assert (await found.lease(1, 200)).lease_s == LEASE_S

    run(body())


def test_the_only_unit_of_a_chain_learns_that_there_is_no_other() -> None:
    """It has nobody to be compared with after a restart; one that has waits for that."""

    async def body() -> None:
        async with sequenced() as found:
            await found.over()
            assert [order.alone for order in (await found.lease(1, 100)).orders] == [False]
            await found.reconfigure(2)
            found.seal(2, 1)
            alone = [(await found.lease(node, 200)).orders[0].alone for node in (1, 2)]
            assert alone == [False, True]

    run(body())


def test_a_new_term_honours_leases_that_it_has_not_granted() -> None:
    async def body() -> None:
        async with sequenced() as found:
            await found.over()
            found.world.nodes[1].obeys = False
            await found.world.stop_repository()
            await found.world.start_repository()
            took_s = await found.reconfigure(2, 3)
            assert LEASE_S <= took_s <= LEASE_MAX_S

    run(body())


def test_a_stamp_of_an_earlier_session_is_never_echoed() -> None:
    """A machine that was started again counts from elsewhere: an old stamp would be a lease without end."""

    async def body() -> None:
        async with sequenced() as found:
            node = found.world.nodes[1]
            node.obeys = False
            await found.lease(1, 10**15)
            node.drop_session()
            await asyncio.sleep(1)
            assert len(node.terms) == 2, "the session is a new one"
            found.seal(0, 1)
            behind = await found.lease(1, 100)
            assert (behind.stamp, behind.lease_s) == (100, 0.0)

    run(body())


def test_a_sequencer_is_replaced_only_when_its_lease_is_over() -> None:
    """R-SEQ-13. After that it learns of the epoch before it may answer again."""

    async def body() -> None:
        async with sequenced() as found:
            await found.over()
            assert (await found.renew(SEQUENCER)).lease_s == LEASE_S
            proposing = asyncio.ensure_future(found.reconfigure(1, 2, 3, sequencer=OTHER))
            await asyncio.sleep(LEASE_S / 4)
            assert (await found.renew(SEQUENCER)).lease_s == 0.0
            assert (await found.renew(OTHER)).lease_s == LEASE_S
            assert LEASE_S <= await proposing <= LEASE_MAX_S
            again = await found.renew(SEQUENCER)
            assert (again.lease_s, again.topics) == (LEASE_S, ((found.topic, Epoch(2)),))

    run(body())


def test_of_two_proposals_that_wait_for_the_same_lease_the_first_is_accepted() -> None:
    async def body() -> None:
        async with sequenced() as found:
            await found.over()
            found.world.nodes[1].obeys = False
            await found.lease(1, 100)
            one = asyncio.ensure_future(found.reconfigure(2, 3))
            await asyncio.sleep(0)
            other = asyncio.ensure_future(found.reconfigure(2))
            await asyncio.wait([one, other])
            assert one.exception() is None
            assert isinstance(other.exception(), ProjectionConflict)
            assert (await found.present()).chain(found.log_stream).nodes == (NodeID(2), NodeID(3))

    run(body())


def test_waiting_requests_fail_when_the_term_ends() -> None:
    async def body() -> None:
        async with sequenced() as found:
            await found.lease(1, 100)
            found.world.nodes[1].obeys = False
            proposing = asyncio.ensure_future(found.reconfigure(2, 3))
            await asyncio.sleep(LEASE_S / 4)
            await found.world.stop_repository()
            with pytest.raises(Unavailable):
                await proposing

    run(body())


# --- Trims -----------------------------------------------------------------------------------------------------------------


def test_a_trim_is_sent_immediately_and_answered_when_all_have_applied_it() -> None:
    """R-TRIM-1. Which position is the newest, only the sequencer knows: the client has asked it."""

    async def body() -> None:
        async with sequenced() as found:
            for node in NODES:
                await found.lease(node, 100)
            begun = asyncio.get_running_loop().time()
            await found.world.ask(m.TrimTopic(found.topic, GLSN(7)), m.Done)
            assert asyncio.get_running_loop().time() - begun < 0.01
            assert [node.units[found.log_stream].low for node in found.nodes] == [8, 8, 8]
            tail = await found.world.ask(m.GetTail(found.topic), m.GetTailReply)
            assert tail.trimmed == 7

    run(body())


def test_a_trim_waits_for_a_node_that_does_not_apply_it_until_its_lease_ends() -> None:
    """And such a one gets no lease before it has: nobody reads from it what was trimmed (law 9)."""

    async def body() -> None:
        async with sequenced() as found:
            await found.over()
            found.world.nodes[3].obeys = False
            for node in NODES:
                await found.lease(node, 100)
            begun = asyncio.get_running_loop().time()
            await found.world.ask(m.TrimTopic(found.topic, GLSN(7)), m.Done)
            assert LEASE_S <= asyncio.get_running_loop().time() - begun <= LEASE_MAX_S
            assert (await found.lease(3, 900)).stamp == 100
            found.world.nodes[3].obeys = True
            await found.lease(3, 950)
            await until(lambda: found.world.nodes[3].units[found.log_stream].low == 8)
            await settle()
            assert (await found.lease(3, 999)).stamp == 999

    run(body())


# --- Beside committed topics ------------------------------------------------------------------------------------------------


def test_writers_need_a_primary_and_readers_do_not() -> None:
    async def body() -> None:
        async with sequenced() as found:
            with pytest.raises(PreconditionFailed, match="--ordering committed"):
                await found.world.ask(m.BeginWrite(found.topic, "w", 1, (found.log_stream,)), m.WriterReply)
            readers = await found.world.ask(m.SetReader(found.topic, "r", GLSN(40)), m.GetReadersReply)
            assert readers.readers[0].position == 40

    run(body())


def test_committed_topics_are_ordered_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over a new base, and a restart: nothing of a sequenced topic is in the order."""
    monkeypatch.setattr(commit_loop, "CUTS_PER_BASE", 2)

    async def body() -> None:
        async with sequenced() as found:
            made = found.world
            stream = await made.add_stream(1, 2, topic="committed")
            for end in (3, 5, 9, 12):
                for number in (1, 2):
                    made.nodes[number].report(stream.log_stream, end)
                await until(lambda end=end: made.nodes[1].replica(stream.log_stream).committed_end == end)  # type: ignore[misc]
            await made.stop_repository()
            await made.start_repository()
            assert await made.tail(stream.topic) == 11
            assert (await found.present()).epoch == 1

    run(body())
