"""A replica that is set aside for a new one: at every point of it a crash leaves something that the next start understands."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from tests.storage.helpers import STREAM, TOPIC, Host, commit_all, fill, read_all
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, ClusterUUID, NodeID
from varlog.model.lsn import LLSN
from varlog.storage import volume
from varlog.storage.cluster_file import write_cluster
from varlog.storage.committed.log_store import LogStore
from varlog.storage.volume import NodeVolumes
from varlog.testing.sim.core.loop import ProcessCrashed

VOLUME = Path("/volume")


def opened(host: Host) -> NodeVolumes:
    return NodeVolumes.open(
        host.disk, random.Random(1), cluster=ClusterID(1), node=NodeID(2), volumes=(VOLUME,)
    )


def made(host: Host, volumes: NodeVolumes) -> LogStore:
    store = LogStore.create(host.disk, volumes.place(STREAM), topic=TOPIC, log_stream=STREAM)
    store.cut(Epoch(1), LLSN(1))
    return store


def started(seed: int) -> tuple[Host, NodeVolumes]:
    """A node with one replica that holds something."""
    host = Host(seed)
    host.disk.make_directory(VOLUME)
    volumes = opened(host)
    store = made(host, volumes)
    fill(store, [[b"old"]])
    commit_all(store)
    store.sync_rows()
    store.close()
    return host, volumes


def held(host: Host, path: Path) -> dict[int, bytes]:
    return read_all(LogStore.open(host.disk, path))


def test_a_crash_at_every_disk_operation_of_a_rebuild_is_understood() -> None:
    """Until the new replica has run, the old data is there, under one name or the other; and never without a replica in its place:
    nobody would look for it there, once the log stream has moved to another node."""
    operation, crashed = 0, True
    while crashed:
        operation += 1
        crashed = False
        for seed in range(6):
            host, volumes = started(seed)
            path = volumes.streams[STREAM]
            aside = path.with_name(f"aside-{path.name}")
            host.crash_in(operation)
            try:
                volumes.set_aside(STREAM)
                made(host, volumes).close()
                host.disk.crash_at = None
            except ProcessCrashed:
                crashed = True
                host.boot()
                volumes = opened(host)
            assert STREAM in volumes.streams
            if host.disk.exists(aside):
                assert held(host, aside) == {1: b"old"}
                assert held(host, path) == {}
            else:
                assert held(host, path) == {1: b"old"}
    assert operation > 5


def test_a_crash_at_every_disk_operation_of_the_removal_leaves_what_is_removed_later() -> None:
    operation, crashed = 0, True
    while crashed:
        operation += 1
        crashed = False
        for seed in range(6):
            host, volumes = started(seed)
            volumes.set_aside(STREAM)
            made(host, volumes).close()
            host.crash_in(operation)
            try:
                volumes.drop_aside(STREAM)
                host.disk.crash_at = None
            except ProcessCrashed:
                crashed = True
                host.boot()
                volumes = opened(host)
                volumes.drop_aside(STREAM)
            path = volumes.streams[STREAM]
            assert held(host, path) == {}
            assert not host.disk.exists(path.with_name(f"aside-{path.name}"))
    assert operation > 3


def test_what_was_set_aside_for_a_replica_that_could_not_be_made_is_put_back() -> None:
    """A replica that could not be made in its place left a directory without anything in it."""
    host, volumes = started(1)
    path = volumes.streams[STREAM]
    volumes.set_aside(STREAM)
    host.disk.make_directory(volumes.place(STREAM))
    assert not volumes.clear_unfinished(STREAM)
    assert volumes.streams == {STREAM: path}
    assert held(host, path) == {1: b"old"}


def test_what_is_put_back_is_still_of_its_cluster_also_if_the_disk_refuses_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of no cluster, it could never be removed; gone from the list, it could never be shown."""
    host, volumes = started(1)
    path, uuid = volumes.streams[STREAM], ClusterUUID("3f9ce16c-59a1-4225-a501-293135b3eef8")
    write_cluster(host.disk, path, uuid)
    volumes.set_aside(STREAM)
    volumes.place(STREAM)

    def refuse(*_: object) -> ClusterUUID:
        raise OSError(errno.EIO, "not now")

    with monkeypatch.context() as patch:
        patch.setattr(volume, "read_cluster", refuse)
        with pytest.raises(OSError, match="not now"):
            volumes.clear_unfinished(STREAM)
    assert volumes.streams == {STREAM: path}
    assert not volumes.clear_unfinished(STREAM)
    assert volumes.cluster_of(STREAM) == uuid


def test_what_is_empty_is_not_put_back() -> None:
    host, volumes = started(1)
    path = volumes.streams[STREAM]
    volumes.set_aside(STREAM)
    for name in host.disk.list(aside := path.with_name(f"aside-{path.name}")):
        host.disk.remove(aside / name)
    volumes.release()
    assert opened(host).streams == {}
    assert not [name for name in host.disk.list(path.parent) if "lsid" in name]


def test_a_replica_that_never_ran_since_is_deleted_and_the_first_one_stays_aside() -> None:
    """R-REG-5: a removal deletes all of it."""
    host, volumes = started(1)
    volumes.set_aside(STREAM)
    made(host, volumes).close()
    path = volumes.streams[STREAM]
    volumes.set_aside(STREAM)
    assert not host.disk.exists(path)
    assert held(host, path.with_name(f"aside-{path.name}")) == {1: b"old"}
    made(host, volumes).close()
    volumes.remove(STREAM)
    assert not [name for name in host.disk.list(path.parent) if "lsid" in name], "everything of it"
