"""ReplicatedStateMachine on a real log, in either ordering: replicas agree, begin from snapshots, pass holes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from varlog.client.log import Log
from varlog.client.retry import Backoff
from varlog.client.sequenced.projections import Projections
from varlog.client.sequenced.tokens import TokenClient
from varlog.embedded import EmbeddedCluster
from varlog.model.cluster import Ordering
from varlog.model.lsn import GLSN
from varlog.recipes.core.directory_snapshots import DirectorySnapshots
from varlog.recipes.core.replicated import ReplicatedStateMachine
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.core.topic_snapshots import TopicSnapshots
from varlog.runtime.environment import system_environment

DEADLINE_S = 60
Connect = Callable[[str], Awaitable[Log]]


class Positions:
    """A machine that remembers where each command was."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes]] = []

    def apply(self, at: GLSN, command: bytes) -> GLSN:
        self.taken.append((at, command))
        return at

    def snapshot(self) -> bytes:
        return b"\n".join(b"%d %b" % each for each in self.taken)

    def restore(self, snapshot: bytes) -> None:
        words = [line.split(b" ") for line in snapshot.split(b"\n") if line]
        self.taken = [(int(at), command) for at, command in words]


def on_a_log(
    path: Path, ordering: Ordering, body: Callable[[Connect, EmbeddedCluster], Awaitable[None]]
) -> None:
    """Each log is one of its own, as of a process of its own."""

    async def work() -> None:
        cluster = EmbeddedCluster(path / "cluster", system_environment(synced=False), sync=False)
        logs: list[Log] = []

        async def connect(topic: str) -> Log:
            logs.append(await cluster.connect(topic, streams=2, ordering=ordering))
            return logs[-1]

        async with asyncio.timeout(DEADLINE_S):
            await cluster.start()
            try:
                await body(connect, cluster)
            finally:
                for log in logs:
                    await log.close()
                await cluster.stop()

    asyncio.run(work())


@pytest.mark.parametrize("ordering", Ordering)
def test_replicas_apply_the_same_commands_at_the_same_positions(ordering: Ordering, tmp_path: Path) -> None:
    """R-USE-2: a replicated state machine, in either ordering."""

    async def body(connect: Connect, cluster: EmbeddedCluster) -> None:
        opened = [
            await ReplicatedStateMachine.open(await connect("t"), Positions(), name="p") for _ in range(3)
        ]
        calls = [
            replica.execute(b"%d-%d" % (number, count))
            for count in range(50)
            for number, replica in enumerate(opened)
        ]
        results = await asyncio.gather(*calls)
        assert len(set(results)) == len(calls)
        for replica in opened:
            await replica.catch_up()
            assert replica.machine.taken == opened[0].machine.taken
            await replica.close()
        assert len(opened[0].machine.taken) == len(calls)

    on_a_log(tmp_path, ordering, body)


@pytest.mark.parametrize("kind", ["directory", "topic"])
@pytest.mark.parametrize("ordering", Ordering)
def test_a_replica_begins_from_a_snapshot_of_a_trimmed_topic(
    ordering: Ordering, kind: str, tmp_path: Path
) -> None:
    async def body(connect: Connect, cluster: EmbeddedCluster) -> None:
        kept: Snapshots = DirectorySnapshots(tmp_path / "snapshots")
        if kind == "topic":
            kept = TopicSnapshots(await connect("snapshots"))
        log = await connect("t")
        async with ReplicatedStateMachine.open(log, Positions(), name="p", snapshots=kept) as one:
            for number in range(10):
                await one.execute(b"%d" % number)
            position = await one.checkpoint(trim=True)
            assert await log.trimmed() == position == 10
            await one.execute(b"last")
            async with ReplicatedStateMachine.open(
                await connect("t"), Positions(), name="p", snapshots=kept
            ) as two:
                assert two.machine.taken == one.machine.taken
                assert len(two.machine.taken) == 11
                await two.execute(b"more")
        assert [(reader.name, reader.position) for reader in await log.readers()] == [("p", 10)]

    on_a_log(tmp_path, ordering, body)


def test_a_position_at_the_tail_whose_appender_is_gone_holds_nobody_up(tmp_path: Path) -> None:
    """R-SEQ-8: a sequencer granted it to a client that never wrote. Nothing follows that would show that it is missing."""

    async def body(connect: Connect, cluster: EmbeddedCluster) -> None:
        log = await connect("t")
        async with ReplicatedStateMachine.open(log, Positions(), name="p") as replica:
            await replica.execute(b"a")
            dying = await connect("t")
            projections, backoff = Projections(dying._routing), Backoff(system_environment(), 10.0)
            await TokenClient(dying._routing, projections).request(await projections.get(backoff), 1, backoff)
            assert await log.tail() == 2
            assert await replica.catch_up() == 2
            assert await replica.execute(b"b") == 3

    on_a_log(tmp_path, Ordering.SEQUENCED, body)
