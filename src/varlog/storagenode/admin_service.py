"""What the manager asks of a storage node: who are you, make, remove, rebuild, seal, sync and unseal replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from varlog.model.errors import PreconditionFailed, Unavailable, UnknownLogStream
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.status import NodeStatus
from varlog.rpc.messages import (
    AddLogStream,
    Done,
    GetNodeStatus,
    GetNodeStatusReply,
    RebuildReplica,
    RemoveLogStream,
    ReplicaStateReply,
    SealReplica,
    SyncReplica,
    SyncReply,
    UnsealReplica,
)
from varlog.storagenode.committed.replica import Replica


@dataclass(frozen=True, slots=True)
class StreamAdmin:
    """The node's own work, handed in: to make and remove replicas, to open one again, to hear that one was opened."""

    add: Callable[[AddLogStream], Awaitable[None]]
    remove: Callable[[RemoveLogStream], Awaitable[None]]
    rebuild: Callable[[RebuildReplica], Awaitable[None]]
    open_again: Callable[[LogStreamID], Awaitable[None]]
    opened: Callable[[LogStreamID], None]


class NodeAdminService:
    """Management calls."""

    def __init__(
        self,
        node: NodeID,
        replicas: Mapping[LogStreamID, Replica],
        status: Callable[[], NodeStatus],
        making: StreamAdmin,
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._status = status
        self._making = making

    async def get_status(self, _request: GetNodeStatus, _payload: bytearray) -> GetNodeStatusReply:
        return GetNodeStatusReply(self._status())

    async def add_log_stream(self, request: AddLogStream, _payload: bytearray) -> Done:
        with _disk_refusals(request.log_stream):
            await self._making.add(request)
        return Done()

    async def remove_log_stream(self, request: RemoveLogStream, _payload: bytearray) -> Done:
        with _disk_refusals(request.log_stream):
            await self._making.remove(request)
        return Done()

    async def rebuild(self, request: RebuildReplica, _payload: bytearray) -> Done:
        with _disk_refusals(request.log_stream):
            await self._making.rebuild(request)
        return Done()

    async def sync(self, request: SyncReplica, _payload: bytearray) -> SyncReply:
        return SyncReply(self._replica(request.log_stream).sync(request.epoch, request.source))

    async def seal(self, request: SealReplica, _payload: bytearray) -> ReplicaStateReply:
        await self._making.open_again(request.log_stream)
        return await self._replica(request.log_stream).seal(request.epoch, request.committed_end)

    async def unseal(self, request: UnsealReplica, _payload: bytearray) -> ReplicaStateReply:
        """The first of the replicas is the primary; it is told where the others are."""
        replicas = request.replicas
        if not any(replica.node == self._node for replica in replicas):
            raise PreconditionFailed(
                f"node {self._node} is not among the replicas of log stream {request.log_stream}"
            )
        primary = replicas[0].node == self._node
        backups = [replica.address for replica in replicas[1:]] if primary else []
        state = await self._replica(request.log_stream).unseal(request.epoch, backups, primary=primary)
        self._making.opened(request.log_stream)
        return state

    def _replica(self, log_stream: LogStreamID) -> Replica:
        replica = self._replicas.get(log_stream)
        if replica is None:
            raise UnknownLogStream(log_stream)
        return replica


@contextmanager
def _disk_refusals(log_stream: LogStreamID) -> Iterator[None]:
    """A disk that fails is an answer, not a surprise: the manager asks again, or turns to another node."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"log stream {log_stream}: the disk refuses: {error}") from error
