"""A sequencer and a real repository, in virtual time: it answers while it has a lease, where it is named."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from tests.metarepo.helpers import ScriptedNode, until
from varlog.metarepo.config import WITNESS_GRACE_S, MetadataRepositoryConfig
from varlog.metarepo.repository import MetadataRepository
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.cluster import ClusterView, Ordering
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    InvalidRequest,
    NoLease,
    NotInCluster,
    NotSequencing,
    StartupError,
    Unavailable,
)
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.limits import LEASE_S
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection
from varlog.reconfiguration.rules import SealAnswer, Wish, first_projection, next_projection
from varlog.rpc import messages as m
from varlog.rpc.memory import MemoryTransport
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import Call
from varlog.runtime.disk import OsDisk
from varlog.runtime.environment import Environment
from varlog.runtime.worker import ThreadWorker
from varlog.sequencer.sequencer import Sequencer, SequencerConfig
from varlog.testing.sim.core.loop import run_simulated as run_virtual

M = TypeVar("M", bound=m.Message)

CLUSTER = ClusterID(1)
REPOSITORY = "repository"
NODE, LS, TOPIC = NodeID(1), LogStreamID(1), TopicID(1)


class LoopClock:
    """The loop's own time plus `ahead_us`, for which the process was paused."""

    ahead_us = 0

    def wall_us(self) -> int:
        return self.steady_us()

    def steady_us(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e6) + self.ahead_us

    def monotonic_us(self) -> int:
        return self.steady_us()


def run(body: Coroutine[Any, Any, None]) -> None:
    async def within_time() -> None:
        async with asyncio.timeout(600):
            await body

    run_virtual(within_time())


