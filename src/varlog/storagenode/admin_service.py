"""What the manager asks of a storage node: who are you, make, remove, seal and unseal replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from varlog.model.cluster import NodeStatus
from varlog.model.errors import Refused, UnknownLogStream
from varlog.model.ids import LogStreamID, NodeID
from varlog.rpc.messages import (
    AddLogStream,
    Done,
    GetNodeStatus,
    NodeStatusIs,
    RemoveLogStream,
    ReplicaStateIs,
    SealReplica,
    UnsealReplica,
)
from varlog.storagenode.log_stream.replica import Replica


class AdminService:
    """Management calls. Making and removing replicas is the node's own work, handed in as functions."""

    def __init__(
        self,
        node: NodeID,
        replicas: Mapping[LogStreamID, Replica],
        status: Callable[[], NodeStatus],
        add: Callable[[AddLogStream], Awaitable[None]],
        remove: Callable[[LogStreamID], Awaitable[None]],
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._status = status
        self._add = add
        self._remove = remove

    async def get_status(self, _request: GetNodeStatus, _payload: bytearray) -> NodeStatusIs:
        return NodeStatusIs(self._status())

    async def add_log_stream(self, request: AddLogStream, _payload: bytearray) -> Done:
        await self._add(request)
        return Done()

    async def remove_log_stream(self, request: RemoveLogStream, _payload: bytearray) -> Done:
        await self._remove(request.log_stream)
        return Done()

    async def seal(self, request: SealReplica, _payload: bytearray) -> ReplicaStateIs:
        return await self._replica(request.log_stream).seal(request.epoch, request.committed_end)

    async def unseal(self, request: UnsealReplica, _payload: bytearray) -> ReplicaStateIs:
        """The first of the replicas is the primary; it is told where the others are."""
        replicas = request.replicas
        if not any(replica.node == self._node for replica in replicas):
            raise Refused(f"node {self._node} is not among the replicas of log stream {request.log_stream}")
        primary = replicas[0].node == self._node
        backups = [replica.address for replica in replicas[1:]] if primary else []
        return await self._replica(request.log_stream).unseal(request.epoch, backups, primary=primary)

    def _replica(self, log_stream: LogStreamID) -> Replica:
        replica = self._replicas.get(log_stream)
        if replica is None:
            raise UnknownLogStream(log_stream)
        return replica
