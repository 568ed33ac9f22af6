"""D2b: replicas that contradict the repository are evidence, and are kept.

Two nodes held ordered entries that the repository had forgotten, refused its seal and froze; the manager rebuilt both
from one that had lost the entries. Now neither manager nor node removes such a replica.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.hardening.witness_cluster import RewoundCluster
from varlog.manager.committed.rules import RepairInputs, next_step
from varlog.manager.repair_steps import NoStep, RebuildReplica
from varlog.manager.zombie_rules import unregistered
from varlog.metarepo.recovery import witnesses
from varlog.model.cluster import ClusterView, LogStream, StreamState, Topic
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed
from varlog.model.events import EventKind
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.invariant import InvariantBroken
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import NodeStatus, ReplicaState, ReplicaStatus
from varlog.rpc import messages as m
from varlog.storagenode.node import StorageNodeServer
from varlog.testing.sim.core.loop import run_simulated

STREAM = LogStream(
    LogStreamID(1), TopicID(1), (NodeID(1), NodeID(2), NodeID(3)), StreamState.SEALED, Epoch(2), LLSN(5)
)


def _status(state: ReplicaState, end: int, *, epoch: int = 2, evidence: str = "") -> ReplicaStatus:
    return ReplicaStatus(
        STREAM.log_stream,
        STREAM.topic,
        state,
        Epoch(epoch),
        LLSN(end),
        LLSN(end),
        GLSN(0),
        GLSN(end - 1),
        "/r",
        evidence=evidence,
    )


@pytest.mark.parametrize(
    "witness",
    [
        _status(ReplicaState.FROZEN, 9, epoch=1, evidence="it knows better"),
        _status(ReplicaState.SEALING, 9, epoch=1),
        _status(ReplicaState.SEALED, 9),
    ],
    ids=["frozen for what it knows", "restarted", "sealed elsewhere"],
)
def test_d2b_the_manager_takes_no_step_against_a_replica_that_knows_more_than_the_seal(
    witness: ReplicaStatus,
) -> None:
    statuses = {NodeID(1): _status(ReplicaState.SEALED, 5), NodeID(2): witness, NodeID(3): witness}
    for inputs in (
        RepairInputs(),
        RepairInputs(spares=(NodeID(4),), unusable_s={NodeID(2): 1e6}, replace_after_s=1.0),
    ):
        step = next_step(STREAM, statuses, inputs)
        assert isinstance(step, NoStep), step
        assert step.kind is EventKind.CONTRADICTION


def test_d2b_a_replica_that_froze_for_another_reason_is_rebuilt_as_usual() -> None:
    statuses = {node: _status(ReplicaState.SEALED, 5) for node in STREAM.replicas}
    statuses[NodeID(2)] = _status(ReplicaState.FROZEN, 5)
    assert isinstance(next_step(STREAM, statuses), RebuildReplica)


def test_d2b_no_step_is_taken_in_a_stopped_topic() -> None:
    statuses = dict.fromkeys(STREAM.replicas)
    step = next_step(
        STREAM, statuses, RepairInputs(stopped="node 3 knows positions up to 306, the repository up to 304")
    )
    assert isinstance(step, NoStep) and step.kind is EventKind.TOPIC_STOPPED


@pytest.mark.parametrize("stopped", ["", "node 1 knows more"])
def test_d2b_evidence_is_no_zombie(stopped: str) -> None:
    running = LogStream(STREAM.log_stream, STREAM.topic, (NodeID(1),), StreamState.RUNNING, Epoch(9), LLSN(5))
    view = ClusterView(
        ClusterID(1), 1, topics=(Topic(STREAM.topic, "orders", stopped=stopped),), streams=(running,)
    )
    left = _status(ReplicaState.FROZEN, 9, evidence="" if stopped else "it knows better")
    nodes = {NodeID(2): NodeStatus(ClusterID(1), NodeID(2), "n", (), (left,))}
    assert unregistered(view, nodes, lambda _: True).zombies == ()


def test_d2b_nodes_keep_frozen_witnesses_and_resume_them_once_nothing_contradicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever a manager requests, even an older one."""
    monkeypatch.setattr(witnesses, "CUTS_ADOPTED_MAX", 0)

    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        appended = [await log.append(b"%d" % number) for number in range(6)]
        await asyncio.sleep(1.0)
        cluster.manager.crash()
        node, stream = "sn2:7110", (await cluster.view()).streams[0]
        # A seal at an older end: the replica refuses it, reports what it knows, and freezes.
        with pytest.raises(PreconditionFailed, match="up to position 6"):
            await cluster.ask(node, m.SealReplica(stream.log_stream, Epoch(stream.epoch + 1), LLSN(4)))
        uuid = (await cluster.view()).uuid
        rebuild = m.RebuildReplica(stream.topic, stream.log_stream, Epoch(stream.epoch + 1), uuid)
        with pytest.raises(PreconditionFailed, match="evidence"):
            await cluster.ask(node, rebuild)
        remove = m.RemoveLogStream(stream.log_stream, cluster_uuid=uuid)
        with pytest.raises(PreconditionFailed, match="evidence"):
            await cluster.ask(node, remove)
        assert [found.evidence != "" for found in await cluster.all_replicas()] == [False, True, False]
        # A seal that contradicts nothing readmits it: nothing of it was touched.
        sealed = await cluster.ask(
            node, m.SealReplica(stream.log_stream, Epoch(stream.epoch + 1), LLSN(len(appended) + 1))
        )
        assert isinstance(sealed, m.ReplicaStateReply)
        assert (sealed.state, sealed.committed_end) == (ReplicaState.SEALED, len(appended) + 1)
        # One that froze for another reason stays as well, if the request to rebuild it knows less than it holds.
        service = cluster.nodes[2].service
        assert isinstance(service, StorageNodeServer)
        service._replicas[stream.log_stream].freeze(InvariantBroken("a law broke", {}))
        below = m.RebuildReplica(stream.topic, stream.log_stream, Epoch(stream.epoch + 1), uuid, LLSN(3))
        with pytest.raises(PreconditionFailed, match="evidence"):
            await cluster.ask(node, below)
        await log.close()

    run_simulated(story())
