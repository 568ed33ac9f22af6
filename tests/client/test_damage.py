"""Damaged bytes never reach the application: another replica is read, and the one that served them is notified, without waiting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest

from tests.client.fakes import FakeCluster, run, until
from varlog.client.log import Log
from varlog.client.node_client import REPORTS_MAX
from varlog.model.batch import walk
from varlog.model.errors import CorruptBatch, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.lsn import LLSN
from varlog.rpc.messages import CheckEntries, Fetch, Message, ReadAt
from varlog.rpc.transport import Call

STREAM = LogStreamID(1)


def checks(cluster: FakeCluster) -> list[tuple[str, CheckEntries]]:
    return [(address, message) for address, message in cluster.requests if isinstance(message, CheckEntries)]


def asked(cluster: FakeCluster) -> list[str]:
    """The nodes that got a read of one entry, in order."""
    return [address for address, message in cluster.requests if isinstance(message, ReadAt)]


async def filled(cluster: FakeCluster, count: int = 30) -> Log:
    """Entries b"1", b"2" … of one stream, one or two a batch."""
    await cluster.start()
    log = await cluster.connect()
    at = 1
    while at <= count:
        size = min(1 + at % 2, count + 1 - at)
        await log.append_batch([b"%d" % (at + i) for i in range(size)], log_stream=STREAM)
        at += size
    return log


class CorruptNodes:
    """Makes batches damaged for good on some nodes: (address, LLSN of the batch). Fetches bring them as they are."""

    def __init__(self, cluster: FakeCluster, *rot: tuple[str, int]) -> None:
        self.rot = rot
        cluster._corrupted = self._corrupted  # type: ignore[method-assign]

    def _corrupted(self, address: str, data: bytearray) -> bytearray:
        places = [at + 64 for at, header in walk(data) if (address, header.first_llsn) in self.rot]
        for at in places:
            data[at] ^= 1
        return data


async def subscribed(log: Log, count: int) -> list[bytes]:
    return [entry.data async for entry in log.subscribe(1, count + 1)]


async def as_arrow(log: Log, count: int) -> list[bytes]:
    return [data async for batch in log.arrow(1, count + 1) for data in batch.column("data").to_pylist()]


@pytest.mark.parametrize("read", [subscribed, as_arrow])
def test_every_entry_arrives_once_and_the_damaged_replica_is_notified(
    read: Callable[[Log, int], Awaitable[list[bytes]]],
) -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=3)
        cluster.fetch_bytes_most = 400
        async with await filled(cluster) as log:
            CorruptNodes(cluster, ("node-1", 7), ("node-2", 15), ("node-3", 24))
            assert await read(log, 30) == [b"%d" % glsn for glsn in range(1, 31)]
            await until(lambda: checks(cluster))
        for address, check in checks(cluster):
            bad = {"node-1": 7, "node-2": 15, "node-3": 24}[address]
            assert check.log_stream == STREAM and check.begin <= bad + 1 and bad < check.end

    run(body())


def test_replicas_that_are_damaged_near_each_other_have_everything_together(seed: int) -> None:
    """Each chunk of either is bad somewhere: batch by batch there is always one that is good."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster, 40) as log:
            firsts = [header.first_llsn for _, header in walk(cluster.streams[STREAM].batches)]
            random = Random(seed)
            CorruptNodes(cluster, *((random.choice(("node-1", "node-2")), llsn) for llsn in firsts))
            assert await subscribed(log, 40) == [b"%d" % glsn for glsn in range(1, 41)]

    run(body())


def test_damage_that_no_replica_is_free_of_is_waited_for_and_never_stepped_over() -> None:
    """Law 4: the subscriber stops before it, and continues when one of them is repaired."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster) as log:
            corrupt = CorruptNodes(cluster, ("node-1", 7), ("node-2", 7))
            entries = log.subscribe(1, 31)
            got = [(await anext(entries)).data for _ in range(6)]
            fetches = len([1 for _, message in cluster.requests if isinstance(message, Fetch)])
            await until(lambda: len(checks(cluster)) >= 2)
            await until(
                lambda: (
                    len([1 for _, message in cluster.requests if isinstance(message, Fetch)]) > fetches + 3
                )
            )
            corrupt.rot = (("node-2", 7),)
            got += [entry.data async for entry in entries]
            assert got == [b"%d" % glsn for glsn in range(1, 31)]

    run(body())


def test_a_point_read_moves_to_another_replica_and_notifies_the_damaged_one() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster) as log:
            await log.read_stream(STREAM, 5)
            first = asked(cluster)[0]
            cluster.spoil[first] = 1
            assert (await log.read_stream(STREAM, 5)).data == b"5"
            await until(lambda: checks(cluster))
        assert checks(cluster) == [(first, CheckEntries(STREAM, LLSN(5), LLSN(6)))]

    run(body())


def test_a_read_that_meets_damage_does_not_turn_the_client_away_from_the_node() -> None:
    """The rest of what it has is sound: its streams are not sealed, and other reads go there as before."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        async with await filled(cluster) as log:
            await log.read(1)
            first = asked(cluster)[0]
            for _ in range(5):
                cluster.fail[first] = [CorruptBatch("a bit flipped on its disk")]
                assert (await log.read(2)).data == b"2"
            cluster.requests.clear()
            await log.read(3)
            assert asked(cluster) == [first]

    run(body())


def test_reports_wait_for_nobody_and_are_few() -> None:
    """Nodes that never answer a report hold up no read, and get no more than a few at a time."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2)
        handle = cluster._handle

        def never_answer(address: str, call: Call, message: Message, payload: bytearray) -> None:
            if not isinstance(message, CheckEntries):
                handle(address, call, message, payload)

        cluster._handle = never_answer  # type: ignore[method-assign]
        async with await filled(cluster) as log:
            cluster.spoil = {"node-1": 9999, "node-2": 9999}
            for llsn in range(1, 21):
                with pytest.raises(Unavailable):
                    await log.read_stream(STREAM, llsn, timeout_s=0.01)
            cluster.spoil = {}
            assert (await log.read_stream(STREAM, 3)).data == b"3"
            assert 0 < len(checks(cluster)) <= REPORTS_MAX

    run(body())
