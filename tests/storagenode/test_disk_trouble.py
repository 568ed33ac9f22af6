"""A node whose disk fails or is full: nothing acknowledged is lost, nothing unverified is believed, and it comes back by itself."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.storagenode.committed.test_sync import ask_sync, emptied, filled, store, wait_synced
from tests.storagenode.scripted import (
    STREAM,
    TIMEOUT_S,
    TOPIC,
    Bench,
    Repository,
    entries_in,
    make_batch,
    row,
)
from tests.storagenode.scripted import run as run_bench
from varlog.model.epoch import Epoch
from varlog.model.errors import Sealed, Trimmed, Unavailable
from varlog.model.limits import KIB
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState, ReplicaStatus, SyncState
from varlog.rpc.messages import (
    AddLogStream,
    Append,
    AppendReply,
    Fetch,
    FetchReply,
    GetNodeStatus,
    GetNodeStatusReply,
    ReplicaStateReply,
    SealReplica,
)
from varlog.storage.committed.log_store import LogStore
from varlog.storagenode import commit_service
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.drive import Drive
from varlog.testing.sim.core.loop import Process

RESERVE_BYTES = 64 * KIB
ENTRY = b"x" * 1500


class Trouble:
    """A bench whose disk fails on demand."""

    def __init__(self, root: Path) -> None:
        self.drive = Drive()
        self.rng = random.Random(1)
        self.disk = SimDisk(self.drive, Process("sn1"), self.rng, lambda: None)
        self.bench = Bench(root, self.disk)
        self.volume = root / "volume1"
        self.disk.make_directory(self.volume)
        self.appended: list[int] = []

    async def start(self, *, stream: bool = True) -> Repository:
        await self.bench.start(disk_reserve_bytes=RESERVE_BYTES)
        if stream:
            await self.bench.run_stream()
        self.repository = await self.bench.session()
        self.repository.commit()  # so that reads are answered
        return self.repository

    async def append(self, entry: bytes, epoch: int = 1) -> None:
        """Append and order one entry."""
        append = asyncio.create_task(self.bench.call(Append(STREAM), make_batch(entry)))
        llsn = len(self.appended) + 1
        await until(lambda: any(r.durable_end > llsn for r in self.repository.reports) or append.done())
        if not append.done():
            self.repository.commit(row(llsn, llsn + 1, epoch=epoch))
        assert (await append)[0] == AppendReply(GLSN(llsn), LLSN(llsn))
        self.appended.append(llsn)

    async def status(self) -> ReplicaStatus:
        answer, _ = await self.bench.call(GetNodeStatus())
        assert isinstance(answer, GetNodeStatusReply)
        return answer.status.replicas[0]

    async def seal(self, epoch: int) -> ReplicaState:
        """What the manager does: seal at what is ordered."""
        request = SealReplica(STREAM, Epoch(epoch), LLSN(len(self.appended) + 1))
        answer, _ = await self.bench.call(request)
        assert isinstance(answer, ReplicaStateReply)
        return answer.state

    async def read_all(self, begin: int = 1) -> list[bytes]:
        found: list[bytes] = []
        llsn = LLSN(begin)
        while llsn <= len(self.appended):
            answer, payload = await self.bench.call(Fetch(STREAM, llsn=llsn))
            assert isinstance(answer, FetchReply)
            found += entries_in(payload)
            llsn = answer.next_llsn
        return found

    async def power_cut(self) -> None:
        """The node stops, everything that was not on the platter is gone, and it starts again."""
        await self.bench.stop()
        while self.drive.crash(self.rng) != "lose all":
            pass
        await self.start(stream=False)


def run(tmp_path: Path, story: Callable[[Trouble], Awaitable[None]]) -> None:
    async def body() -> None:
        trouble = Trouble(tmp_path)
        try:
            await asyncio.wait_for(story(trouble), 60)
        finally:
            trouble.drive.fail_syncs = trouble.drive.fail_writes = 0
            trouble.drive.capacity_bytes = None
            await trouble.bench.close()

    asyncio.run(body())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another task brings about."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_failed_sync_seals_the_replica_and_a_seal_brings_it_back_with_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    """R-SEAL-6, R-FAIL-1, laws 1, 6, 10."""

    async def story(trouble: Trouble) -> None:
        repository = await trouble.start()
        for number in range(5):
            await trouble.append(b"entry %d" % number)
        trouble.drive.fail_syncs = 1
        lost = asyncio.create_task(trouble.bench.call(Append(STREAM), make_batch(b"lost")))
        while (await trouble.status()).state is ReplicaState.RUNNING:
            await asyncio.sleep(0.001)
        status = await trouble.status()
        assert (status.state, "Input/output error" in status.trouble) == (ReplicaState.SEALING, True)
        assert not lost.done(), "nobody can say yet what becomes of it"
        assert max(report.durable_end for report in repository.reports) == 6
        with pytest.raises(Sealed, match="Input/output error"):
            await trouble.bench.call(Append(STREAM), make_batch(b"refused"))
        assert len(await trouble.read_all()) == 5, "reads continue"

        assert await trouble.seal(2) is ReplicaState.SEALED
        with pytest.raises(Sealed, match="Input/output error"):
            await lost
        assert (await trouble.status()).trouble == ""
        await trouble.bench.run_stream(epoch=2, sealed_end=6, add=False)
        await trouble.append(b"after", epoch=2)
        await trouble.power_cut()
        expected = [b"entry %d" % number for number in range(5)] + [b"after"]
        assert await trouble.read_all() == expected

    run(tmp_path, story)


def test_while_the_disk_still_fails_the_seal_is_refused_and_can_be_retried(tmp_path: Path) -> None:
    """R-SEAL-5: SEALED is answered only when the cut is durable."""

    async def story(trouble: Trouble) -> None:
        await trouble.start()
        await trouble.append(b"one")
        trouble.drive.fail_syncs = 1000
        waiting = asyncio.create_task(trouble.bench.call(Append(STREAM), make_batch(b"two")))
        while (await trouble.status()).state is ReplicaState.RUNNING:
            await asyncio.sleep(0.001)
        for _ in range(3):
            with pytest.raises(Unavailable, match="Input/output error"):
                await trouble.seal(2)
            status = await trouble.status()
            # Of the last seal, or of rows that were to be written meanwhile: whichever met the disk last.
            assert (status.state, "Input/output error" in status.trouble) == (ReplicaState.SEALING, True)
            assert not waiting.done()
        assert await trouble.read_all() == [b"one"]
        trouble.drive.fail_syncs = 0
        assert await trouble.seal(2) is ReplicaState.SEALED
        with pytest.raises(Sealed):
            await waiting

    run(tmp_path, story)


def test_rows_whose_sync_failed_are_reported_as_synced_only_once_they_are(tmp_path: Path) -> None:
    """Law 3: the repository forgets a row when its replicas call it synced."""

    async def story(trouble: Trouble) -> None:
        repository = await trouble.start()
        await trouble.append(b"one")
        await until(lambda: any(report.rows_synced_end == 2 for report in repository.reports))
        trouble.drive.fail_syncs = 0
        append = asyncio.create_task(trouble.bench.call(Append(STREAM), make_batch(b"two")))
        await until(lambda: any(report.durable_end == 3 for report in repository.reports))
        trouble.drive.fail_syncs = 1
        repository.commit(row(2, 3))
        assert (await append)[0] == AppendReply(GLSN(2), LLSN(2))
        trouble.appended.append(2)
        while (await trouble.status()).state is ReplicaState.RUNNING:
            await asyncio.sleep(0.001)
        assert not any(report.rows_synced_end == 3 for report in repository.reports)
        assert len(await trouble.read_all()) == 2
        assert await trouble.seal(2) is ReplicaState.SEALED
        await trouble.power_cut()
        assert await trouble.read_all() == [b"one", b"two"], (
            "the repository did not have to send the rows again"
        )

    run(tmp_path, story)


async def fill_up(trouble: Trouble) -> None:
    """Append until the disk has no more room than its reserve; then the manager seals."""
    trouble.drive.capacity_bytes = trouble.drive.root.size() + 2 * RESERVE_BYTES
    with pytest.raises(Sealed, match=f"the disk of node 1 is full: free space on {trouble.volume}"):
        await append_on(trouble)


async def append_on(trouble: Trouble) -> None:
    """Append one after the other until one is refused."""
    while True:
        append = asyncio.create_task(trouble.bench.call(Append(STREAM), make_batch(ENTRY)))
        llsn = len(trouble.appended) + 1
        while (status := await trouble.status()).durable_end <= llsn and not append.done():
            if status.state is not ReplicaState.RUNNING:
                assert await trouble.seal(2) is ReplicaState.SEALED
                await append
        trouble.repository.commit(row(llsn, llsn + 1))
        await append
        trouble.appended.append(llsn)


def test_a_full_disk_refuses_appends_with_the_reason_and_serves_reads_trims_and_seals(tmp_path: Path) -> None:
    """R-SEAL-6, R-TRIM-1: administration has the reserve."""

    async def story(trouble: Trouble) -> None:
        repository = await trouble.start()
        await fill_up(trouble)
        status = await trouble.status()
        assert (status.state, status.full) == (ReplicaState.SEALED, True)
        assert "the disk of node 1 is full" in status.trouble
        assert trouble.disk.free_bytes(trouble.volume) >= RESERVE_BYTES - 4 * KIB, "the reserve is left"
        with pytest.raises(Sealed, match="the disk of node 1 is full"):
            await trouble.bench.call(Append(STREAM), make_batch(b"refused"))
        assert len(await trouble.read_all()) == len(trouble.appended) > 20
        await trouble.bench.call(AddLogStream(TOPIC, type(STREAM)(2)))

        newest = len(trouble.appended)
        repository.commit(high=newest, trimmed=newest - 1)
        await until(lambda: repository.marks_applied == repository.serial)
        with pytest.raises(Trimmed):
            await trouble.bench.call(Fetch(STREAM, llsn=LLSN(1)))
        status = await trouble.status()
        assert (status.full, status.trouble, status.low_watermark) == (False, "", newest - 1)
        await trouble.bench.run_stream(epoch=2, sealed_end=newest + 1, add=False)
        await trouble.append(b"after", epoch=2)
        assert (await trouble.read_all(newest))[-1] == b"after"

    run(tmp_path, story)


def test_a_little_free_space_does_not_make_a_full_disk_take_appends_again(tmp_path: Path) -> None:
    """Otherwise it would be sealed and unsealed forever."""

    async def story(trouble: Trouble) -> None:
        await trouble.start()
        await fill_up(trouble)
        capacity = trouble.drive.capacity_bytes
        assert capacity is not None
        free = trouble.disk.free_bytes(trouble.volume)
        trouble.drive.capacity_bytes = capacity - free + RESERVE_BYTES + RESERVE_BYTES // 2 - 1
        assert (await trouble.status()).full
        trouble.drive.capacity_bytes += 1
        assert not (await trouble.status()).full
        trouble.drive.capacity_bytes -= RESERVE_BYTES // 2
        assert not (await trouble.status()).full
        trouble.drive.capacity_bytes -= 1
        assert (await trouble.status()).full

    run(tmp_path, story)


def test_on_a_disk_that_others_filled_to_the_last_byte_a_trim_still_frees_space(tmp_path: Path) -> None:
    """The ballast makes room for the few bytes that say what is trimmed, and is made again when there is room."""

    async def story(trouble: Trouble) -> None:
        repository = await trouble.start()
        ballast = trouble.volume / "cid=1" / "snid=1" / "ballast"
        assert trouble.disk.exists(ballast)
        for _ in range(20):
            await trouble.append(ENTRY)
        trouble.drive.capacity_bytes = trouble.drive.root.size()
        repository.commit(high=20, trimmed=19)
        await until(lambda: repository.marks_applied == repository.serial)
        assert ((await trouble.status()).low_watermark, trouble.disk.exists(ballast)) == (19, False)
        trouble.drive.capacity_bytes += 4 * RESERVE_BYTES
        await trouble.seal(2)
        await trouble.bench.run_stream(epoch=2, sealed_end=21, add=False)
        await trouble.append(ENTRY, epoch=2)
        assert trouble.disk.exists(ballast)

    run(tmp_path, story)


def test_a_trim_that_the_disk_refuses_is_kept_later_and_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 9; and the replica is not lost for it."""
    monkeypatch.setattr(commit_service, "TRIM_RETRY_S", 0.005)

    async def story(trouble: Trouble) -> None:
        repository = await trouble.start()
        for _ in range(5):
            await trouble.append(ENTRY)
        await until(lambda: any(report.rows_synced_end == 6 for report in repository.reports))
        trouble.drive.fail_writes = 1000
        repository.commit(high=5, trimmed=4)
        await until(lambda: repository.marks_applied == repository.serial)
        with pytest.raises(Trimmed):
            await trouble.bench.call(Fetch(STREAM, llsn=LLSN(2)))
        status = await trouble.status()
        assert (status.state, status.low_watermark) == (ReplicaState.SEALING, 0)
        assert "the trim cannot be written" in status.trouble
        assert await trouble.read_all(5) == [ENTRY]
        trouble.drive.fail_writes = 0
        while (await trouble.status()).low_watermark < 4:
            await asyncio.sleep(0.001)
        assert await trouble.seal(2) is ReplicaState.SEALED

    run(tmp_path, story)


