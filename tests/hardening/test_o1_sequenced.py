"""O1 in sequenced topics: goodput stays at the capacity under overload.

Twice the load left an eighth of what could be written in time. Many clients, none of which has a queue, took tokens and
made one at the head of a chain. All was written, each a moment too late.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from tests.client.fakes import run
from tests.client.fakes import until as client_until
from tests.client.sequenced.fakes import SequencedCluster as ScriptedCluster
from tests.hardening.open_loop import offer_appends
from tests.manager.sequenced_cluster import SequencedCluster
from tests.manager.sim_cluster import TOPIC
from tests.storagenode.sequenced.chain import STREAM, Chain, batch_at, entries_in, run_chain, until
from varlog.client.log import Log
from varlog.model.batch import junk, parse_header
from varlog.model.cluster import Ordering
from varlog.model.epoch import Epoch
from varlog.model.errors import AlreadyWritten, Overloaded
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import Message, NextTokens, WriteUnit
from varlog.runtime.metrics import TrafficMeter
from varlog.storage.sequenced.page_store import PageRef
from varlog.storagenode.sequenced import unit as unit_module
from varlog.storagenode.sequenced import writer as unit_writer_module
from varlog.storagenode.sequenced.writer import UnitWrite, UnitWriter
from varlog.testing.sim.core.loop import run_simulated as run_in_virtual_time

DATA = bytes(1000)
TIMEOUT_S = 1.0
# About this many appends are written each second, by disks that write one group of this many bytes in this time.
WRITTEN_PER_S = 40.0
ONE_NODE, CHAIN = (4096, 0.075), (1200, 0.025)
CLIENTS = 150


class Offered(NamedTuple):
    """The outcomes of the appends of one story; `tokens` were taken for them, `entries` are in the log."""

    ended: Counter[str]
    refused_after: list[float]
    tokens: int
    entries: int


async def many_clients(cluster: SequencedCluster, group_s: float) -> list[Log]:
    cluster.network.slow = 0.0
    cluster.start()
    async with await cluster.admin() as admin:
        await admin.create_topic(TOPIC, ordering=Ordering.SEQUENCED)
    logs = [await cluster.log() for _ in range(CLIENTS)]
    for node in cluster.nodes.values():
        node.delay = lambda rng: group_s
    return logs


async def offer(nodes: int, group_s: float, multiple: float, seconds: float = 10.0) -> Offered:
    cluster = SequencedCluster(nodes=nodes, replicas=nodes)
    logs = await many_clients(cluster, group_s)
    ended, refused_after = await offer_appends(
        logs, DATA, multiple * WRITTEN_PER_S, timeout_s=TIMEOUT_S, seconds=seconds
    )
    tail = await logs[0].tail()
    # A hole would end this only when a reader has filled it.
    entries = [entry async for entry in logs[0].subscribe(1, tail + 1)]
    for log in logs:
        await log.close()
    return Offered(ended, refused_after, tail, len(entries))


@pytest.mark.parametrize(("nodes", "disk"), [(1, ONE_NODE), (3, CHAIN)], ids=["one node", "chain"])
def test_o1_goodput_of_many_clients_stays_however_much_is_offered(
    nodes: int, disk: tuple[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    group_bytes, group_s = disk
    monkeypatch.setattr(unit_writer_module, "GROUP_BYTES_MAX", group_bytes)
    found = [run_in_virtual_time(offer(nodes, group_s, multiple)) for multiple in (1.0, 2.0, 4.0)]
    best = max(offered.ended["acknowledged"] for offered in found)
    for ended, refused_after, tokens, entries in found:
        assert ended["acknowledged"] >= 0.9 * best
        assert ended["unknown"] <= 0.02 * best
        assert not ended["refused without a hint"]
        assert sum(after > 0.1 for after in refused_after) <= 0.1 * best
        # Nearly everything is refused before a token is taken: few positions are junk.
        assert tokens <= 1.25 * ended["acknowledged"]
        # What was refused is nowhere.
        assert ended["acknowledged"] <= entries <= ended["acknowledged"] + ended["unknown"]


def test_a_unit_does_not_begin_a_write_whose_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queued write is checked again at the head when its turn comes; a write that any other operation waits for is
    written however late it is."""
    clock = [0.0]
    monkeypatch.setattr(unit_module, "TrafficMeter", lambda now: TrafficMeter(lambda: clock[0]))

    async def story(chain: Chain) -> None:
        def write(llsn: int, data: bytes, within_ms: int) -> Coroutine[Any, Any, Any]:
            return chain.call(WriteUnit(STREAM, Epoch(1), within_ms), batch_at(llsn, data))

        await chain.serve()
        (unit,) = chain.nodes[1]._units.values()
        writer = unit._writer
        async with writer.paused():
            late = asyncio.create_task(write(1, b"late", 1000))
            retried = asyncio.create_task(write(2, b"retried", 1000))
            patient = asyncio.create_task(write(3, b"patient", 0))
            await until(lambda: writer.batches_waiting == 3)
            again = asyncio.create_task(write(2, b"retried", 0))
            await until(lambda: len(writer._queue[1].calls) == 2)
            clock[0] = 2.0
        with pytest.raises(Overloaded):
            await late
        await asyncio.gather(retried, again, patient)
        # Its position is free: it becomes junk, and is never written by the refused append.
        await chain.fill(1)
        assert parse_header(await chain.read(1)).is_junk
        with pytest.raises(AlreadyWritten):
            await write(1, b"late", 0)
        assert entries_in(await chain.read(2)) == [b"retried"]

    run_chain(tmp_path, story)


