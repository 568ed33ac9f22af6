"""One storage node and scripted neighbours: what it takes, reports, serves, refuses, and finds again after a restart."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from tests.storagenode.scripted import (
    STREAM,
    TIMEOUT_S,
    TOPIC,
    Bench,
    entries_in,
    make_batch,
    placed,
    row,
    run,
    until,
)
from varlog.model.batch import crc32c
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    InvalidRequest,
    NotPrimary,
    NotWritten,
    OutcomeUnknown,
    PreconditionFailed,
    Sealed,
    StaleEpoch,
    StartupError,
    Trimmed,
    Unavailable,
    UnknownLogStream,
)
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState
from varlog.rpc.messages import (
    AddLogStream,
    Append,
    AppendReply,
    Fetch,
    FetchReply,
    GetNodeStatus,
    GetNodeStatusReply,
    ReadAt,
    ReadAtReply,
    RemoveLogStream,
    ReplicaAddress,
    ReplicaOpen,
    ReplicaStateReply,
    Replicate,
    SealReplica,
    UnsealReplica,
)


def test_an_append_is_answered_when_it_is_ordered_and_not_before(tmp_path: Path) -> None:
    """R-ORD-1, R-ORD-3, laws 1 and 5."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        append = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"a", b"b")))
        await until(lambda: any(report.durable_end == 3 for report in repository.reports))
        assert not append.done(), "durable, but not ordered yet"
        repository.commit()
        with pytest.raises(NotWritten):
            await bench.call(ReadAt(TOPIC, GLSN(7)))
        repository.commit(row(1, 3, glsn=7))
        assert (await append)[0] == AppendReply(GLSN(7), LLSN(1))
        found, payload = await bench.call(ReadAt(TOPIC, GLSN(8)))
        assert found == ReadAtReply(True, STREAM, GLSN(8))
        assert entries_in(payload) == [b"b"]

    run(tmp_path, story)


