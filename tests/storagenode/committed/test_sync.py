"""Replicas that are filled from others: real nodes, and a repository and a manager by hand."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Sequence
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
    until,
)
from varlog.model.batch import Buffer
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    AlreadySyncing,
    OutcomeUnknown,
    PreconditionFailed,
    Sealed,
    StaleEpoch,
    Trimmed,
    Unavailable,
    UnknownLogStream,
)
from varlog.model.ids import NodeID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState, ReplicaStatus, SyncState, SyncStatus
from varlog.rpc.messages import (
    AddLogStream,
    Append,
    CopyFrom,
    Fetch,
    FetchReply,
    GetNodeStatus,
    GetNodeStatusReply,
    ReadAt,
    RebuildReplica,
    ReplicaAddress,
    ReplicaStateReply,
    SealReplica,
    SyncReplica,
    SyncReply,
    UnsealReplica,
)
from varlog.storage.committed.copy import EpochRun, runs_of
from varlog.storage.committed.log_store import LogStore
from varlog.storagenode.committed import sync
from varlog.storagenode.committed import sync as copy_source

BATCHES = 30


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of many pieces: a batch or two each."""
    for module in (sync, copy_source):
        monkeypatch.setattr(module, "COPY_BYTES_MAX", 700)


class Gate:
    """Holds a destination when it has taken `pieces`, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._left = pieces
        monkeypatch.setattr(sync, "runs_of", self._take)

    def _take(self, rows: Sequence[CommitRow], data: Buffer) -> list[EpochRun]:
        self._left -= 1
        if self._left < 0:
            self.reached.set()
            assert self._open.wait(TIMEOUT_S)
        return runs_of(rows, data)

    async def wait_reached(self) -> None:
        await until(self.reached.is_set)

    def open(self) -> None:
        self._open.set()


def address(node: int) -> ReplicaAddress:
    return ReplicaAddress(NodeID(node), f"node{node}")


async def replica(bench: Bench, node: int) -> ReplicaStatus:
    answer, _ = await bench.call(GetNodeStatus(), node=node)
    assert isinstance(answer, GetNodeStatusReply)
    [found] = answer.status.replicas
    return found


async def ask_sync(bench: Bench, node: int, source: int, *, epoch: int = 2) -> SyncStatus:
    answer, _ = await bench.call(SyncReplica(STREAM, Epoch(epoch), address(source)), node=node)
    assert isinstance(answer, SyncReply)
    return answer.sync


async def wait_synced(bench: Bench, node: int) -> SyncStatus:
    """How the sync ends."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = (await replica(bench, node)).sync
            assert found is not None
            if found.state is not SyncState.IN_PROGRESS:
                return found
            await asyncio.sleep(0.001)


async def seal(bench: Bench, node: int, end: int, *, epoch: int = 2) -> ReplicaState:
    answer, _ = await bench.call(SealReplica(STREAM, Epoch(epoch), LLSN(end)), node=node)
    assert isinstance(answer, ReplicaStateReply)
    return answer.state


