"""Replicas that are rebuilt, what is set aside for them, and removals: real nodes, and a manager by hand."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from tests.storagenode.committed.test_sync import (
    ask_sync,
    assert_equal,
    filled,
    replica,
    seal,
    unsealed,
    wait_synced,
)
from tests.storagenode.scripted import STREAM, TIMEOUT_S, TOPIC, Bench, run, until
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import PreconditionFailed, StaleEpoch, Unavailable, UnknownLogStream
from varlog.model.ids import ClusterUUID, LogStreamID
from varlog.model.invariant import InvariantBroken
from varlog.model.lsn import LLSN
from varlog.model.status import ReplicaState, SyncState
from varlog.rpc.messages import AddLogStream, RebuildReplica, RemoveLogStream, SealReplica
from varlog.storage.committed.log_store import LogStore
from varlog.storage.volume import NodeVolumes
from varlog.storagenode import node as node_module


def asides(bench: Bench, node: int) -> list[Path]:
    """Without looking into them: one that is being removed is gone a moment later."""
    return sorted((bench.root / f"volume{node}").glob("cid=*/snid=*/aside-lsid=*"))


async def damaged(bench: Bench, node: int) -> None:
    """The replica's state file has rotted when the node starts."""
    await bench.stop(node)
    [state] = (bench.root / f"volume{node}").rglob("lsid=1/state")
    content = bytearray(state.read_bytes())
    content[9] ^= 0xFF
    state.write_bytes(content)
    await bench.start(node)
    assert (await replica(bench, node)).state is ReplicaState.FROZEN


@pytest.mark.parametrize("restarted", [False, True])
def test_a_damaged_replica_is_set_aside_and_rebuilt_and_removed_when_the_new_one_has_run(
    tmp_path: Path, restarted: bool
) -> None:
    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await damaged(bench, 2)
        await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(2)), node=2)
        await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(2)), node=2)
        assert (await replica(bench, 2)).state is ReplicaState.SEALING
        assert len(asides(bench, 2)) == 1, "asked twice, done once"
        if restarted:
            await bench.stop(2)
            await bench.start(2)
        assert await seal(bench, 2, end) is ReplicaState.SEALING
        await ask_sync(bench, 2, 1)
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        assert await seal(bench, 2, end) is ReplicaState.SEALED
        assert len(asides(bench, 2)) == 1, "kept until the new one has run"
        await assert_equal(bench, 1, 2)
        await unsealed(bench, 1, 2)
        await until(lambda: not asides(bench, 2))

    run(tmp_path, story)


def test_what_was_set_aside_goes_at_the_next_start_if_the_new_replica_has_run(tmp_path: Path) -> None:
    """A crash between the opening and the removal."""

    async def story(bench: Bench) -> None:
        await filled(bench, 1, 2)
        await unsealed(bench, 1, 2)
        await bench.stop(2)
        [path] = (bench.root / "volume2").rglob("lsid=1")
        shutil.copytree(path, path.with_name("aside-lsid=1"))
        await bench.start(2)
        await until(lambda: not asides(bench, 2))
        assert (await replica(bench, 2)).state is ReplicaState.SEALING

    run(tmp_path, story)


def test_what_was_set_aside_goes_when_a_disk_that_refused_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(bench: Bench) -> None:
        await filled(bench, 1, 2)
        await unsealed(bench, 1, 2)
        await bench.stop(2)
        [path] = (bench.root / "volume2").rglob("lsid=1")
        shutil.copytree(path, path.with_name("aside-lsid=1"))
        refused: list[LogStreamID] = []
        drop_aside = NodeVolumes.drop_aside

        def refuse_once(volumes: NodeVolumes, log_stream: LogStreamID) -> None:
            if not refused:
                refused.append(log_stream)
                raise OSError(errno.EIO, "not now")
            drop_aside(volumes, log_stream)

        monkeypatch.setattr(NodeVolumes, "drop_aside", refuse_once)
        monkeypatch.setattr(node_module, "REMOVAL_RETRY_S", 0.01)
        await bench.start(2)
        await until(lambda: not asides(bench, 2))
        assert refused

    run(tmp_path, story)


@pytest.mark.parametrize("moved", [False, True])
def test_a_crash_between_setting_aside_and_making_leaves_the_old_replica_to_be_rebuilt_or_removed(
    tmp_path: Path, moved: bool
) -> None:
    """Shown as it was: if the log stream has moved to another node meanwhile, the sweep finds it."""

    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        await damaged(bench, 2)
        await bench.stop(2)
        [path] = (bench.root / "volume2").rglob("lsid=1")
        path.rename(path.with_name("aside-lsid=1"))
        await bench.start(2)
        found = await replica(bench, 2)
        assert found.state is ReplicaState.FROZEN
        if moved:
            await bench.call(RemoveLogStream(STREAM, found.epoch), node=2)
            assert not list((bench.root / "volume2").rglob("*lsid=*"))
            return
        await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(2)), node=2)
        assert len(asides(bench, 2)) == 1
        assert await seal(bench, 2, end) is ReplicaState.SEALING
        await ask_sync(bench, 2, 1)
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        assert await seal(bench, 2, end) is ReplicaState.SEALED
        await unsealed(bench, 1, 2)
        await until(lambda: not asides(bench, 2))

    run(tmp_path, story)