def test_what_a_client_sends_is_checked_before_it_is_taken(tmp_path: Path) -> None:
    """Law 10: refused is nowhere. A flipped byte, a cut batch, two batches, nonsense."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        good = make_batch(b"abc", b"def")
        flipped = bytearray(good)
        flipped[70] ^= 1
        backwards = bytearray(good)
        backwards[64:76] = struct.pack("<3i", 0, 7, 6)  # offsets that fall, under a checksum that is right
        backwards[56:60] = struct.pack("<I", crc32c(backwards[64:]))
        for bad in (flipped, backwards, good[:-8], good + good, b"", b"x" * 100, good[:64]):
            with pytest.raises(InvalidRequest):
                await bench.call(Append(STREAM), bad)
        status = await node_status(bench)
        assert status.status.replicas[0].durable_end == 1

    run(tmp_path, story)


def test_appends_need_a_running_primary(tmp_path: Path) -> None:
    """R-SEAL-1, R-SN-8, R-REG-2: a replica that was only added takes none."""

    async def story(bench: Bench) -> None:
        await bench.start(1)
        await bench.start(2)
        with pytest.raises(UnknownLogStream):
            await bench.call(Append(STREAM), make_batch(b"a"))
        await bench.call(AddLogStream(TOPIC, STREAM))
        with pytest.raises(Sealed):
            await bench.call(Append(STREAM), make_batch(b"a"))
        await bench.call(AddLogStream(TOPIC, STREAM), node=2)
        await bench.run_stream((1, 2), add=False)
        with pytest.raises(NotPrimary):
            await bench.call(Append(STREAM), make_batch(b"a"), node=2)

    run(tmp_path, story)


def test_backups_hold_the_same_bytes_and_report_for_themselves(tmp_path: Path) -> None:
    """R-ORD-1, R-ORD-2, R-READ-4: any number of backups; any replica serves."""

    async def story(bench: Bench) -> None:
        for node in (1, 2, 3):
            await bench.start(node)
        await bench.run_stream((1, 2, 3))
        sessions = [await bench.session(node) for node in (1, 2, 3)]
        append = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"a", b"bc")))
        await until(lambda: all(any(r.durable_end == 3 for r in session.reports) for session in sessions))
        for session in sessions:
            session.commit(row(1, 3))
        assert (await append)[0] == AppendReply(GLSN(1), LLSN(1))
        payloads = []
        for node in (1, 2, 3):
            fetched, payload = await bench.call(Fetch(STREAM, LLSN(1), wait_s=5), node=node)
            assert isinstance(fetched, FetchReply)
            assert fetched.rows == ((1, 1, 2),)
            payloads.append(bytes(payload))
        assert payloads[0] == payloads[1] == payloads[2]
        assert entries_in(bytearray(payloads[0])) == [b"a", b"bc"]

    run(tmp_path, story)


def test_a_primary_that_loses_a_backup_seals_itself_and_a_seal_decides_what_waits(tmp_path: Path) -> None:
    """R-SEAL-5, R-SEAL-6: ordered ones succeed, the rest certainly is nowhere."""

    async def story(bench: Bench) -> None:
        await bench.start(1)
        await bench.start(2)
        await bench.run_stream((1, 2))
        repository = await bench.session(1)
        first = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"kept")))
        await until(lambda: any(report.durable_end == 2 for report in repository.reports))
        second = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"cut")))
        await until(lambda: any(report.durable_end == 3 for report in repository.reports))
        await bench.stop(2)
        await until_sealing(bench)
        with pytest.raises(Sealed):
            await bench.call(Append(STREAM), make_batch(b"late"))
        assert not first.done()
        assert not second.done()
        answer, _ = await bench.call(SealReplica(STREAM, Epoch(2), LLSN(2)))
        assert answer == ReplicaStateReply(ReplicaState.SEALING, LLSN(1)), "it lacks the commit of the first"
        repository.commit(row(1, 2))
        assert (await first)[0] == AppendReply(GLSN(1), LLSN(1))
        answer, _ = await bench.call(SealReplica(STREAM, Epoch(2), LLSN(2)))
        assert answer == ReplicaStateReply(ReplicaState.SEALED, LLSN(2))
        with pytest.raises(Sealed):
            await second
        await bench.stop(1)
        await bench.start(1)
        status = await node_status(bench)
        assert status.status.replicas[0].durable_end == 2, "the tail is gone from disk (law 6)"

    run(tmp_path, story)


def test_a_seal_below_a_commit_freezes_the_replica_and_only_it(tmp_path: Path) -> None:
    """R-SEAL-4."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        append = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"a", b"b")))
        await until(lambda: any(report.durable_end == 3 for report in repository.reports))
        repository.commit(row(1, 3))
        await append
        with pytest.raises(PreconditionFailed):
            await bench.call(SealReplica(STREAM, Epoch(2), LLSN(2)))
        status = await node_status(bench)
        assert status.status.replicas[0].state is ReplicaState.FROZEN
        with pytest.raises(Unavailable):
            await bench.call(ReadAt(TOPIC, GLSN(1)))
        await bench.call(AddLogStream(TOPIC, LogStreamID(2)))  # the node itself continues

    run(tmp_path, story)


def test_a_commit_beyond_a_seal_freezes_the_replica(tmp_path: Path) -> None:
    """R-SEAL-7."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        append = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"a", b"b")))
        await until(lambda: any(report.durable_end == 3 for report in repository.reports))
        await bench.call(SealReplica(STREAM, Epoch(2), LLSN(2)))
        repository.commit(row(1, 3))
        with pytest.raises(OutcomeUnknown):
            await append
        status = await node_status(bench)
        assert status.status.replicas[0].state is ReplicaState.FROZEN

    run(tmp_path, story)


def test_a_delayed_seal_does_not_cut_what_was_acknowledged_since_even_after_a_restart(tmp_path: Path) -> None:
    """Law 6; an opened epoch is durable."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        append = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"a")))
        await until(lambda: any(report.durable_end == 2 for report in repository.reports))
        with pytest.raises(StaleEpoch):
            await bench.call(SealReplica(STREAM, Epoch(1), LLSN(1)))
        append.cancel()
        await bench.stop()
        await bench.start()
        with pytest.raises(StaleEpoch):
            await bench.call(SealReplica(STREAM, Epoch(1), LLSN(1)))
        status = await node_status(bench)
        assert status.status.replicas[0].durable_end == 2

    run(tmp_path, story)


