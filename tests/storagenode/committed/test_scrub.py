"""Bit rot on real nodes: found by readers, by hints of clients and by the scrub; repaired from the others, byte for byte."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.storagenode.scripted import (
    STREAM,
    TIMEOUT_S,
    TOPIC,
    Bench,
    Repository,
    entries_in,
    make_batch,
    row,
    run,
)
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, InvalidRequest, Unavailable
from varlog.model.ids import NodeID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState, ReplicaStatus
from varlog.rpc.messages import (
    Append,
    CheckEntries,
    Done,
    Fetch,
    FetchReply,
    GetNodeStatus,
    GetNodeStatusReply,
    ReadAt,
    RepairReplica,
    ReplicaAddress,
    ReplicaStateReply,
    SealReplica,
)
from varlog.runtime.disk import OsDisk, OsFile
from varlog.storage.committed.log_store import LogStore
from varlog.storage.corruption import BlockRange, Corruption
from varlog.storage.dump import dump_replica

BATCHES = 60


@pytest.fixture(autouse=True)
def _short_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points close together, so that small segments have several ranges."""
    monkeypatch.setattr("varlog.storage.committed.index.INDEX_STRIDE_BYTES", 512)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():
            await asyncio.sleep(0.005)


async def started(bench: Bench, *nodes: int, scrub: int = 0, interval_s: float = 3600.0) -> None:
    for node in nodes:
        await bench.start(node, scrub_bytes_per_s=scrub, scrub_interval_s=interval_s)


async def filled(bench: Bench, *nodes: int, batches: int = BATCHES) -> list[Repository]:
    """A stream on all nodes with one entry a batch, ordered as it was written, over several segments."""
    await bench.run_stream(nodes)
    sessions = [await bench.session(node) for node in nodes]
    appends = [
        asyncio.create_task(bench.call(Append(STREAM), make_batch(entry(llsn)), node=nodes[0]))
        for llsn in range(1, batches + 1)
    ]
    for session in sessions:
        async with asyncio.timeout(TIMEOUT_S):
            while not any(report.durable_end == batches + 1 for report in session.reports):
                await asyncio.sleep(0.001)
    for session in sessions:
        session.commit(row(1, batches + 1))
    await asyncio.gather(*appends)
    return sessions


def entry(llsn: int) -> bytes:
    return b"entry %03d " % llsn * 12


def replica_path(bench: Bench, node: int) -> Path:
    (path,) = (bench.root / f"volume{node}").rglob(f"lsid={STREAM}")
    return path


def segments(bench: Bench, node: int) -> dict[str, bytes]:
    """What is written in each segment; reserved zeros at the end do not count."""
    return {
        path.name: path.read_bytes().rstrip(b"\0") for path in sorted(replica_path(bench, node).glob("*.seg"))
    }


def flip(bench: Bench, node: int, *, segment: int, at: int) -> None:
    path = sorted(replica_path(bench, node).glob("*.seg"))[segment]
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


async def status(bench: Bench, node: int) -> ReplicaStatus:
    reply, _ = await bench.call(GetNodeStatus(), node=node)
    assert isinstance(reply, GetNodeStatusReply)
    return reply.status.replicas[0]


def sources(*nodes: int) -> tuple[ReplicaAddress, ...]:
    return tuple(ReplicaAddress(NodeID(node), f"node{node}") for node in nodes)


async def wait_damaged(bench: Bench, node: int) -> tuple[tuple[LLSN, LLSN], ...]:
    async def damaged() -> bool:
        return bool((await status(bench, node)).damage)

    await until(damaged)
    return (await status(bench, node)).damage


async def wait_repaired(bench: Bench, node: int, *others: int) -> None:
    """Request the repair again and again, as the manager does."""

    async def repaired() -> bool:
        assert (await bench.call(RepairReplica(STREAM, sources(*others)), node=node))[0] == Done()
        return not (await status(bench, node)).damage

    await until(repaired)