def test_a_trim_that_a_sync_could_not_keep_is_kept_when_the_repository_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-SYNC-3, law 9: the disk refused it once, and the sync ended with that. The repository sends a trim once per session."""
    trim, refusals = LogStore.trim, [OSError(errno.EMFILE, "too many open files")]

    def refuse_once(store: LogStore, glsn: GLSN) -> None:
        if "volume2" in str(store.path) and refusals and glsn > store.trimmed:
            raise refusals.pop()
        trim(store, glsn)

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        repository = await bench.session(1, term=2)
        repository.commit(high=66, trimmed=30)
        await until(lambda: repository.marks_applied == repository.serial)
        await emptied(bench, 2, end)
        monkeypatch.setattr(LogStore, "trim", refuse_once)
        await ask_sync(bench, 2, 1)
        assert (await wait_synced(bench, 2)).state is SyncState.ERROR
        assert (refusals, store(bench, 2).trimmed) == ([], 0)
        other = await bench.session(2, term=2)
        other.commit(high=66, trimmed=30)
        await until(lambda: store(bench, 2).trimmed == 30)

    run_bench(tmp_path, story)


def test_a_replica_that_cannot_be_opened_at_the_start_is_opened_when_it_is_sealed(tmp_path: Path) -> None:
    """R-SN-3: the node starts, and says what is the matter. The session that began without the replica ends: the next one begins
    with what it knows of the order."""

    async def story(trouble: Trouble) -> None:
        await trouble.start()
        await trouble.append(b"one")
        await trouble.bench.stop()
        trouble.drive.fail_syncs = 1000
        await trouble.start(stream=False)
        status = await trouble.status()
        assert (status.state, "Input/output error" in status.trouble) == (ReplicaState.SEALING, True)
        with pytest.raises(Unavailable, match="cannot be opened"):
            await trouble.seal(2)
        assert len((await trouble.status()).path) > 0
        trouble.drive.fail_syncs = 0
        before = trouble.repository
        assert await trouble.seal(2) is ReplicaState.SEALED
        await until(lambda: before.connection.closed)
        trouble.repository = await trouble.bench.session()
        assert [point.committed_end for point in trouble.repository.opened.replicas] == [2]
        trouble.repository.commit(high=1, trimmed=0)
        assert await trouble.read_all() == [b"one"]

    run(tmp_path, story)