async def append(bench: Bench, sessions: Sequence[Repository], node: int, *, batches: int = BATCHES) -> int:
    """Append in epoch 1, order everything in rows of a few entries with gaps between them; returns the committed end."""
    appends = [
        asyncio.create_task(bench.call(Append(STREAM), make_batch(f"{n}".encode() * 90, b"x"), node=node))
        for n in range(batches)
    ]
    end = 2 * batches + 1
    await until(lambda: all(any(r.durable_end == end for r in s.reports) for s in sessions))
    for begin in range(1, end, 10):
        ordered = row(begin, min(begin + 10, end), glsn=begin + begin // 10, version=begin)
        for session in sessions:
            session.commit(ordered)
    await asyncio.gather(*appends)
    return end


async def filled(bench: Bench, *nodes: int) -> int:
    """A stream on these nodes, filled, sealed in epoch 2; returns where."""
    for node in nodes:
        await bench.start(node)
    await bench.run_stream(nodes)
    sessions = [await bench.session(node) for node in nodes]
    end = await append(bench, sessions, nodes[0])
    for node in nodes:
        assert await seal(bench, node, end) is ReplicaState.SEALED
    return end


async def contents(bench: Bench, node: int) -> list[bytes]:
    """Everything readable, in order."""
    entries: list[bytes] = []
    llsn = store(bench, node).low_llsn
    while llsn < store(bench, node).committed_end:
        fetched, payload = await bench.call(Fetch(STREAM, llsn), node=node)
        assert isinstance(fetched, FetchReply)
        entries += entries_in(payload)
        llsn = fetched.next_llsn
    return entries


def store(bench: Bench, node: int) -> LogStore:
    return bench.nodes[node]._replicas[STREAM].store


def batch_bytes(bench: Bench, node: int) -> int:
    return sum(segment.size for segment in store(bench, node)._segments)


async def assert_equal(bench: Bench, one: int, other: int) -> None:
    """Law 3: the same entries in the same order, and the same trimmed."""
    for node in (one, other):
        repository = await bench.session(node, term=9)
        repository.commit()
        await until(lambda node=node: bench.nodes[node]._marks.received)  # type: ignore[misc]
    ones, others = store(bench, one), store(bench, other)
    assert (ones.low_llsn, ones.committed_end, ones.trimmed) == (
        others.low_llsn,
        others.committed_end,
        others.trimmed,
    )
    low, end = ones.low_llsn, ones.committed_end
    assert [ones.glsn_of(LLSN(n)) for n in range(low, end)] == [
        others.glsn_of(LLSN(n)) for n in range(low, end)
    ]
    assert await contents(bench, one) == await contents(bench, other)


async def emptied(bench: Bench, node: int, end: int) -> None:
    """The node's directory is deleted while it is down; the manager recreates the replica and seals it."""
    if node in bench.nodes:
        await bench.stop(node)
        for path in (bench.root / f"volume{node}").rglob("lsid=*"):
            shutil.rmtree(path)
    await bench.start(node)
    await bench.call(AddLogStream(TOPIC, STREAM), node=node)
    assert await seal(bench, node, end) is ReplicaState.SEALING


async def unsealed(bench: Bench, *nodes: int, epoch: int = 2) -> None:
    for node in reversed(nodes):
        request = UnsealReplica(STREAM, Epoch(epoch), tuple(address(n) for n in nodes))
        answer, _ = await bench.call(request, node=node)
        assert isinstance(answer, ReplicaStateReply)
        assert answer.state is ReplicaState.RUNNING


def test_an_empty_replica_is_filled_from_a_sealed_one_and_runs_again(tmp_path: Path) -> None:
    """R-SYNC-1: asynchronous; IN_PROGRESS, then COMPLETE, with progress. A node whose directory was deleted comes back."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await emptied(bench, 2, end)
        begun = await ask_sync(bench, 2, 1)
        assert (begun.state, begun.source, begun.copied_end, begun.target_end) == (
            SyncState.IN_PROGRESS,
            1,
            1,
            end,
        )
        ended = await wait_synced(bench, 2)
        assert (ended.state, ended.copied_end, ended.target_end) == (SyncState.COMPLETE, end, end)
        assert ended.copied_bytes == batch_bytes(bench, 1)
        assert (await ask_sync(bench, 2, 1)).state is SyncState.COMPLETE, "again is harmless"
        assert await seal(bench, 2, end) is ReplicaState.SEALED
        await assert_equal(bench, 1, 2)
        await unsealed(bench, 1, 2)
        await bench.stop(2)
        await bench.start(2)
        await assert_equal(bench, 1, 2)

    run(tmp_path, story)


def test_a_second_source_is_refused_while_one_is_copied_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-SYNC-2. A request with the same source returns the progress."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2, 3)
        await emptied(bench, 3, end)
        gate = Gate(monkeypatch, 4)
        await ask_sync(bench, 3, 1)
        await gate.wait_reached()
        with pytest.raises(AlreadySyncing):
            await ask_sync(bench, 3, 2)
        progress = await ask_sync(bench, 3, 1)
        assert progress.state is SyncState.IN_PROGRESS
        assert 1 < progress.copied_end < end
        assert progress.copied_bytes > 0
        gate.open()
        assert (await wait_synced(bench, 3)).state is SyncState.COMPLETE

    run(tmp_path, story)


def test_only_a_replica_that_is_sealed_in_that_epoch_is_a_source(tmp_path: Path) -> None:
    """R-SYNC-2: anything else may still grow, or be cut."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await bench.start(3)
        await bench.call(AddLogStream(TOPIC, STREAM), node=3)
        assert await seal(bench, 3, end) is ReplicaState.SEALING
        for epoch in (1, 3):
            with pytest.raises(PreconditionFailed):
                await bench.call(CopyFrom(STREAM, Epoch(epoch), LLSN(1)), node=1)
        with pytest.raises(PreconditionFailed):
            await bench.call(CopyFrom(STREAM, Epoch(2), LLSN(1)), node=3)
        await bench.start(4)
        with pytest.raises(UnknownLogStream):
            await bench.call(CopyFrom(STREAM, Epoch(2), LLSN(1)), node=4)
        await unsealed(bench, 1, 2)
        await ask_sync(bench, 3, 1)
        ended = await wait_synced(bench, 3)
        assert (ended.state, ended.rebuild) == (SyncState.ERROR, False)
        assert "running" in ended.why
        assert (await replica(bench, 3)).committed_end == 1

    run(tmp_path, story)


def test_only_a_replica_that_is_sealing_in_that_epoch_is_filled(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        assert (await ask_sync(bench, 1, 2)).state is SyncState.COMPLETE, "everything is there already"
        with pytest.raises(StaleEpoch):
            await ask_sync(bench, 1, 2, epoch=1)
        with pytest.raises(PreconditionFailed):
            await ask_sync(bench, 1, 2, epoch=3)
        await unsealed(bench, 1, 2)
        with pytest.raises(PreconditionFailed):
            await ask_sync(bench, 1, 2)
        await bench.start(3)
        await bench.call(AddLogStream(TOPIC, STREAM), node=3)
        with pytest.raises(PreconditionFailed):
            await ask_sync(bench, 3, 1)
        assert end > 1

    run(tmp_path, story)


def test_a_sync_whose_source_crashes_fails_and_resumes_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-SYNC-3."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await emptied(bench, 2, end)
        gate = Gate(monkeypatch, 5)
        await ask_sync(bench, 2, 1)
        await gate.wait_reached()
        await bench.stop(1)
        gate.open()
        failed = await wait_synced(bench, 2)
        assert (failed.state, failed.rebuild) == (SyncState.ERROR, False)
        stood = (await replica(bench, 2)).committed_end
        assert 1 < stood < end
        await ask_sync(bench, 2, 1)
        assert (await wait_synced(bench, 2)).state is SyncState.ERROR, "nobody listens there"
        await bench.start(1)
        assert await seal(bench, 1, end) is ReplicaState.SEALED
        again = await ask_sync(bench, 2, 1)
        assert again.copied_end == stood
        ended = await wait_synced(bench, 2)
        assert ended.state is SyncState.COMPLETE
        assert 0 < ended.copied_bytes < batch_bytes(bench, 1)
        assert await seal(bench, 2, end) is ReplicaState.SEALED
        await assert_equal(bench, 1, 2)

    run(tmp_path, story)


def test_a_sync_whose_destination_stops_resumes_where_it_was_after_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-SYNC-3."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await emptied(bench, 2, end)
        gate = Gate(monkeypatch, 5)
        await ask_sync(bench, 2, 1)
        await gate.wait_reached()
        syncer = bench.nodes[2]._replicas[STREAM]._syncer
        stopping = asyncio.create_task(bench.stop(2))
        await until(lambda: syncer._running is None)
        gate.open()
        await stopping
        await bench.start(2)
        found = await replica(bench, 2)
        assert 1 < found.committed_end < end
        assert found.sync is None
        assert await seal(bench, 2, end) is ReplicaState.SEALING
        assert (await ask_sync(bench, 2, 1)).copied_end == found.committed_end
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        assert await seal(bench, 2, end) is ReplicaState.SEALED
        await assert_equal(bench, 1, 2)

    run(tmp_path, story)


def test_a_newer_seal_ends_a_sync_and_the_next_one_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await emptied(bench, 2, end)
        gate = Gate(monkeypatch, 5)
        await ask_sync(bench, 2, 1)
        await gate.wait_reached()
        sealing = asyncio.create_task(seal(bench, 2, end, epoch=3))
        await until(lambda: bench.nodes[2]._replicas[STREAM].epoch == 3)
        assert (await replica(bench, 2)).sync is None
        gate.open()
        assert await sealing is ReplicaState.SEALING
        await ask_sync(bench, 2, 1, epoch=3)
        assert (await wait_synced(bench, 2)).state is SyncState.ERROR, "the source is in epoch 2"
        assert await seal(bench, 1, end, epoch=3) is ReplicaState.SEALED
        await ask_sync(bench, 2, 1, epoch=3)
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        assert await seal(bench, 2, end, epoch=3) is ReplicaState.SEALED
        await assert_equal(bench, 1, 2)

    run(tmp_path, story)


def test_trims_are_carried_and_nothing_comes_back(tmp_path: Path) -> None:
    """R-SYNC-3, law 9: also after a restart of the replica that was filled."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        repository = await bench.session(1, term=2)
        repository.commit(high=66, trimmed=30)
        await until(lambda: repository.marks_applied == repository.serial)
        low = store(bench, 1).low_llsn
        assert low > 20
        await emptied(bench, 2, end)
        await ask_sync(bench, 2, 1)
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        assert await seal(bench, 2, end) is ReplicaState.SEALED
        await assert_equal(bench, 1, 2)
        await bench.stop(2)
        await bench.start(2)
        await assert_equal(bench, 1, 2)
        with pytest.raises(Trimmed):
            await bench.call(ReadAt(TOPIC, GLSN(30)), node=2)
        with pytest.raises(Trimmed):
            await bench.call(Fetch(STREAM, LLSN(low - 1)), node=2)
        assert batch_bytes(bench, 2) <= batch_bytes(bench, 1), "nor is it copied"

    run(tmp_path, story)


def test_a_replica_whose_entries_were_all_trimmed_meanwhile_is_filled_from_there_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was filled half-way when its source crashed; then the topic was trimmed."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await emptied(bench, 2, end)
        gate = Gate(monkeypatch, 3)
        await ask_sync(bench, 2, 1)
        await gate.wait_reached()
        await bench.stop(1)
        gate.open()
        assert (await wait_synced(bench, 2)).state is SyncState.ERROR
        await bench.start(1)
        repository = await bench.session(1, term=2)
        repository.commit(high=66, trimmed=40)
        await until(lambda: repository.marks_applied == repository.serial)
        assert store(bench, 1).low_llsn > (await replica(bench, 2)).committed_end > 1
        assert await seal(bench, 1, end) is ReplicaState.SEALED
        await ask_sync(bench, 2, 1)
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        assert await seal(bench, 2, end) is ReplicaState.SEALED
        await assert_equal(bench, 1, 2)

    run(tmp_path, story)


def test_a_replica_that_has_the_entries_and_lacks_their_rows_gets_only_those(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        for node in (1, 2):
            await bench.start(node)
        await bench.run_stream((1, 2))
        first, second = [await bench.session(node) for node in (1, 2)]
        waiting = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"a", b"b")))
        await until(lambda: all(any(r.durable_end == 3 for r in s.reports) for s in (first, second)))
        first.commit(row(1, 3))
        await waiting
        assert await seal(bench, 1, 3) is ReplicaState.SEALED
        assert await seal(bench, 2, 3) is ReplicaState.SEALING
        await ask_sync(bench, 2, 1)
        ended = await wait_synced(bench, 2)
        assert (ended.state, ended.copied_end, ended.copied_bytes) == (SyncState.COMPLETE, 3, 0)
        assert await seal(bench, 2, 3) is ReplicaState.SEALED
        await assert_equal(bench, 1, 2)

    run(tmp_path, story)


def test_a_tail_of_another_epoch_is_never_committed_but_cut_and_its_append_refused(tmp_path: Path) -> None:
    """Law 3, 10: the replica left the stream, which continued without it, and came back with what was never ordered."""

    async def story(bench: Bench) -> None:
        await bench.start(1)
        await bench.start(2)
        await bench.run_stream((2,))
        stale = await bench.session(2)
        waiting = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"stale", b"stale"), node=2))
        await until(lambda: any(report.durable_end == 3 for report in stale.reports))
        await bench.call(AddLogStream(TOPIC, STREAM), node=1)
        await bench.run_stream((1,), epoch=2, add=False)
        repository = await bench.session(1)
        ordered = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"a", b"b"), node=1))
        await until(lambda: any(report.durable_end == 3 for report in repository.reports))
        repository.commit(row(1, 3, epoch=2))
        await ordered
        assert await seal(bench, 1, 3, epoch=3) is ReplicaState.SEALED
        assert await seal(bench, 2, 3, epoch=3) is ReplicaState.SEALING
        stale.commit(row(1, 3, epoch=2))
        await until(lambda: bench.nodes[2]._replicas[STREAM].lagging)
        assert (await replica(bench, 2)).committed_end == 1
        assert not waiting.done()
        await ask_sync(bench, 2, 1, epoch=3)
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        with pytest.raises(Sealed):
            await waiting
        assert await seal(bench, 2, 3, epoch=3) is ReplicaState.SEALED
        await assert_equal(bench, 1, 2)
        assert await contents(bench, 2) == [b"a", b"b"]

    run(tmp_path, story)


def test_an_append_that_waits_at_a_replica_which_begins_behind_it_is_left_undecided(tmp_path: Path) -> None:
    """Law 10: it was ordered, and trimmed since; this replica knows of neither."""

    async def story(bench: Bench) -> None:
        for node in (1, 2):
            await bench.start(node)
        await bench.run_stream((2, 1))
        waiting = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"a", b"b"), node=2))
        repository = await bench.session(1)
        await until(lambda: store(bench, 1).written_end == store(bench, 2).written_end == 3)
        repository.commit(row(1, 3))
        repository.commit(high=2, trimmed=2)
        await until(lambda: repository.marks_applied == repository.serial)
        assert await seal(bench, 1, 3) is ReplicaState.SEALED
        assert await seal(bench, 2, 3) is ReplicaState.SEALING
        assert not waiting.done()
        await ask_sync(bench, 2, 1)
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        with pytest.raises(OutcomeUnknown):
            await waiting
        assert await seal(bench, 2, 3) is ReplicaState.SEALED
        assert (store(bench, 2).low_llsn, store(bench, 2).trimmed) == (3, 2)
        point = bench.nodes[2]._replicas[STREAM].point()
        assert (point.committed_end, point.last_glsn) == (3, -1), "it knows no position of its last entry"

    run(tmp_path, story)


def test_a_replica_that_contradicts_what_was_ordered_must_be_rebuilt(tmp_path: Path) -> None:
    """Two primaries in one epoch cannot be; if they were, nothing of the wrong one is mixed with the right one's."""

    async def story(bench: Bench) -> None:
        for node, shapes in ((1, ((b"a", b"b"), (b"c", b"d"))), (2, ((b"x", b"y", b"z"),))):
            await bench.start(node)
            await bench.run_stream((node,))
            session = await bench.session(node)
            end = 1 + sum(map(len, shapes))
            waiting = [
                asyncio.create_task(bench.call(Append(STREAM), make_batch(*shape), node=node))
                for shape in shapes
            ]
            await until(lambda end=end, of=session: any(r.durable_end == end for r in of.reports))  # type: ignore[misc]
            if node == 1:
                session.commit(row(1, end))
                await asyncio.gather(*waiting)
        assert await seal(bench, 1, 5) is ReplicaState.SEALED
        assert await seal(bench, 2, 5) is ReplicaState.SEALING
        await ask_sync(bench, 2, 1)
        failed = await wait_synced(bench, 2)
        assert (failed.state, failed.rebuild) == (SyncState.ERROR, True)
        await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(2)), node=2)
        assert await seal(bench, 2, 5) is ReplicaState.SEALING
        await ask_sync(bench, 2, 1)
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        await assert_equal(bench, 1, 2)

    run(tmp_path, story)


