"""Zombies among replicas: what may hold an entry is never among those that this repository never had."""

from __future__ import annotations

import pytest

from varlog.manager.zombie_rules import Unregistered, unregistered
from varlog.model.cluster import ClusterView, changed
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import ClusterID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import FIRST_LLSN, LLSN, NO_GLSN
from varlog.model.status import NodeStatus, ReplicaState, ReplicaStatus

CLUSTER, NODE, STREAM = ClusterID(1), NodeID(3), LogStreamID(3)
UUID = ClusterUUID("12fc347d-b055-41ce-b058-b6e3bbe76d04")
VIEW = ClusterView(CLUSTER, 1, uuid=UUID)
NEW = ReplicaStatus(
    STREAM,
    TopicID(1),
    ReplicaState.SEALING,
    NO_EPOCH,
    FIRST_LLSN,
    FIRST_LLSN,
    NO_GLSN,
    NO_GLSN,
    "/v",
    cluster_uuid=UUID,
)
DAMAGED = changed(NEW, state=ReplicaState.FROZEN, trouble="it is damaged")


def _seen(replica: ReplicaStatus) -> Unregistered:
    """Of a log stream that was never registered."""
    nodes = {NODE: NodeStatus(CLUSTER, NODE, "sn3", (), (replica,))}
    return unregistered(VIEW, nodes, lambda _: False)


@pytest.mark.parametrize(
    "replica",
    [
        NEW,
        changed(NEW, blank=True, trouble="its disk is full"),
        changed(DAMAGED, blank=True),
        changed(DAMAGED, blank=True, cluster_uuid=""),
    ],
    ids=("new", "new on a full disk", "damaged and blank", "damaged, blank and of no cluster"),
)
def test_a_replica_that_never_held_an_entry_is_a_zombie(replica: ReplicaStatus) -> None:
    """R-REG-4: also one that lost its cluster and cannot be opened; it would be shown forever."""
    seen = _seen(replica)
    assert ([found.node for found in seen.zombies], seen.foreign) == ([NODE], ())


@pytest.mark.parametrize(
    "replica",
    [
        DAMAGED,
        changed(DAMAGED, cluster_uuid=""),
        changed(NEW, trouble="it cannot be opened: too many open files"),
        changed(NEW, durable_end=LLSN(9)),
        changed(NEW, epoch=Epoch(1)),
        changed(DAMAGED, blank=True, cluster_uuid="dd19dd2c-2bd2-4a7c-8d3a-000000000000"),
    ],
    ids=("damaged", "of no cluster", "not opened", "with entries", "in an epoch", "of another cluster"),
)
def test_a_replica_that_may_hold_entries_is_kept_if_the_repository_never_had_it(
    replica: ReplicaStatus,
) -> None:
    seen = _seen(replica)
    assert (seen.zombies, [found.node for found in seen.foreign]) == ((), [NODE])
