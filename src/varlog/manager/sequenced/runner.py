"""ProjectionRunner: carries out one repair step of a sequenced topic or stream."""

from __future__ import annotations

from typing import TypeVar

from varlog.manager.peers import Peers
from varlog.manager.repair_steps import (
    BeginTopic,
    CreateReplica,
    RebuildReplica,
    Reconfigure,
    RepairStep,
    SyncReplica,
)
from varlog.model.cluster import ClusterView, Ordering, Topic
from varlog.model.epoch import NO_EPOCH
from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.projection import Projection
from varlog.reconfiguration.reconfigurer import Reconfigurer
from varlog.rpc import messages
from varlog.rpc.messages import Message, ReplicaAddress

M = TypeVar("M", bound=Message)


class ProjectionRunner:
    """Sends the requests of a step. Each step may be interrupted anywhere, and repeated by any manager."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._reconfigurer = Reconfigurer(self._ask, self._ask_repository)

    async def change(self, view: ClusterView, topic: Topic, change: BeginTopic | Reconfigure) -> Projection:
        """The projection that results. Raises VarlogError."""
        if isinstance(change, BeginTopic):
            return await self._reconfigurer.begin(view, topic, change.streams)
        return await self._reconfigurer.run(view, topic.topic, change.wish)

    async def do(self, view: ClusterView, topic: Topic, log_stream: LogStreamID, step: RepairStep) -> None:
        """Raises VarlogError if a process refuses, or does not answer."""
        match step:
            case CreateReplica(node):
                make = messages.AddLogStream(
                    topic.topic, log_stream, ordering=Ordering.SEQUENCED, cluster_uuid=view.uuid
                )
                await self._peers.ask(_address(view, node), make, Message)
            case RebuildReplica(node, epoch):
                rebuild = messages.RebuildReplica(topic.topic, log_stream, epoch, view.uuid)
                await self._peers.ask(_address(view, node), rebuild, Message)
            case SyncReplica(node, source, _, backfill):
                projection = view.projection(topic.topic)
                at = projection.epoch if projection is not None else NO_EPOCH
                address = ReplicaAddress(source, _address(view, source))
                sync = messages.SyncUnit(log_stream, address, max_epoch=at, backfill=backfill)
                await self._peers.ask(_address(view, node), sync, messages.SyncReply)
            case _:
                pass

    async def _ask(self, address: str, request: Message, answer: type[M], timeout_s: float) -> M:
        return await self._peers.ask(address, request, answer, timeout_s=timeout_s)

    async def _ask_repository(self, request: Message, answer: type[M], timeout_s: float) -> M:
        return await self._peers.ask_repository(request, answer, timeout_s=timeout_s)


def _address(view: ClusterView, node: NodeID) -> str:
    found = view.node(node)
    if found is None:
        raise Unavailable(f"storage node {node} is not registered")
    return found.address