def test_rows_that_the_repository_pushes_meanwhile_are_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-CTX-4: whichever comes first."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await emptied(bench, 2, end)
        repository = await bench.session(2, term=2)
        gate = Gate(monkeypatch, 8)
        await ask_sync(bench, 2, 1)
        await gate.wait_reached()
        for begin in range(1, end, 10):
            repository.commit(row(begin, min(begin + 10, end), glsn=begin + begin // 10, version=begin))
            if bench.nodes[2]._replicas[STREAM].lagging:
                break
        gate.open()
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        assert await seal(bench, 2, end) is ReplicaState.SEALED
        await assert_equal(bench, 1, 2)

    run(tmp_path, story)


def test_a_replica_that_is_being_filled_does_not_report_that_it_is_empty(tmp_path: Path) -> None:
    """Law 10: acknowledged entries exist, whatever this replica lacks."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await bench.stop(2)
        for path in (bench.root / "volume2").rglob("lsid=*"):
            shutil.rmtree(path)
        await bench.start(2)
        await bench.call(AddLogStream(TOPIC, STREAM), node=2)
        (await bench.session(2, term=2)).commit(high=66)
        await until(lambda: bench.nodes[2]._marks.received)
        for sealed in (False, True):
            if sealed:
                assert await seal(bench, 2, end) is ReplicaState.SEALING
            with pytest.raises(Unavailable):
                await bench.call(Fetch(STREAM, LLSN(1), wait_s=20), node=2)
            with pytest.raises(Unavailable):
                await bench.call(ReadAt(TOPIC, log_stream=STREAM, llsn=LLSN(1)), node=2)
        with pytest.raises(Unavailable):
            await bench.call(ReadAt(TOPIC, GLSN(1)), node=2)

    run(tmp_path, story)


def test_a_rotten_source_is_not_copied_and_notes_its_damage(tmp_path: Path) -> None:
    """A bad checksum is never served, not to a replica either."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await emptied(bench, 2, end)
        segment = sorted((bench.root / "volume1").rglob("*.seg"))[1]
        content = bytearray(segment.read_bytes())
        content[100] ^= 0x10
        segment.write_bytes(content)
        await ask_sync(bench, 2, 1)
        failed = await wait_synced(bench, 2)
        assert (failed.state, failed.rebuild) == (SyncState.ERROR, False)
        assert "damaged batch" in failed.why
        async with asyncio.timeout(TIMEOUT_S):
            while not (await replica(bench, 1)).damage:
                await asyncio.sleep(0.001)

    run(tmp_path, story)
