"""NodeAdminService: the manager's calls to a storage node.

Status; create, remove and rebuild replicas; seal, sync and unseal them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

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


class StreamHost(Protocol):
    """The node, as far as management calls use it."""

    def status(self) -> NodeStatus: ...

    async def add_stream(self, request: AddLogStream) -> None: ...

    async def remove_stream(self, request: RemoveLogStream) -> None: ...

    async def rebuild_stream(self, request: RebuildReplica) -> None: ...

    async def reopen_stream(self, log_stream: LogStreamID) -> None:
        """Open what the disk refused at the start."""

    def stream_opened(self, log_stream: LogStreamID) -> None:
        """The replica runs."""


class NodeAdminService:
    """Serves the manager's calls."""

    def __init__(
        self,
        node: NodeID,
        replicas: Mapping[LogStreamID, Replica],
        host: StreamHost,
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._host = host

    async def get_status(self, _request: GetNodeStatus, _payload: bytearray) -> GetNodeStatusReply:
        return GetNodeStatusReply(self._host.status())

    async def add_log_stream(self, request: AddLogStream, _payload: bytearray) -> Done:
        with _disk_refusals(request.log_stream):
            await self._host.add_stream(request)
        return Done()

    async def remove_log_stream(self, request: RemoveLogStream, _payload: bytearray) -> Done:
        with _disk_refusals(request.log_stream):
            await self._host.remove_stream(request)
        return Done()

    async def rebuild(self, request: RebuildReplica, _payload: bytearray) -> Done:
        with _disk_refusals(request.log_stream):
            await self._host.rebuild_stream(request)
        return Done()

    async def sync(self, request: SyncReplica, _payload: bytearray) -> SyncReply:
        return SyncReply(self._replica(request.log_stream).sync(request.epoch, request.source))

    async def seal(self, request: SealReplica, _payload: bytearray) -> ReplicaStateReply:
        await self._host.reopen_stream(request.log_stream)
        return await self._replica(request.log_stream).seal(request.epoch, request.committed_end)

    async def unseal(self, request: UnsealReplica, _payload: bytearray) -> ReplicaStateReply:
        """The first of the replicas is the primary; it gets the addresses of the others."""
        replicas = request.replicas
        if not any(replica.node == self._node for replica in replicas):
            raise PreconditionFailed(
                f"node {self._node} is not among the replicas of log stream {request.log_stream}"
            )
        primary = replicas[0].node == self._node
        backups = [replica.address for replica in replicas[1:]] if primary else []
        state = await self._replica(request.log_stream).unseal(request.epoch, backups, primary=primary)
        self._host.stream_opened(request.log_stream)
        return state

    def _replica(self, log_stream: LogStreamID) -> Replica:
        replica = self._replicas.get(log_stream)
        if replica is None:
            raise UnknownLogStream(log_stream)
        return replica


@contextmanager
def _disk_refusals(log_stream: LogStreamID) -> Iterator[None]:
    """A failing disk is an answer, not a bug: the manager retries, or chooses another node."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"log stream {log_stream}: the disk refuses: {error}") from error