def test_a_unit_refuses_a_write_that_would_wait_too_long_before_accepting_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(chain: Chain) -> None:
        await chain.serve()
        (unit,) = chain.nodes[1]._units.values()
        monkeypatch.setattr(unit._writer, "wait_s", lambda: 0.5)
        # Nothing waits: never refused, whatever the estimate says.
        await chain.call(WriteUnit(STREAM, Epoch(1), 100), batch_at(1, b"a"))
        async with unit._writer.paused():
            waits = asyncio.create_task(chain.write(batch_at(2, b"b")))
            await until(lambda: unit._writer.batches_waiting == 1)
            with pytest.raises(Overloaded) as refused:
                await chain.call(WriteUnit(STREAM, Epoch(1), 500), b"not a batch")
            assert refused.value.retry_after_s == pytest.approx(0.1)
            # What the head has is carried on: writes to the nodes behind it name no time, and are never refused by it.
            behind = asyncio.create_task(chain.write(batch_at(3, b"c")))
            await until(lambda: unit._writer.batches_waiting == 2)
        await asyncio.gather(waits, behind)

    run_chain(tmp_path, story)


def test_the_estimate_of_a_unit_follows_its_disk() -> None:
    async def story() -> None:
        now, jobs, written = [0.0], list[asyncio.Future[list[PageRef]]](), list[int]()
        loop = asyncio.get_running_loop()

        def job(work: object, inline: bool) -> asyncio.Future[list[PageRef]]:
            jobs.append(loop.create_future())
            return jobs[-1]

        store: Any = SimpleNamespace(publish=lambda pages: None)
        writer = UnitWriter(
            lambda: store,
            cast(Any, SimpleNamespace(run=job)),
            lambda writes: written.extend(write.first_llsn for write in writes),
            lambda writes, error: None,
            lambda writes: None,
            TrafficMeter(lambda: now[0]),
        )

        def add(llsn: int) -> None:
            batch = batch_at(llsn, bytes(1000))
            writer.write(UnitWrite(LLSN(llsn), 1, b"", batch, Epoch(1)))

        assert writer.wait_s() == 0.0
        for llsn in range(1, 11):
            add(llsn)
            now[0] += 0.02
            jobs[-1].set_result([])
            await asyncio.sleep(0)
        assert written == list(range(1, 11))
        add(11)
        assert writer.wait_s() == pytest.approx(0.02, rel=0.1)
        # The estimate is never quicker than what is observed.
        now[0] += 3.0
        assert writer.wait_s() == pytest.approx(3.0)

    asyncio.run(story())


def test_a_batch_that_the_head_refuses_becomes_junk_and_the_next_one_needs_no_token() -> None:
    """Law 4, law 10: what was refused is nowhere, its position is filled on every node; and it costs only one token."""

    async def scenario() -> None:
        cluster = ScriptedCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect() as log:
            assert (await log.append(b"a")).glsn == 1

            def busy(address: str, message: Message) -> BaseException | None:
                named = isinstance(message, WriteUnit) and message.within_ms > 0
                return Overloaded(50, 10.0, 0.2) if named else None

            cluster.meddle = busy
            with pytest.raises(Overloaded) as refused:
                await log.append(b"b", timeout_s=1.0)
            assert refused.value.retry_after_s == 0.2
            # The middle and the tail received nothing but junk, and none is considered dead.
            await client_until(lambda: all(len(cluster.stored(node)) == 2 for node in (1, 2, 3)))
            assert cluster.stored(3)[1] == (2, 1, bytes(junk(LLSN(2), 1)))
            cluster.requests.clear()
            with pytest.raises(Overloaded):
                await log.append(b"c", timeout_s=1.0)
            assert not [one for one in cluster.requests if isinstance(one[1], NextTokens) and one[1].count]
            cluster.meddle = lambda address, message: None
            # An append with more time may proceed, and names the time only to the head.
            cluster.requests.clear()
            assert (await log.append(b"d", timeout_s=30.0)).glsn == 3
            writes = [message for _, message in cluster.requests if isinstance(message, WriteUnit)]
            assert [write.within_ms > 0 for write in writes] == [True, False, False]
            assert cluster.projection.epoch == 1

    run(scenario())


def test_a_batch_that_may_be_at_the_head_names_no_time_when_it_is_sent_again() -> None:
    """A refusal would not determine the outcome of the first try."""

    async def scenario() -> None:
        cluster = ScriptedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            lost: list[int] = []

            def meddle(address: str, message: Message) -> str | None:
                if isinstance(message, WriteUnit) and address == "node-1":
                    lost.append(message.within_ms)
                    return "silent" if len(lost) == 1 else None
                return None

            cluster.meddle = meddle
            assert (await log.append(b"a", timeout_s=30.0)).glsn == 1
            assert lost[0] > 0 and lost[1:] == [0]

    run(scenario())


def test_the_sequencer_receives_what_was_written_and_abandoned() -> None:
    async def scenario() -> None:
        cluster = ScriptedCluster(nodes=1)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            cluster.meddle = lambda address, message: (
                Overloaded(1, 1.0, 0.001) if isinstance(message, WriteUnit) and message.within_ms else None
            )
            with pytest.raises(Overloaded):
                await log.append(b"b", timeout_s=0.5)
            asked = [message for _, message in cluster.requests if isinstance(message, NextTokens)]
            assert asked[0].within_ms > 0 and not asked[0].written

            def reported() -> list[NextTokens]:
                return [message for _, message in cluster.requests if isinstance(message, NextTokens)]

            await client_until(lambda: any(message.given_up == (GLSN(2),) for message in reported()))
            written = [one for message in reported() for one in message.written]
            assert [first for first, _ in written] == [1]

    run(scenario())