def test_a_backup_refuses_another_epoch_and_a_gap_by_closing_the_connection(tmp_path: Path) -> None:
    """Laws 4 and 7."""

    async def story(bench: Bench) -> None:
        await bench.start(1)
        await bench.start(2)
        await bench.run_stream((1, 2))
        with pytest.raises(StaleEpoch):
            await bench.call(ReplicaOpen(STREAM, Epoch(9), LLSN(1)), node=2)
        for bad in (placed(2, b"gap"), placed(1, b"old", epoch=0), bytearray(b"junk")):
            upstream = await bench.connect(2)
            await upstream.call(ReplicaOpen(STREAM, Epoch(1), LLSN(1)), timeout_s=TIMEOUT_S)
            upstream.send(Replicate(STREAM, Epoch(1)), bad)
            await until(lambda connection=upstream: connection.closed)  # type: ignore[misc]
        status = await node_status(bench, node=2)
        assert status.status.replicas[0].durable_end == 1

    run(tmp_path, story)


def test_a_restarted_node_finds_everything_and_waits_for_the_repository(tmp_path: Path) -> None:
    """R-SN-3, R-SN-8, R-CTX-3: SEALING, durable as before; no read before the repository's first word (law 9)."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        append = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"a", b"b")))
        await until(lambda: any(report.durable_end == 3 for report in repository.reports))
        repository.commit(row(1, 3))
        await append
        await bench.stop()
        await bench.start()
        status = await node_status(bench)
        replica = status.status.replicas[0]
        assert (replica.state, replica.durable_end, replica.committed_end) == (ReplicaState.SEALING, 3, 3)
        with pytest.raises(Unavailable):
            await bench.call(ReadAt(TOPIC, GLSN(1)))
        repository = await bench.session()
        assert repository.opened.replicas[0].committed_end == 3
        repository.commit(high=2)
        found, payload = await bench.call(ReadAt(TOPIC, GLSN(1), wait_s=5))
        assert found == ReadAtReply(True, STREAM, GLSN(1))
        assert entries_in(payload) == [b"a"]

    run(tmp_path, story)


def test_what_is_ordered_and_its_high_watermark_are_seen_and_change_as_one(tmp_path: Path) -> None:
    """R-CTX-1: beside the end of what is written; a restart finds them as they were, and so does the repository."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        appends = [asyncio.create_task(bench.call(Append(STREAM), make_batch(b"x"))) for _ in range(20)]
        await until(lambda: any(report.durable_end == 21 for report in repository.reports))
        seen: set[tuple[int, int]] = set()

        async def look() -> None:
            while (21, 200) not in seen:
                [replica] = (await node_status(bench)).status.replicas
                assert replica.durable_end == 21
                seen.add((replica.committed_end, replica.high_watermark))

        looking = asyncio.create_task(look())
        for llsn in range(1, 21):
            repository.commit(row(llsn, llsn + 1, glsn=10 * llsn))
            before = len(seen)
            await until(lambda before=before: len(seen) > before)  # type: ignore[misc]
        await asyncio.gather(looking, *appends)
        assert seen <= {(llsn + 1, 10 * llsn) for llsn in range(21)}
        await bench.stop()
        await bench.start()
        [replica] = (await node_status(bench)).status.replicas
        assert (replica.committed_end, replica.durable_end) == (21, 21)
        assert (replica.low_watermark, replica.high_watermark) == (0, 200)
        [point] = (await bench.session()).opened.replicas
        assert (point.committed_end, point.durable_end, point.last_glsn) == (21, 21, 200)

    run(tmp_path, story)