async def read_everything(bench: Bench, node: int) -> list[bytes]:
    found: list[bytes] = []
    llsn = LLSN(1)
    while True:
        fetched, payload = await bench.call(Fetch(STREAM, llsn, bytes_max=2000), node=node)
        assert isinstance(fetched, FetchReply)
        if not payload:
            return found
        found += entries_in(payload)
        llsn = fetched.next_llsn


EVERYTHING = [entry(llsn) for llsn in range(1, BATCHES + 1)]
FIRST_BODY, FIRST_HEADER = 80, 20


def test_the_scrub_finds_damage_in_unread_data_and_a_repair_makes_the_replicas_equal_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(bench: Bench) -> None:
        await started(bench, 1, 2, scrub=1 << 30, interval_s=0.02)
        await filled(bench, 1, 2)
        good = segments(bench, 1)
        assert segments(bench, 2) == good and len(good) > 2
        flip(bench, 2, segment=0, at=FIRST_BODY)
        flip(bench, 2, segment=1, at=FIRST_HEADER)
        assert segments(bench, 2) != good

        async def both_found() -> bool:
            return len((await status(bench, 2)).damage) == 2

        await until(both_found)
        (begin, end), (other, _) = (await status(bench, 2)).damage
        assert begin == 1 and end < other < BATCHES
        assert (await status(bench, 1)).damage == ()
        await wait_repaired(bench, 2, 1, 2)
        assert segments(bench, 2) == good == segments(bench, 1)
        assert await read_everything(bench, 2) == EVERYTHING
        assert (await status(bench, 2)).state is ReplicaState.RUNNING

    with caplog.at_level(logging.INFO, "varlog"):
        run(tmp_path, story)
    warnings = [record for record in caplog.records if "damaged entries" in record.message]
    assert any("[1, " in record.message and "lsid=1" in record.message for record in warnings)
    assert all(record.levelno == logging.WARNING for record in warnings)
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


@pytest.mark.parametrize("at", [FIRST_BODY, FIRST_HEADER])
def test_a_point_read_refuses_damage_and_has_it_looked_at(tmp_path: Path, at: int) -> None:
    async def story(bench: Bench) -> None:
        await started(bench, 1, 2)
        await filled(bench, 1, 2)
        flip(bench, 2, segment=0, at=at)
        with pytest.raises(CorruptBatch):
            await bench.call(ReadAt(TOPIC, GLSN(1)), node=2)
        assert (await wait_damaged(bench, 2))[0][0] == 1
        await wait_repaired(bench, 2, 1)
        _, payload = await bench.call(ReadAt(TOPIC, GLSN(1)), node=2)
        assert entries_in(payload) == [entry(1)]

    run(tmp_path, story)


