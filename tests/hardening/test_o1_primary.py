"""O1 at the primary: a queue made by many clients, none of which has one.

What would be ordered too late is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hardening.open_loop import offer_appends
from tests.manager.sim_cluster import SimCluster
from tests.storagenode.scripted import STREAM, Bench, make_batch, row, until
from tests.storagenode.scripted import run as run_bench
from varlog.client.log import Log
from varlog.model.batch import pack, parse_header
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import Overloaded
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import Append, AppendReply
from varlog.runtime.metrics import TrafficMeter
from varlog.storagenode.committed import ack_queue as waiters_module
from varlog.storagenode.committed import replica as replica_module
from varlog.storagenode.committed import writer as writer_module
from varlog.storagenode.committed.ack_queue import AckQueue
from varlog.storagenode.committed.admission_queue import AdmissionQueue, PendingAppend
from varlog.testing.sim.core.loop import run_simulated as run_in_virtual_time

DATA = bytes(1000)
TIMEOUT_S = 1.0
# The primary's disk: one group of this many bytes in this time, so that about forty appends are served each second.
GROUP_BYTES, GROUP_S = 4096, 0.04
SERVED_PER_S = 40.0
CLIENTS = 150


async def many_clients(cluster: SimCluster) -> list[Log]:
    cluster.network.slow = 0.0
    cluster.start()
    first = await cluster.log(create=True)
    await cluster.wait_whole()
    logs = [first, *[await cluster.log() for _ in range(CLIENTS - 1)]]
    cluster.nodes[1].delay = lambda rng: GROUP_S
    return logs


@pytest.fixture
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_BYTES_MAX", GROUP_BYTES)
    monkeypatch.setattr(waiters_module, "GROUP_BYTES_MAX", GROUP_BYTES)


@pytest.mark.usefixtures("_small_groups")
def test_the_primary_refuses_what_many_clients_would_get_too_late() -> None:
    """Each client finds its own queue empty, and sends: together they made a queue of four seconds for a deadline of
    one, and nearly everything ended as unknown."""

    async def story(multiple: float) -> tuple[Counter[str], list[float], int]:
        cluster, seconds = SimCluster(nodes=1, replicas=1), 10.0
        logs = await many_clients(cluster)
        ended, refused_after = await offer_appends(
            logs, DATA, multiple * SERVED_PER_S, timeout_s=TIMEOUT_S, seconds=seconds
        )
        written = await logs[0].tail()
        for log in logs:
            await log.close()
        return ended, refused_after, written

    found = {multiple: run_in_virtual_time(story(multiple)) for multiple in (1.0, 2.0, 4.0)}
    best = max(ended["acknowledged"] for ended, _, _ in found.values())
    for ended, refused_after, written in found.values():
        assert ended["acknowledged"] >= 0.9 * best
        assert ended["unknown"] <= 0.02 * best
        assert not ended["refused without a hint"]
        assert sum(after > 0.1 for after in refused_after) <= 0.1 * best
        # What was refused is nowhere.
        assert ended["acknowledged"] <= written <= ended["acknowledged"] + ended["unknown"]


def test_the_primary_estimates_how_long_one_more_would_wait() -> None:
    now = 0.0
    acks = AckQueue(TrafficMeter(lambda: now))
    call: Any = SimpleNamespace(reply=lambda message: None)
    end = served = 1

    def add(size: int) -> None:
        nonlocal end
        batch = pack([bytes(size)], producer=ProducerID(1), sequence=end, time_us=0)
        acks.add(LLSN(end), LLSN(end + 1), size, call, parse_header(batch, signed=False))
        end += 1

    def ordered(count: int) -> None:
        nonlocal served
        newest, before = GLSN(served + count - 1), GLSN(served - 1)
        acks.answer(CommitRow(1, newest, before, GLSN(served), LLSN(served), count, Epoch(1)))
        served += count

    assert acks.wait_s(now) == 0.0
    # Ten milliseconds per cut, and one more for each 100 kB.
    for count in (1, 9, 3, 20, 6, 12) * 5:
        for _ in range(count):
            add(100_000)
        now += 0.01 + 0.001 * count
        ordered(count)
    for _ in range(300):
        add(100_000)
    assert acks.wait_s(now) == pytest.approx(0.31, rel=0.2)
    assert acks.wait_s(now, 300, 30_000_000) == pytest.approx(0.61, rel=0.2)
    # The estimate is never quicker than what is observed.
    now += 2.0
    assert acks.wait_s(now) >= 2.0
    ordered(300)
    assert acks.wait_s(now) == 0.0


def test_an_append_refused_by_time_gets_no_place_and_queued_ones_are_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(replica_module, "TrafficMeter", lambda now: TrafficMeter(lambda: clock[0]))
    monkeypatch.setattr(replica_module, "UNCOMMITTED_BATCHES_MAX", 1)

    async def story(bench: Bench) -> None:
        node = await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        (replica,) = node._replicas.values()
        taken = asyncio.create_task(bench.call(Append(STREAM, within_ms=1000), make_batch(b"a")))
        await until(lambda: any(report.durable_end == 2 for report in repository.reports))
        clock[0] = 0.5
        in_line = asyncio.create_task(bench.call(Append(STREAM, within_ms=1000), make_batch(b"b")))
        await until(lambda: len(replica._admission_queue) == 1)
        # The oldest has waited for half a second: an append with less time is refused, whether its batch is complete or
        # not.
        with pytest.raises(Overloaded) as refused:
            await bench.call(Append(STREAM, within_ms=500), b"not a batch")
        assert refused.value.waiting == 2
        patient = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"c")))
        await until(lambda: len(replica._admission_queue) == 2)
        # The caller of the first in the queue has given up when its turn comes; the next one named no time.
        clock[0] = 2.0
        repository.commit(row(1, 2))
        assert (await taken)[0] == AppendReply(GLSN(1), LLSN(1))
        with pytest.raises(Overloaded):
            await in_line
        await until(lambda: any(report.durable_end == 3 for report in repository.reports))
        repository.commit(row(2, 3))
        assert (await patient)[0] == AppendReply(GLSN(2), LLSN(2))

    run_bench(tmp_path, story)


def test_a_light_client_waits_for_its_turns_only() -> None:
    """The queue of a client with many batches is not ahead of one with few."""
    admission_queue, batch = (
        AdmissionQueue(LogStreamID(1)),
        pack([DATA], producer=ProducerID(1), sequence=1, time_us=0),
    )
    for connection, batches in (("flood", 100), ("other", 3)):
        for _ in range(batches):
            call: Any = SimpleNamespace(connection=connection)
            admission_queue.join(PendingAppend(call, parse_header(batch, signed=False), batch))
    light: Any = "light"
    flood: Any = "flood"
    assert admission_queue.ahead_of(light)[0] == 2
    assert admission_queue.ahead_of(light)[1] == pytest.approx(2 * len(batch), rel=0.01)
    assert admission_queue.ahead_of(flood)[0] == 103