def test_rows_that_come_again_are_harmless_and_a_gap_ends_the_session(tmp_path: Path) -> None:
    """R-CTX-4."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        appends = [asyncio.create_task(bench.call(Append(STREAM), make_batch(b"x" * 9))) for _ in range(4)]
        await until(lambda: any(report.durable_end == 5 for report in repository.reports))
        repository.commit(row(1, 3))
        repository.commit(row(1, 3))
        repository.commit(row(1, 4))
        await until(lambda: sum(append.done() for append in appends) == 3)
        repository.commit(row(6, 7))
        await until(lambda: repository.connection.closed)
        again = await bench.session()
        assert again.opened.replicas[0].committed_end == 4
        again.commit(row(4, 5))
        await asyncio.gather(*appends)

    run(tmp_path, story)


def test_an_older_repository_is_refused(tmp_path: Path) -> None:
    """Law 7."""

    async def story(bench: Bench) -> None:
        await bench.start()
        newer = await bench.session(term=5)
        with pytest.raises(PreconditionFailed):
            await bench.session(term=4)
        newest = await bench.session(term=5)
        await until(lambda: newer.connection.closed)
        assert not newest.connection.closed

    run(tmp_path, story)


def test_a_trim_is_durable_before_it_is_confirmed_and_survives_a_restart(tmp_path: Path) -> None:
    """R-TRIM-1, R-READ-1, law 9."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        appends = [asyncio.create_task(bench.call(Append(STREAM), make_batch(b"x" * 900))) for _ in range(12)]
        await until(lambda: any(report.durable_end == 13 for report in repository.reports))
        repository.commit(row(1, 13))
        await asyncio.gather(*appends)
        segments = len(list(tmp_path.rglob("*.seg")))
        repository.commit(high=12, trimmed=9)
        await until(lambda: repository.marks_applied == repository.serial)
        assert len(list(tmp_path.rglob("*.seg"))) < segments, "whole segments are gone"
        for again in (False, True):
            if again:
                await bench.stop()
                await bench.start()
                (await bench.session()).commit(high=12, trimmed=9)
            with pytest.raises(Trimmed):
                await bench.call(ReadAt(TOPIC, GLSN(9), wait_s=5))
            with pytest.raises(Trimmed):
                await bench.call(Fetch(STREAM, LLSN(9), wait_s=5))
            found, _ = await bench.call(ReadAt(TOPIC, GLSN(10), wait_s=5))
            assert found == ReadAtReply(True, STREAM, GLSN(10))

    run(tmp_path, story)


