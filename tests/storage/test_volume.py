"""Volumes of a node: every way in which a start is refused names the path and the remedy."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.storage.helpers import Host, fill
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed, StartupError
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.committed.log_store import LogStore
from varlog.storage.volume import NodeVolumes
from varlog.testing.sim.core.loop import ProcessCrashed

CLUSTER = ClusterID(1)
NODE = NodeID(4)
STREAM = LogStreamID(9)


@pytest.fixture
def volumes(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "disk1", tmp_path / "disk2"]
    for path in paths:
        path.mkdir()
    return paths


def start(
    volumes: list[Path],
    *,
    cluster: int = CLUSTER,
    node: int | None = NODE,
    key: str = "secret",
    error_if_exists: bool = False,
    seed: int = 0,
) -> NodeVolumes:
    return NodeVolumes.open(
        OsDisk(synced=False),
        random.Random(seed),
        cluster=ClusterID(cluster),
        node=NodeID(node) if node else None,
        volumes=volumes,
        cluster_key=key,
        error_if_exists=error_if_exists,
    )


def make(opened: NodeVolumes, stream: int = STREAM, volume: str = "") -> LogStore:
    path = opened.place(LogStreamID(stream), volume)
    return LogStore.create(OsDisk(synced=False), path, topic=TopicID(1), log_stream=LogStreamID(stream))


def refusal(volumes: list[Path], **how: object) -> str:
    with pytest.raises(StartupError) as refused:
        start(volumes, **how)  # type: ignore[arg-type]
    return str(refused.value)


def test_the_layout_is_cluster_node_stream(volumes: list[Path]) -> None:
    """R-SN-2, R-SN-3."""
    opened = start(volumes)
    store = make(opened)
    assert store.path == volumes[0] / "cid=1" / "snid=4" / "lsid=9"
    make(opened, 10)  # goes where there are fewer
    make(opened, 11, str(volumes[1]))
    opened.release()
    assert start(volumes).streams == {
        LogStreamID(9): volumes[0] / "cid=1/snid=4/lsid=9",
        LogStreamID(10): volumes[1] / "cid=1/snid=4/lsid=10",
        LogStreamID(11): volumes[1] / "cid=1/snid=4/lsid=11",
    }


def test_a_volume_that_cannot_be_used_is_named(volumes: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """R-SN-1."""
    missing, file = volumes[0] / "missing", volumes[0] / "file"
    file.write_text("")
    assert f"{missing} does not exist" in refusal([volumes[1], missing])
    assert f"{file} is not a directory" in refusal([file])
    assert "given twice" in refusal([volumes[0], volumes[0]])
    assert "at least one volume" in refusal([])
    monkeypatch.setattr(OsDisk, "is_writable", lambda self, path: path != volumes[1])
    assert f"{volumes[1]} is not writable" in refusal(volumes)
    assert [path.name for path in volumes[0].iterdir()] == ["file"]


def test_the_same_stream_under_two_volumes_is_refused_and_both_are_named(volumes: list[Path]) -> None:
    """R-SN-4."""
    opened = start(volumes)
    path = make(opened).path
    opened.release()
    copy = volumes[1] / path.relative_to(volumes[0])
    shutil.copytree(path, copy)
    message = refusal(volumes)
    assert str(path) in message and str(copy) in message


def test_error_if_exists(volumes: list[Path]) -> None:
    """R-SN-5."""
    start(volumes[:1], error_if_exists=True).release()
    message = refusal(volumes, error_if_exists=True)
    assert str(volumes[0] / "cid=1/snid=4") in message
    assert not any(volumes[1].iterdir())


def test_a_stream_with_data_anywhere_is_not_made_again(volumes: list[Path]) -> None:
    """R-SN-6: also data of a replica that is not registered any more."""
    opened = start(volumes)
    make(opened, volume=str(volumes[1]))
    with pytest.raises(PreconditionFailed, match="lsid=9"):
        opened.place(STREAM, str(volumes[0]))
    opened.forget(STREAM)
    with pytest.raises(PreconditionFailed, match="lsid=9"):
        opened.place(STREAM)
    with pytest.raises(PreconditionFailed, match="no volume of node 4"):
        opened.place(LogStreamID(77), "/elsewhere")


def test_a_node_id_is_drawn_once_and_kept(volumes: list[Path]) -> None:
    """R-SN-1."""
    first = start(volumes, node=None, seed=1)
    first.release()
    assert start(volumes, node=None, seed=2).node == first.node


def test_several_nodes_on_a_volume_must_be_distinguished_by_their_ids(volumes: list[Path]) -> None:
    start(volumes, node=4).release()
    start(volumes, node=5).release()
    message = refusal(volumes, node=None)
    assert "snid=4" in message and "snid=5" in message and "--storage-node-id" in message


def test_another_cluster_id_or_key_is_refused(volumes: list[Path]) -> None:
    """R-SN-7."""
    start(volumes).release()
    assert "belongs to cluster 1, not 2" in refusal(volumes, cluster=2)
    assert "another cluster key" in refusal(volumes, key="wrong")
    start(volumes).release()


def test_a_directory_of_another_node_is_refused_whatever_its_name(volumes: list[Path]) -> None:
    """R-SN-7."""
    start(volumes[:1], node=4).release()
    (volumes[0] / "cid=1/snid=4").rename(volumes[0] / "cid=1/snid=5")
    message = refusal(volumes[:1], node=5)
    assert "belongs to node 4" in message and str(volumes[0] / "cid=1/snid=5") in message


def test_two_nodes_with_the_same_id_are_distinguished_by_their_keys(volumes: list[Path]) -> None:
    """R-SN-7."""
    start(volumes[:1], seed=1).release()
    start(volumes[1:], seed=2).release()
    message = refusal(volumes)
    assert str(volumes[0]) in message and str(volumes[1]) in message and "different nodes" in message


def test_a_new_volume_of_a_known_node_is_welcome(volumes: list[Path]) -> None:
    start(volumes[:1], seed=1).release()
    start(volumes, seed=2).release()
    identities = [(volume / "cid=1/snid=4/identity").read_bytes() for volume in volumes]
    assert identities[0] == identities[1]


def test_a_damaged_or_missing_identity_is_refused_while_there_is_data(volumes: list[Path]) -> None:
    opened = start(volumes[:1])
    make(opened)
    opened.release()
    identity = volumes[0] / "cid=1/snid=4/identity"
    identity.write_bytes(b"{")
    assert str(identity) in refusal(volumes[:1])
    identity.unlink()
    assert "no identity" in refusal(volumes[:1])


def test_a_running_node_locks_its_directory(volumes: list[Path]) -> None:
    opened = start(volumes)
    assert "in use" in refusal(volumes)
    assert "in use" in refusal(volumes[1:])
    other = start(volumes, node=5)  # another node may share the volume
    opened.release()
    start(volumes).release()
    other.release()


def test_a_replica_that_was_never_finished_is_cleared_and_can_be_made_again(volumes: list[Path]) -> None:
    """A crash in AddLogStream, at any of its operations, leaves nothing that must be repaired by hand."""
    for crash_at in range(1, 40):
        host = Host(crash_at)
        host.disk.make_directory(Path("/disk"))
        opened = open_on(host)
        host.crash_in(crash_at)
        try:
            path = opened.place(STREAM)
            LogStore.create(host.disk, path, topic=TopicID(1), log_stream=STREAM)
        except ProcessCrashed:
            pass
        else:
            return
        host.boot()
        opened = open_on(host)
        if STREAM in opened.streams:
            assert LogStore.open(host.disk, opened.streams[STREAM]).written_end == 1
        else:
            path = opened.place(STREAM)
            assert LogStore.create(host.disk, path, topic=TopicID(1), log_stream=STREAM).written_end == 1
    pytest.fail("making a replica takes more operations than tried")


def test_a_removal_that_crashed_is_finished_at_the_next_start(volumes: list[Path]) -> None:
    """R-REG-5: all of it, or gone for good; never a wreck."""
    for crash_at in range(1, 60):
        host = Host(crash_at)
        host.disk.make_directory(Path("/disk"))
        opened = open_on(host)
        store = LogStore.create(
            host.disk, opened.place(STREAM), topic=TopicID(1), log_stream=STREAM, segment_bytes=500
        )
        store.cut(Epoch(1), LLSN(1))
        fill(store, [[b"x" * 200]] * 5)
        host.crash_in(crash_at)
        try:
            opened.remove(STREAM)
        except ProcessCrashed:
            pass
        else:
            assert not host.disk.exists(store.path) and STREAM not in opened.streams
            return
        host.boot()
        opened = open_on(host)
        if STREAM in opened.streams:
            assert LogStore.open(host.disk, opened.streams[STREAM], segment_bytes=500).written_end == 6
        else:
            assert not host.disk.exists(store.path)
    pytest.fail("removing a replica takes more operations than tried")


def open_on(host: Host) -> NodeVolumes:
    return NodeVolumes.open(
        host.disk, random.Random(1), cluster=CLUSTER, node=NODE, volumes=[Path("/disk")], cluster_key="secret"
    )