def test_a_fetch_over_a_damaged_header_is_refused_and_has_it_looked_at(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await started(bench, 1)
        await filled(bench, 1)
        flip(bench, 1, segment=1, at=FIRST_HEADER)
        with pytest.raises(CorruptBatch):
            await read_everything(bench, 1)
        ((begin, end),) = await wait_damaged(bench, 1)
        assert 1 < begin < end < BATCHES

    run(tmp_path, story)


def test_a_clients_hint_of_damage_is_checked_and_not_trusted(tmp_path: Path) -> None:
    """CheckEntries names too much, or sound entries: only what is damaged is reported."""

    async def story(bench: Bench) -> None:
        await started(bench, 1, 2)
        await filled(bench, 1, 2)
        flip(bench, 1, segment=0, at=FIRST_BODY)
        assert (await bench.call(CheckEntries(STREAM, LLSN(BATCHES), LLSN(9999))))[0] == Done()
        assert (await bench.call(CheckEntries(STREAM, LLSN(1), LLSN(BATCHES + 1)), node=2))[0] == Done()
        assert (await bench.call(CheckEntries(STREAM, LLSN(1), LLSN(BATCHES))))[0] == Done()
        ((begin, end),) = await wait_damaged(bench, 1)
        assert begin == 1 and end < BATCHES
        assert (await status(bench, 2)).damage == ()
        for wrong in ((0, 5), (5, 5), (6, 5)):
            with pytest.raises(InvalidRequest):
                await bench.call(CheckEntries(STREAM, LLSN(wrong[0]), LLSN(wrong[1])))

    run(tmp_path, story)


def test_a_source_that_is_damaged_or_away_is_passed_over_and_learns_of_its_own_damage(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await started(bench, 1, 2, 3)
        await filled(bench, 1, 2, 3)
        good = segments(bench, 1)
        for node in (2, 3):
            flip(bench, node, segment=0, at=FIRST_BODY)
        await bench.call(CheckEntries(STREAM, LLSN(1), LLSN(2)), node=3)
        await wait_damaged(bench, 3)
        await wait_repaired(bench, 3, 9, 2, 1)
        assert segments(bench, 3) == good
        assert (await wait_damaged(bench, 2))[0][0] == 1
        await wait_repaired(bench, 2, 3)
        assert segments(bench, 2) == good

    run(tmp_path, story)


def test_damage_that_no_source_can_repair_stays_noted_and_is_repaired_later(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await started(bench, 1, 2)
        await filled(bench, 1, 2)
        flip(bench, 1, segment=0, at=FIRST_BODY)
        flip(bench, 2, segment=0, at=FIRST_BODY + 8)
        await bench.call(CheckEntries(STREAM, LLSN(1), LLSN(2)), node=1)
        damage = await wait_damaged(bench, 1)
        before = segments(bench, 1)
        for others in ((), (1,), (2,), (7,)):
            await bench.nodes[1]._replicas[STREAM].block_repair.repair(sources(*others))
        assert (await status(bench, 1)).damage == damage
        assert segments(bench, 1) == before
        flip(bench, 2, segment=0, at=FIRST_BODY + 8)
        await wait_repaired(bench, 1, 2)
        assert segments(bench, 1) == segments(bench, 2)

    run(tmp_path, story)


def test_a_repair_that_failed_on_the_disk_is_done_again_though_it_can_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-SEAL-6: the page cache has the good bytes, the platter may not. A read does not show which; only a successful sync does."""

    async def story(bench: Bench) -> None:
        await started(bench, 1, 2, scrub=1 << 30, interval_s=0.02)
        await filled(bench, 1, 2)
        replica = bench.nodes[1]._replicas[STREAM]

        def fail(self: OsFile) -> None:
            if (
                self.path.suffix == ".seg"
            ):  # not the commit rows, which are synced whenever their time has come
                raise OSError(5, "Input/output error")

        flip(bench, 1, segment=0, at=FIRST_BODY)
        await wait_damaged(bench, 1)
        with monkeypatch.context() as failing:
            failing.setattr("varlog.runtime.disk.OsFile.sync", fail)
            await replica.block_repair.repair(sources(2))
            assert segments(bench, 1) == segments(bench, 2), "it can be read back"
            assert (await status(bench, 1)).state is ReplicaState.SEALING
            replica.store.examine(replica.store.block_range(LLSN(1)))
            await replica.block_repair.repair(())
            assert (await status(bench, 1)).damage, "what can be read back proves nothing"
        for node in (2, 1):
            await bench.call(SealReplica(STREAM, Epoch(2), LLSN(BATCHES + 1)), node=node)
        assert (await status(bench, 1)).damage
        await wait_repaired(bench, 1, 2)

    run(tmp_path, story)


def test_a_repair_that_failed_on_the_disk_is_done_again_before_the_replica_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged tail cannot be cut, so the seal waits for the repair: the repair must not wait for the seal to reopen the store."""

    async def story(bench: Bench) -> None:
        await started(bench, 1, 2)
        await filled(bench, 1, 2)
        replica = bench.nodes[1]._replicas[STREAM]

        def fail(self: OsFile) -> None:
            if (
                self.path.suffix == ".seg"
            ):  # not the commit rows, which are synced whenever their time has come
                raise OSError(5, "Input/output error")

        flip(bench, 1, segment=0, at=FIRST_BODY)
        await bench.call(CheckEntries(STREAM, LLSN(1), LLSN(2)), node=1)
        await wait_damaged(bench, 1)
        with monkeypatch.context() as failing:
            failing.setattr("varlog.runtime.disk.OsFile.sync", fail)
            await replica.block_repair.repair(sources(2))
        assert replica.store.failure is not None
        await replica.block_repair.repair(sources(2))
        assert not (await status(bench, 1)).damage and replica.store.failure is None

    run(tmp_path, story)


def test_replicas_that_are_damaged_in_one_range_repair_each_other_batch_by_batch(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await started(bench, 1, 2)
        await filled(bench, 1, 2)
        good = segments(bench, 1)
        batch_bytes = len(make_batch(entry(1)))
        flip(bench, 1, segment=0, at=FIRST_BODY)
        flip(bench, 2, segment=0, at=batch_bytes + FIRST_BODY)
        for node in (1, 2):
            await bench.call(CheckEntries(STREAM, LLSN(1), LLSN(3)), node=node)
            assert (await wait_damaged(bench, node))[0][0] == 1
        await wait_repaired(bench, 1, 2)
        await wait_repaired(bench, 2, 1)
        assert segments(bench, 1) == good == segments(bench, 2)

    run(tmp_path, story)


def test_the_scrub_puts_the_small_files_and_what_is_trimmed_right_from_memory(tmp_path: Path) -> None:
    """Found only at the next start, each of these would cost the whole replica."""

    async def story(bench: Bench) -> None:
        await bench.start(1, scrub_bytes_per_s=1 << 30, scrub_interval_s=0.02, segment_bytes=1 << 20)
        (repository,) = await filled(bench, 1)
        repository.commit(high=BATCHES, trimmed=BATCHES // 2)
        async with asyncio.timeout(TIMEOUT_S):
            while repository.marks_applied < repository.serial:
                await asyncio.sleep(0.001)
        path = replica_path(bench, 1)
        flip(bench, 1, segment=0, at=FIRST_HEADER)
        for name in ("state", "commits.log"):
            content = bytearray((path / name).read_bytes())
            content[30] ^= 1
            (path / name).write_bytes(content)

        async def opens() -> bool:
            return not dump_replica(OsDisk(), path).problems

        await until(opens)
        assert (await status(bench, 1)).damage == ()
        await bench.stop(1)
        await bench.start(1, scrub_bytes_per_s=0, segment_bytes=1 << 20)
        assert (await status(bench, 1)).state is ReplicaState.SEALING
        (await bench.session(1)).commit(high=BATCHES, trimmed=BATCHES // 2)
        _, payload = await bench.call(Fetch(STREAM, LLSN(BATCHES // 2 + 1), bytes_max=1 << 20))
        assert entries_in(payload) == EVERYTHING[BATCHES // 2 :]

    run(tmp_path, story)


def test_damage_is_found_again_after_a_restart(tmp_path: Path) -> None:
    """What was noted is forgotten with the process, a repair may be half done: the next pass finds what is left."""

    async def story(bench: Bench) -> None:
        await started(bench, 1, 2)
        await filled(bench, 1, 2)
        good = segments(bench, 2)
        for at in (FIRST_BODY, FIRST_BODY + 9, FIRST_HEADER):
            flip(bench, 1, segment=0, at=at)
        await bench.call(CheckEntries(STREAM, LLSN(1), LLSN(2)))
        await wait_damaged(bench, 1)
        await bench.stop(1)
        await started(bench, 1, scrub=1 << 30, interval_s=0.02)
        (await bench.session(1)).commit(row(1, BATCHES + 1))
        assert (await wait_damaged(bench, 1))[0][0] == 1
        await wait_repaired(bench, 1, 2)
        assert segments(bench, 1) == good
        assert await read_everything(bench, 1) == EVERYTHING

    run(tmp_path, story)


def test_damage_in_what_is_trimmed_is_forgotten(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await started(bench, 1)
        (repository,) = await filled(bench, 1)
        flip(bench, 1, segment=0, at=FIRST_BODY)
        await bench.call(CheckEntries(STREAM, LLSN(1), LLSN(2)))
        await wait_damaged(bench, 1)
        repository.commit(high=BATCHES, trimmed=40)

        async def forgotten() -> bool:
            return (await status(bench, 1)).damage == ()

        await until(forgotten)

    run(tmp_path, story)


def test_a_seal_waits_for_the_damage_that_hides_its_place(tmp_path: Path) -> None:
    """Law 6: SEALED is never said over a tail that could not be cut."""

    async def story(bench: Bench) -> None:
        await started(bench, 1, 2)
        await filled(bench, 1, 2, batches=2)
        tail = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"not ordered")))

        async def written() -> bool:
            return all([(await status(bench, node)).durable_end == 4 for node in (1, 2)])

        await until(written)
        flip(bench, 2, segment=0, at=FIRST_HEADER)
        with pytest.raises(Unavailable, match="repaired"):
            await bench.call(SealReplica(STREAM, Epoch(2), LLSN(3)), node=2)
        assert (await status(bench, 2)).state is ReplicaState.SEALING
        assert await wait_damaged(bench, 2) == ((1, 3),)
        await wait_repaired(bench, 2, 1)
        for node in (2, 1):
            sealed, _ = await bench.call(SealReplica(STREAM, Epoch(2), LLSN(3)), node=node)
            assert sealed == ReplicaStateReply(ReplicaState.SEALED, LLSN(3))
        assert segments(bench, 1) == segments(bench, 2)
        with pytest.raises(Exception, match="sealed"):
            await tail

    run(tmp_path, story)


def test_a_pass_reads_everything_once_and_then_there_is_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[tuple[int, int]] = []

    def spy(self: LogStore, blocks: BlockRange) -> list[Corruption]:
        examined.append((blocks.begin, blocks.end))
        return examine(self, blocks)

    examine = LogStore.examine
    monkeypatch.setattr(LogStore, "examine", spy)
    monkeypatch.setattr("varlog.storagenode.scrub_loop.SCRUB_FIRST_PASS_S", 0.01)
    monkeypatch.setattr("varlog.storagenode.committed.scrub.SCRUB_CHUNK_BYTES", 1000)

    async def story(bench: Bench) -> None:
        await started(bench, 1)
        await filled(bench, 1)
        # Restarted: then everything is written when the pass begins, however long it took to fill.
        await bench.stop(1)
        await started(bench, 1, scrub=1 << 30)
        await until(lambda: _true(bool(examined) and examined[-1][1] == BATCHES + 1))
        assert [begin for begin, _ in examined] == [1, *(end for _, end in examined[:-1])]
        passed = len(examined)
        await bench.call(CheckEntries(STREAM, LLSN(3), LLSN(4)))
        await until(lambda: _true(len(examined) == passed + 1))
        assert len(examined) == passed + 1

    run(tmp_path, story)


def test_without_a_scrub_only_requested_data_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[BlockRange] = []

    def spy(self: LogStore, blocks: BlockRange) -> list[Corruption]:
        examined.append(blocks)
        return examine(self, blocks)

    examine = LogStore.examine
    monkeypatch.setattr(LogStore, "examine", spy)

    async def story(bench: Bench) -> None:
        await started(bench, 1, scrub=0, interval_s=0.0)
        await filled(bench, 1)
        assert examined == []
        await bench.call(CheckEntries(STREAM, LLSN(3), LLSN(4)))
        await until(lambda: _true(len(examined) == 1))

    run(tmp_path, story)


async def _true(holds: bool) -> bool:
    return holds


def test_the_scrub_keeps_to_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits as long as what it has read takes at the rate allowed."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def count(delay: float) -> None:
        slept.append(delay)
        await sleep(0)

    monkeypatch.setattr("varlog.storagenode.scrub_loop.asyncio.sleep", count)

    async def story(bench: Bench) -> None:
        await bench.start(1, scrub_bytes_per_s=0)
        await filled(bench, 1)
        slept.clear()
        scrub = bench.nodes[1]._corruption_service._scrub
        scrub.loop._bytes_per_s = 1000
        await scrub._pass()
        written = sum(map(len, segments(bench, 1).values()))
        assert sum(slept) * 1000 == pytest.approx(written, rel=0.5)

    run(tmp_path, story)