def test_a_fetch_waits_for_what_is_not_ordered_yet_and_is_woken(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        repository.commit()
        waiting = asyncio.create_task(bench.call(Fetch(STREAM, LLSN(1), wait_s=20)))
        append = asyncio.create_task(bench.call(Append(STREAM), make_batch(b"a")))
        await until(lambda: any(report.durable_end == 2 for report in repository.reports))
        assert not waiting.done()
        repository.commit(row(1, 2, glsn=40))
        fetched, payload = await waiting
        assert isinstance(fetched, FetchReply)
        assert (fetched.rows, fetched.next_llsn) == (((1, 40, 1),), 2)
        assert entries_in(payload) == [b"a"]
        await append
        nothing, payload = await bench.call(Fetch(STREAM, LLSN(2), wait_s=0.01))
        assert isinstance(nothing, FetchReply)
        assert (nothing.rows, nothing.next_llsn, bytes(payload)) == ((), 2, b"")

    run(tmp_path, story)


def test_a_position_ordered_in_a_stream_of_other_nodes_is_distinguished_from_one_not_written(
    tmp_path: Path,
) -> None:
    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        repository = await bench.session()
        repository.commit(high=5)
        found, _ = await bench.call(ReadAt(TOPIC, GLSN(3), wait_s=5))
        assert found == ReadAtReply(found=False)
        with pytest.raises(NotWritten):
            await bench.call(ReadAt(TOPIC, GLSN(6)))
        with pytest.raises(InvalidRequest):
            await bench.call(ReadAt(TOPIC, GLSN(0)))
        with pytest.raises(NotWritten):
            await bench.call(ReadAt(TOPIC, log_stream=STREAM, llsn=LLSN(1)))

    run(tmp_path, story)


def test_a_log_stream_is_made_once_within_the_limit_and_removed_with_its_data(tmp_path: Path) -> None:
    """R-SN-6, R-REG-3, R-REG-5."""

    async def story(bench: Bench) -> None:
        await bench.start(streams_max=1)
        await bench.call(AddLogStream(TOPIC, STREAM))
        with pytest.raises(PreconditionFailed):
            await bench.call(AddLogStream(TOPIC, LogStreamID(2)))
        await bench.stop()
        await bench.start(streams_max=2)
        with pytest.raises(PreconditionFailed):
            await bench.call(AddLogStream(TOPIC, STREAM))
        await bench.call(RemoveLogStream(STREAM))
        assert not list(tmp_path.rglob("lsid=*"))
        with pytest.raises(UnknownLogStream):
            await bench.call(RemoveLogStream(STREAM))
        await bench.call(AddLogStream(TOPIC, STREAM))

    run(tmp_path, story)


def test_a_removal_that_the_disk_refuses_is_shown_and_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-REG-5: a replica that nobody sees any more, and whose data stays, would be back after a restart."""
    monkeypatch.setattr("varlog.storagenode.node.REMOVAL_RETRY_S", 0.01)

    def refuse(self: object, path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.call(AddLogStream(TOPIC, STREAM))
        with monkeypatch.context() as failing:
            failing.setattr("varlog.runtime.disk.OsDisk.sync_directory", refuse)
            with pytest.raises(Unavailable, match="the disk refuses"):
                await bench.call(RemoveLogStream(STREAM))
            [replica] = (await node_status(bench)).status.replicas
            assert "its removal is not finished" in replica.trouble
        while (await node_status(bench)).status.replicas:
            await asyncio.sleep(0.01)
        assert not list(tmp_path.rglob("lsid=*"))

    run(tmp_path, story)


def test_a_replica_that_is_created_after_a_trim_gets_it(tmp_path: Path) -> None:
    """Law 9: the repository sends a trim to a node once, and not again for a replica that did not exist yet."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.call(AddLogStream(TOPIC, LogStreamID(2)))
        repository = await bench.session()
        repository.commit(high=12, trimmed=9, stream=LogStreamID(2))
        await until(lambda: repository.marks_applied == repository.serial)
        await bench.call(AddLogStream(TOPIC, STREAM))
        while any(one.low_watermark != 9 for one in (await node_status(bench)).status.replicas):
            await asyncio.sleep(0.01)

    run(tmp_path, story)


def test_a_damaged_replica_is_reported_and_the_node_starts_without_it(tmp_path: Path) -> None:
    """Its files stay as they are; the other replicas of the node continue."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.run_stream()
        await bench.call(AddLogStream(TOPIC, LogStreamID(2)))
        await bench.stop()
        [state] = tmp_path.rglob("lsid=1/state")
        content = bytearray(state.read_bytes())
        content[9] ^= 0xFF
        state.write_bytes(content)
        await bench.start()
        status = await node_status(bench)
        found = {replica.log_stream: replica for replica in status.status.replicas}
        assert found[STREAM].state is ReplicaState.FROZEN
        assert "state" in found[STREAM].trouble
        assert found[LogStreamID(2)].state is ReplicaState.SEALING
        assert state.read_bytes() == content

    run(tmp_path, story)


def test_a_primary_does_not_start_without_its_backups(tmp_path: Path) -> None:
    """R-UNSEAL-1."""

    async def story(bench: Bench) -> None:
        await bench.start(1)
        await bench.call(AddLogStream(TOPIC, STREAM))
        await bench.call(SealReplica(STREAM, Epoch(1), LLSN(1)))
        replicas = (ReplicaAddress(NodeID(1), "node1"), ReplicaAddress(NodeID(2), "node2"))
        with pytest.raises(Unavailable):
            await bench.call(UnsealReplica(STREAM, Epoch(1), replicas))
        with pytest.raises(PreconditionFailed):
            await bench.call(UnsealReplica(STREAM, Epoch(1), replicas[1:]))
        status = await node_status(bench)
        assert status.status.replicas[0].state is ReplicaState.SEALED

    run(tmp_path, story)


def test_two_nodes_cannot_use_one_directory(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.start()
        other = Bench(tmp_path)
        with pytest.raises(StartupError):
            await other.start()

    run(tmp_path, story)


async def until_sealing(bench: Bench) -> None:
    """The primary notices the loss of its backup by its connection."""
    async with asyncio.timeout(TIMEOUT_S):
        while (await node_status(bench)).status.replicas[0].state is ReplicaState.RUNNING:
            await asyncio.sleep(0)


async def node_status(bench: Bench, *, node: int = 1) -> GetNodeStatusReply:
    answer, _ = await bench.call(GetNodeStatus(), node=node)
    assert isinstance(answer, GetNodeStatusReply)
    return answer