def test_a_rebuild_that_the_disk_refuses_leaves_the_old_replica_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(bench: Bench) -> None:
        await filled(bench, 1, 2)
        await damaged(bench, 2)

        def refuse(*_: object, **__: object) -> LogStore:
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(LogStore, "create", refuse)
        monkeypatch.setattr(node_module, "REMOVAL_RETRY_S", 0.01)
        with pytest.raises(Unavailable):
            await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(2)), node=2)
        async with asyncio.timeout(TIMEOUT_S):
            while (await replica(bench, 2)).state is not ReplicaState.FROZEN:
                await asyncio.sleep(0.001)
        assert not asides(bench, 2)

    run(tmp_path, story)


def test_a_frozen_replica_is_rebuilt_and_a_usable_one_is_not(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        with pytest.raises(PreconditionFailed):
            await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(2)), node=2)
        with pytest.raises(StaleEpoch):
            await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(1)), node=2)
        with pytest.raises(PreconditionFailed):  # it freezes
            await bench.call(SealReplica(STREAM, Epoch(3), LLSN(end - 4)), node=2)
        assert (await replica(bench, 2)).state is ReplicaState.FROZEN
        with pytest.raises(StaleEpoch):
            await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(1)), node=2)
        with pytest.raises(PreconditionFailed, match="evidence"):  # it froze for what it knows to be ordered
            await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(3)), node=2)
        await bench.stop(2)
        await bench.start(2)
        bench.nodes[2]._replicas[STREAM].freeze(InvariantBroken("a law broke", {}))
        await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(3)), node=2)
        found = await replica(bench, 2)
        assert (found.state, found.epoch, found.committed_end) == (ReplicaState.SEALING, 0, 1)
        assert len(asides(bench, 2)) == 1
        await bench.start(3)
        with pytest.raises(UnknownLogStream):
            await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(3)), node=3)

    run(tmp_path, story)


def test_a_replica_that_is_removed_takes_what_was_set_aside_with_it(tmp_path: Path) -> None:
    """R-REG-5."""

    async def story(bench: Bench) -> None:
        await filled(bench, 1, 2)
        await damaged(bench, 2)
        await bench.call(RebuildReplica(TOPIC, STREAM, Epoch(2)), node=2)
        await bench.call(RemoveLogStream(STREAM), node=2)
        assert not list((bench.root / "volume2").rglob("*lsid=*"))

    run(tmp_path, story)


def test_a_replica_that_is_in_another_epoch_than_was_seen_is_not_removed(tmp_path: Path) -> None:
    """R-REG-4: it was taken into a stream since."""

    async def story(bench: Bench) -> None:
        await filled(bench, 1, 2)
        for epoch in (0, 1, 3):
            with pytest.raises(PreconditionFailed):
                await bench.call(RemoveLogStream(STREAM, epoch), node=2)
        assert (await replica(bench, 2)).state is ReplicaState.SEALED
        await bench.call(RemoveLogStream(STREAM, 2), node=2)
        with pytest.raises(UnknownLogStream):
            await bench.call(RemoveLogStream(STREAM, 2), node=2)

    run(tmp_path, story)


def test_a_replica_whose_directory_was_deleted_under_a_running_node_is_rebuilt(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        end = await filled(bench, 1, 2)
        [path] = (bench.root / "volume2").rglob("lsid=1")
        shutil.rmtree(path)
        await bench.call(AddLogStream(TOPIC, STREAM), node=2)
        assert (await replica(bench, 2)).committed_end == 1
        assert await seal(bench, 2, end) is ReplicaState.SEALING
        await ask_sync(bench, 2, 1)
        assert (await wait_synced(bench, 2)).state is SyncState.COMPLETE
        assert await seal(bench, 2, end) is ReplicaState.SEALED
        await assert_equal(bench, 1, 2)

    run(tmp_path, story)


CLUSTER_UUID = ClusterUUID("12fc347d-b055-41ce-b058-b6e3bbe76d04")


async def _made_by_a_device_that_loses_writes(bench: Bench, lost: tuple[str, ...]) -> None:
    await bench.start()
    await bench.call(AddLogStream(TOPIC, STREAM, cluster_uuid=CLUSTER_UUID))
    await bench.stop()
    [path] = bench.root.rglob("lsid=1")
    for name in lost:
        (path / name).write_bytes(b"")
    await bench.start()


@pytest.mark.parametrize(
    "lost", [("cluster", "commits.log"), ("cluster", "state"), ("commits.log",), ("state",)]
)
def test_a_replica_whose_making_was_lost_by_the_device_is_called_blank_and_is_removed(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """R-REG-4: it was never registered, so nobody would repair it, and its node would show it forever."""

    async def story(bench: Bench) -> None:
        await _made_by_a_device_that_loses_writes(bench, lost)
        found = await replica(bench, 1)
        assert (found.state, found.blank) == (ReplicaState.FROZEN, True)
        await bench.call(RemoveLogStream(STREAM, NO_EPOCH, CLUSTER_UUID))
        assert not [*bench.root.rglob("lsid=1")]

    run(tmp_path, story)


def test_a_damaged_replica_that_was_in_an_epoch_is_not_called_blank(tmp_path: Path) -> None:
    """An empty one as well: what it is worth is for the repository to know."""

    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.call(AddLogStream(TOPIC, STREAM, cluster_uuid=CLUSTER_UUID))
        await bench.run_stream(add=False)
        await bench.stop()
        [path] = bench.root.rglob("lsid=1")
        for name in ("cluster", "commits.log"):
            (path / name).write_bytes(b"")
        await bench.start()
        assert not (await replica(bench, 1)).blank
        with pytest.raises(PreconditionFailed, match="they are kept"):
            await bench.call(RemoveLogStream(STREAM, NO_EPOCH, CLUSTER_UUID))
        assert path.exists()

    run(tmp_path, story)
