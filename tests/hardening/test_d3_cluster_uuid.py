"""D3: a cluster has a UUID, stored by every node and every replica.

A repository that lost its metadata began with the same ids, and the manager deleted the only copy of another cluster's
entries as zombies. Now new ids are above all that nodes report.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.hardening.witness_cluster import ENTRIES, fill, read_all
from tests.manager.sim_cluster import SimCluster
from varlog.metarepo.membership import rules as rules
from varlog.metarepo.membership.rules import Members
from varlog.model.cluster import ClusterView, Ordering
from varlog.model.epoch import FIRST_EPOCH
from varlog.model.errors import PreconditionFailed, StartupError
from varlog.model.ids import (
    NO_UUID,
    ClusterID,
    ClusterUUID,
    LogStreamID,
    NodeID,
    TopicID,
    check_cluster_uuid,
    make_cluster_uuid,
)
from varlog.rpc import messages as m
from varlog.storage.cluster_file import CLUSTER_NAME, encode_cluster, read_cluster
from varlog.storage.committed.log_store import LogStore
from varlog.storage.identity import IDENTITY_NAME
from varlog.storage.volume import NodeVolumes
from varlog.testing.sim.core.host import VOLUME, Host
from varlog.testing.sim.core.loop import Process, run_simulated
from varlog.testing.sim.core.network import SimNetwork

ONE = make_cluster_uuid(1 << 100 | 1)
OTHER = make_cluster_uuid(1 << 100 | 2)
STREAM = LogStreamID(4)


def test_a_node_refuses_the_session_of_another_cluster_and_names_both_and_the_remedy() -> None:
    async def story() -> None:
        cluster = SimCluster(nodes=1, replicas=1)
        cluster.start()
        await fill(cluster, "orders")
        uuid = (await cluster.view()).uuid
        assert check_cluster_uuid(uuid) != NO_UUID
        with pytest.raises(PreconditionFailed, match=rf"{uuid}.*{OTHER}.*vmr recover"):
            await cluster.ask("sn1:7110", m.OpenSession(1_000_000, OTHER))
        for change in (
            m.RemoveLogStream(LogStreamID(1), cluster_uuid=OTHER),
            m.RemoveLogStream(LogStreamID(1)),
            m.RebuildReplica(TopicID(1), LogStreamID(1), (await cluster.view()).streams[0].epoch, OTHER),
            m.AddLogStream(TopicID(1), LogStreamID(9), cluster_uuid=OTHER),
        ):
            with pytest.raises(PreconditionFailed, match=uuid):
                await cluster.ask("sn1:7110", change)
        assert await read_all(cluster, "orders") == ENTRIES

    run_simulated(story())


def test_a_repository_refuses_to_register_a_node_of_another_cluster() -> None:
    members = Members(ClusterView(ClusterID(1), 1, uuid=ONE))
    with pytest.raises(PreconditionFailed, match=rf"{OTHER}.*{ONE}.*vmr recover"):
        rules.register_node(members, NodeID(1), "n:1", (), (), OTHER)
    assert rules.register_node(members, NodeID(1), "n:1", (), (), ONE).view.node(NodeID(1))
    assert rules.register_node(members, NodeID(1), "n:1", (), (), NO_UUID).view.node(NodeID(1))


def test_new_ids_are_above_everything_that_nodes_report_and_skipped_ids_are_foreign() -> None:
    members = Members(ClusterView(ClusterID(1), 1, uuid=ONE))
    raised = rules.raise_ids(members, TopicID(6), LogStreamID(17))
    raised, first = rules.new_log_stream_id(raised)
    raised, topic = rules.register_topic(raised, "orders", ordering=Ordering.COMMITTED)
    assert (first, topic.topic) == (18, 7)
    assert raised.foreign == ((1, 18),)
    again = rules.raise_ids(raised, TopicID(2), LogStreamID(17))
    assert again is raised  # nothing above what is known
    more = rules.raise_ids(raised, TopicID(2), LogStreamID(25))
    assert more.foreign == ((1, 18), (19, 26))


def test_a_repository_begins_above_the_ids_of_a_node_that_belonged_to_no_cluster() -> None:
    """A directory from before clusters had a UUID is adopted; its unregistered data stay, and its ids are not used
    again."""

    async def story() -> None:
        cluster = SimCluster(nodes=1, replicas=1)
        host = cluster.nodes[1]
        disk = host.environment(Process("factory")).disk
        disk.make_directory(VOLUME)
        home = VOLUME / "cid=7" / "snid=1"
        disk.make_directory(home)
        store = LogStore.create(disk, home / "lsid=40", topic=TopicID(30), log_stream=LogStreamID(40))
        store.set_epoch(FIRST_EPOCH, store.committed_end)
        store.close()
        identity = b'{"format":1,"cluster":7,"node":1,"node_key":"ab","cluster_key_fingerprint":"%s"}'
        from varlog.storage.identity import fingerprint

        disk.replace_file(home / IDENTITY_NAME, identity % fingerprint(ClusterID(7), "").encode())
        host.boot()
        cluster.repository.boot()
        cluster.manager.boot()
        await fill(cluster, "orders")
        view = await cluster.view()
        assert [(topic.topic, topic.name) for topic in view.topics] == [(31, "orders")]
        assert view.streams[0].log_stream == 41
        await asyncio.sleep(60.0)  # virtual
        assert home / "lsid=40" in host.replica_paths()
        status = (await cluster.statuses())[NodeID(1)]
        bound = {found.log_stream: found.cluster_uuid for found in status.replicas}
        assert bound == {40: NO_UUID, 41: view.uuid}
        assert status.cluster_uuid == view.uuid

    run_simulated(story())


# --- one node's volumes -----------------------------------------------------------------------------------------------------


def _host() -> Host:
    import random

    def never(environment: object, transport: object) -> object:
        raise AssertionError("it is not started")

    host = Host("sn", "1", SimNetwork(random.Random(1)), never, lambda text: None, lambda text: None)  # type: ignore[arg-type]
    host.environment(Process("factory")).disk.make_directory(VOLUME)
    return host


def _open(host: Host) -> NodeVolumes:
    environment = host.environment(Process("sn"))
    return NodeVolumes.open(
        environment.disk, environment.entropy, cluster=ClusterID(7), node=NodeID(1), volumes=(VOLUME,)
    )


def _make(host: Host, volumes: NodeVolumes, uuid: ClusterUUID, stream: LogStreamID = STREAM) -> Path:
    path = volumes.place(stream)
    disk = host.environment(Process("sn")).disk
    LogStore.create(disk, path, topic=TopicID(1), log_stream=stream, cluster=uuid).close()
    volumes.note_cluster(stream, uuid)
    return path


def test_what_is_registered_is_bound_once_and_what_is_bound_is_refused_to_others() -> None:
    async def story() -> None:
        host = _host()
        volumes = _open(host)
        path = _make(host, volumes, NO_UUID)
        other = _make(host, volumes, NO_UUID, LogStreamID(5))
        volumes.bind(ONE, (STREAM, LogStreamID(77)))
        volumes.release()
        again = _open(host)
        assert (again.cluster_uuid, again.cluster_of(STREAM), again.cluster_of(LogStreamID(5))) == (
            ONE,
            ONE,
            NO_UUID,
        )
        disk = host.environment(Process("look")).disk
        assert (read_cluster(disk, path), read_cluster(disk, other)) == (ONE, NO_UUID)
        with pytest.raises(PreconditionFailed, match=rf"{ONE}.*{OTHER}"):
            again.bind(OTHER, ())
        again.check_change(STREAM, ONE, blank=False)
        with pytest.raises(PreconditionFailed, match="no cluster yet"):
            again.check_change(LogStreamID(5), ONE, blank=False)
        again.check_change(LogStreamID(5), ONE, blank=True)
        assert again.largest_log_stream == 5

    run_simulated(story())


def test_a_replica_of_another_cluster_on_this_nodes_volume_is_foreign() -> None:
    async def story() -> None:
        host = _host()
        volumes = _open(host)
        volumes.bind(ONE, ())
        path = _make(host, volumes, ONE)
        assert not volumes.is_foreign(STREAM)
        host.environment(Process("operator")).disk.replace_file(path / CLUSTER_NAME, encode_cluster(OTHER))
        volumes.release()
        again = _open(host)
        assert again.is_foreign(STREAM)
        with pytest.raises(PreconditionFailed, match=OTHER):
            again.check_change(STREAM, ONE, blank=False)
        with pytest.raises(PreconditionFailed, match=OTHER):
            again.bind(ONE, (STREAM,))

    run_simulated(story())


def test_an_identity_from_an_older_copy_learns_its_cluster_from_its_replicas() -> None:
    async def story() -> None:
        host = _host()
        volumes = _open(host)
        disk = host.environment(Process("operator")).disk
        identity = VOLUME / "cid=7" / "snid=1" / IDENTITY_NAME
        old = disk.read_file(identity)
        volumes.bind(ONE, ())
        _make(host, volumes, ONE)
        volumes.release()
        disk.replace_file(identity, old)
        assert _open(host).cluster_uuid == ONE

    run_simulated(story())


def test_a_flipped_bit_in_an_identity_is_found() -> None:
    async def story() -> None:
        host = _host()
        volumes = _open(host)
        volumes.bind(ONE, ())
        volumes.release()
        disk = host.environment(Process("operator")).disk
        identity = VOLUME / "cid=7" / "snid=1" / IDENTITY_NAME
        content = disk.read_file(identity)
        disk.replace_file(identity, content.replace(ONE.encode(), OTHER.encode()))
        with pytest.raises(StartupError, match="checksum"):
            _open(host)

    run_simulated(story())


def test_a_damaged_cluster_file_binds_to_nothing() -> None:
    async def story() -> None:
        host = _host()
        volumes = _open(host)
        volumes.bind(ONE, ())
        path = _make(host, volumes, ONE)
        volumes.release()
        content = bytearray(encode_cluster(ONE))
        content[9] ^= 1
        host.environment(Process("operator")).disk.replace_file(path / CLUSTER_NAME, bytes(content))
        again = _open(host)
        assert again.cluster_of(STREAM) == NO_UUID
        with pytest.raises(PreconditionFailed, match="no cluster yet"):
            again.check_change(STREAM, ONE, blank=False)
        again.bind(ONE, (STREAM,))
        assert again.cluster_of(STREAM) == ONE

    run_simulated(story())