class World:
    """A repository with one sequenced topic on one node, and sequencers."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self.clock = LoopClock()
        self.metadata = MemoryMetadata()
        self._chance = random.Random(1)
        self.repository = self._repository()
        self.node = ScriptedNode(self.transport, NODE, "node")
        self.sequencers: list[Sequencer] = []
        self._pool = ConnectionPool(self.transport)

    def _environment(self, clock: LoopClock | None = None) -> Environment:
        return Environment(clock or LoopClock(), self._chance, OsDisk(), ThreadWorker)

    def _repository(self) -> MetadataRepository:
        config = MetadataRepositoryConfig(CLUSTER, REPOSITORY)
        return MetadataRepository(config, MemoryStore(self.metadata), self._environment(), self.transport)

    async def restart_repository(self) -> None:
        await self.repository.stop()
        self.repository = self._repository()
        await self.repository.start()

    async def start_sequencer(self, address: str = "sequencer") -> Sequencer:
        config = SequencerConfig(CLUSTER, REPOSITORY, address)
        made = Sequencer(config, self._environment(self.clock), self.transport)
        await made.start()
        self.sequencers.append(made)
        return made

    async def ask(self, address: str, request: m.Message, expected: type[M]) -> M:
        answer, _ = await self._pool.call(address, request, timeout_s=20)
        assert isinstance(answer, expected), answer
        return answer

    async def view(self) -> ClusterView:
        return (await self.ask(REPOSITORY, m.GetView(), m.GetViewReply)).view

    async def tokens(self, sequencer: Sequencer, epoch: int, count: int) -> int:
        request = m.NextTokens(TOPIC, Epoch(epoch), count)
        return (await self.ask(sequencer.address, request, m.NextTokensReply)).first

    async def name(self, sequencer: Sequencer, newest: int = 0) -> Projection:
        """The next projection, which names this sequencer."""
        now = (await self.view()).projection(TOPIC)
        sealed = {LS: {NODE: SealAnswer(LLSN(newest))}}
        if now is None:
            proposed = first_projection(TOPIC, GLSN(1), 16, {LS: (NODE,)}, sealed, sequencer.me)
        else:
            proposed = next_projection(now, sealed, Wish(), sequencer.me)
        request = m.ProposeProjection(proposed, ((LS, (NODE,)),))
        return (await self.ask(REPOSITORY, request, m.ProposeProjectionReply)).projection

    async def close(self) -> None:
        await self._pool.close()
        for sequencer in self.sequencers:
            await sequencer.stop()
        await self.repository.stop()
        await self.node.stop()


@asynccontextmanager
async def world() -> AsyncIterator[tuple[World, Sequencer]]:
    made = World()
    try:
        await made.node.start()
        await made.repository.start()
        await made.ask(REPOSITORY, m.RegisterNode(NODE, "node", ()), m.Done)
        await until(lambda: made.node.in_session)
        await made.ask(REPOSITORY, m.RegisterTopic("log", Ordering.SEQUENCED), m.TopicReply)
        await made.ask(REPOSITORY, m.NewLogStreamID(), m.NewLogStreamIDReply)
        await made.ask(REPOSITORY, m.RegisterLogStream(TOPIC, LS, (NODE,)), m.StreamReply)
        sequencer = await made.start_sequencer()
        await sequencer.wait_leased()
        yield made, sequencer
    finally:
        await made.close()


def test_it_registers_itself_and_reports_its_identity() -> None:
    async def body() -> None:
        async with world() as (made, sequencer):
            assert (await made.view()).sequencers == (sequencer.me,)
            answer = await made.ask(sequencer.address, m.GetSequencer(), m.GetSequencerReply)
            assert answer == m.GetSequencerReply(sequencer.me, True)
            revision = (await made.view()).revision
            await asyncio.sleep(10 * LEASE_S)
            assert sequencer.leased
            assert (await made.view()).revision == revision, "renewing a lease is nobody's news"

    run(body())


def test_it_gives_positions_of_the_epoch_it_is_named_in() -> None:
    """R-SEQ-1. It learns of the epoch from the first who asks in it."""

    async def body() -> None:
        async with world() as (made, sequencer):
            with pytest.raises(NotSequencing):
                await made.tokens(sequencer, 1, 1)
            await made.name(sequencer)
            assert [await made.tokens(sequencer, 1, count) for count in (1, 10, 0, 3)] == [1, 2, 12, 12]
            with pytest.raises(NotSequencing) as refused:
                await made.tokens(sequencer, 2, 1)
            assert (refused.value.asked, refused.value.here) == (2, 1)
            await made.name(sequencer)
            assert await made.tokens(sequencer, 2, 0) == 15

    run(body())


def test_many_requests_in_a_new_epoch_share_one_fetch_of_the_view() -> None:
    async def body() -> None:
        async with world() as (made, sequencer):
            await made.name(sequencer)
            firsts = await asyncio.gather(*(made.tokens(sequencer, 1, 2) for _ in range(50)))
            assert sorted(firsts) == list(range(1, 101, 2))

    run(body())


def test_without_the_repository_it_falls_silent_in_time() -> None:
    """R-SEQ-13: and speaks again when the repository is back."""

    async def body() -> None:
        async with world() as (made, sequencer):
            await made.name(sequencer)
            await made.tokens(sequencer, 1, 4)
            await made.repository.stop()
            await asyncio.sleep(LEASE_S / 2)
            assert await made.tokens(sequencer, 1, 1) == 5, "half a lease is left"
            await asyncio.sleep(LEASE_S / 2)
            for count in (0, 1):
                with pytest.raises(NoLease):
                    await made.tokens(sequencer, 1, count)
            assert not (await made.ask(sequencer.address, m.GetSequencer(), m.GetSequencerReply)).leased
            await made.node.stop()
            await made.restart_repository()
            # The storage node is away: it could know of a projection that names another sequencer.
            await asyncio.sleep(WITNESS_GRACE_S / 2)
            assert not sequencer.leased
            await asyncio.sleep(WITNESS_GRACE_S / 2 + 2 * LEASE_S)
            assert await made.tokens(sequencer, 1, 0) == 6, "it is the same start: it counts on"

    run(body())


def test_a_sequencer_that_was_paused_does_not_answer_from_a_stale_epoch() -> None:
    """Its clock advanced in the meantime, and is checked on every request."""

    async def body() -> None:
        async with world() as (made, sequencer):
            await made.name(sequencer)
            assert await made.tokens(sequencer, 1, 1) == 1
            made.clock.ahead_us += int(LEASE_S * 1e6)
            with pytest.raises(NoLease):
                await made.tokens(sequencer, 1, 0)

    run(body())


def test_a_replaced_sequencer_stays_silent_and_its_successor_begins_above_what_was_written() -> None:
    """R-SEQ-2, R-SEQ-13: its next lease reply carries the end of the epoch."""

    async def body() -> None:
        async with world() as (made, sequencer):
            await made.name(sequencer)
            await made.tokens(sequencer, 1, 9)
            heir = await made.start_sequencer("heir")
            await heir.wait_leased()
            await made.name(heir, newest=6)
            for _ in range(8):
                with pytest.raises((NoLease, NotSequencing)):
                    await made.tokens(sequencer, 1, 0)
                await asyncio.sleep(LEASE_S / 4)
            assert sequencer.leased
            with pytest.raises(NotSequencing) as refused:
                await made.tokens(sequencer, 1, 0)
            assert refused.value.here == 2
            assert await made.tokens(heir, 2, 1) == 7

    run(body())


def test_another_start_at_the_same_address_is_another_sequencer() -> None:
    async def body() -> None:
        async with world() as (made, sequencer):
            await made.name(sequencer)
            await made.tokens(sequencer, 1, 9)
            await sequencer.stop()
            again = await made.start_sequencer(sequencer.address)
            assert again.me != sequencer.me
            await again.wait_leased()
            assert (await made.view()).sequencers == (again.me,)
            with pytest.raises(NotSequencing):
                await made.tokens(again, 1, 0)

    run(body())


def test_positions_of_a_topic_that_is_gone_are_given_no_more() -> None:
    async def body() -> None:
        async with world() as (made, sequencer):
            await made.name(sequencer)
            await made.tokens(sequencer, 1, 9)
            await made.ask(REPOSITORY, m.UnregisterTopic(TOPIC), m.Done)
            await asyncio.sleep(LEASE_S)
            with pytest.raises(NotSequencing):
                await made.tokens(sequencer, 1, 1)

    run(body())


def test_a_sequencer_of_another_cluster_stops() -> None:
    """It could never serve: the process ends with the reason."""

    async def body() -> None:
        made = World()

        def refuse(call: Call | None, message: m.Message, payload: bytearray) -> None:
            raise NotInCluster(CLUSTER, ClusterID(2))

        server = await made.transport.serve(REPOSITORY, lambda _: refuse)
        sequencer = await made.start_sequencer()
        assert isinstance(await sequencer.wait_failed(), NotInCluster)
        await made.close()
        await server.close()

    run(body())


def test_a_request_in_a_new_epoch_while_the_repository_is_away_is_refused_with_the_reason() -> None:
    async def body() -> None:
        async with world() as (made, sequencer):
            await made.repository.stop()
            with pytest.raises(Unavailable, match="cannot ask the metadata repository"):
                await made.tokens(sequencer, 1, 1)

    run(body())


def test_what_is_no_request_is_refused_and_what_is_not_for_it_is_named() -> None:
    async def body() -> None:
        async with world() as (made, sequencer):
            await made.name(sequencer)
            with pytest.raises(InvalidRequest):
                await made.tokens(sequencer, 1, -1)
            with pytest.raises(Unavailable, match="is not served by the sequencer"):
                await made.ask(sequencer.address, m.GetView(), m.GetViewReply)

    run(body())


def test_one_that_was_never_started_cannot_fail() -> None:
    async def body() -> None:
        made = World()
        config = SequencerConfig(CLUSTER, REPOSITORY, "sequencer", advertise="elsewhere:1")
        sequencer = Sequencer(config, made._environment(), made.transport)
        assert sequencer.address == "elsewhere:1"
        with pytest.raises(StartupError):
            await sequencer.wait_failed()
        await sequencer.start()
        assert sequencer.me.address == "elsewhere:1"
        await sequencer.stop()

    run(body())
