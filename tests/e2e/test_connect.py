"""varlog.connect over TCP, in one loop thread, used from outside.

Three storage nodes, a repository and a manager.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import varlog
from varlog.testing.tcp_cluster import running


def test_the_same_code_works_against_a_cluster(tmp_path: Path) -> None:
    with running(tmp_path) as (cluster, _):
        address = cluster.repository.address
        with pytest.raises(varlog.UnknownTopic):
            varlog.connect(address, topic="orders")
        with varlog.admin(address) as admin:
            assert admin.create_topic("orders", streams=2).name == "orders"
            assert len(admin.streams("orders")) == 2
            assert [stream.replicas for stream in admin.streams("orders")] != []
        with varlog.connect(address, topic="orders") as log:
            at = log.append(b"hello")
            run = log.append_batch([b"a", b"b"])
            assert (at.glsn, run.first.glsn, len(run)) == (1, 2, 2)
            assert log.read(at.glsn).data == b"hello"
            assert [entry.data for entry in log.subscribe(1, log.tail() + 1)] == [b"hello", b"a", b"b"]
            assert sum(batch.num_rows for batch in log.arrow(1, log.tail() + 1)) == 3
            log.trim(at.glsn)
            with pytest.raises(varlog.Trimmed):
                log.read(at.glsn)


def test_the_wrong_cluster_and_a_silent_address_are_refused(tmp_path: Path) -> None:
    with running(tmp_path, auto_create_topics=True) as (cluster, _):
        with pytest.raises(varlog.NotInCluster):
            varlog.connect(cluster.repository.address, cluster=6)
        with varlog.connect(cluster.repository.address, topic="made-by-itself", cluster=5) as log:
            assert log.append(b"x").glsn == 1
        address = cluster.nodes[0].address
    with pytest.raises(varlog.Unavailable):
        varlog.connect(address, timeout_s=0.1)


def test_restarted_nodes_lose_nothing_and_a_subscriber_sees_each_entry_once(tmp_path: Path) -> None:
    """R-READ-3 and R-FAIL-1 with clean restarts: appends may be refused in the meantime, never lost or duplicated."""
    with (
        running(tmp_path, auto_create_topics=True) as (cluster, thread),
        varlog.connect(cluster.repository.address, topic="t", streams=2, timeout_s=30) as log,
    ):
        follower = log.subscribe(1)
        acknowledged: dict[int, bytes] = {}
        seen: dict[int, bytes] = {}
        for round_ in range(4):
            for number in range(20):
                data = b"%d.%d" % (round_, number)
                try:
                    acknowledged[log.append(data).glsn] = data
                except varlog.OutcomeUnknown:
                    pass  # it may be in the log: the subscriber will show
            thread.run(cluster.restart_node(round_ % 3))
            while len(seen) < len(acknowledged):
                entry = next(follower)
                assert entry.glsn == len(seen) + 1
                seen[entry.glsn] = entry.data
        assert acknowledged.items() <= seen.items()
        follower.close()
