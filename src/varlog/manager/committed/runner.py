"""StepRunner: carries out one repair step of a committed log stream."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping

from varlog.manager.peers import Peers
from varlog.manager.repair_steps import (
    BeginTopic,
    CreateReplica,
    NoStep,
    RebuildReplica,
    Reconfigure,
    RepairReplica,
    RepairStep,
    ReplaceReplica,
    SealReplicas,
    SealStream,
    SyncReplica,
    UnsealReplicas,
    UnsealStream,
)
from varlog.model.cluster import ClusterView, LogStream
from varlog.model.epoch import NO_EPOCH
from varlog.model.errors import Unavailable, UnknownLogStream, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import FIRST_LLSN
from varlog.model.status import ReplicaState, ReplicaStatus
from varlog.rpc import messages
from varlog.rpc.messages import Message, ReplicaAddress

# The statuses of all replicas of one stream in a round, registered or not.
Found = Mapping[NodeID, ReplicaStatus]


class StepRunner:
    """Sends the requests of a step. Each step may be interrupted anywhere, and repeated by any manager. Remembers which nodes
    refuse."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._refused_since: dict[tuple[LogStreamID, NodeID], float] = {}

    def refused_s(self, stream: LogStream) -> dict[NodeID, float]:
        """How long nodes have refused what their replica needs: a node with a dead disk answers, and is of no use."""
        now = asyncio.get_running_loop().time()
        since = {node: self._refused_since.get((stream.log_stream, node)) for node in stream.replicas}
        return {node: now - found for node, found in since.items() if found is not None}

    def forget(self, log_stream: LogStreamID) -> None:
        """The stream runs: no node refuses it anything any more."""
        for key in [key for key in self._refused_since if key[0] == log_stream]:
            del self._refused_since[key]

    def retain(self, streams: Container[LogStreamID]) -> None:
        """Forget all streams but these."""
        self._refused_since = {key: since for key, since in self._refused_since.items() if key[0] in streams}

    async def do(self, stream: LogStream, step: RepairStep, view: ClusterView, found: Found) -> None:
        """Raises VarlogError if a process refuses, or does not answer."""
        match step:
            case SealStream() | UnsealStream():
                await self._ask_repository(stream, step)
            case SealReplicas():
                seal = messages.SealReplica(stream.log_stream, step.epoch, step.committed_end)
                await self._ask_nodes(stream, step.nodes, view, seal)
            case UnsealReplicas():
                replicas = _addresses(stream.replicas, view)
                unseal = messages.UnsealReplica(stream.log_stream, step.epoch, replicas)
                _raise_first(await self._ask_all(step.nodes, view, unseal))
            case CreateReplica(node):
                make = messages.AddLogStream(stream.topic, stream.log_stream, cluster_uuid=view.uuid)
                await self._ask_nodes(stream, (node,), view, make)
            case RebuildReplica(node, epoch, _, sealed_end):
                rebuild = messages.RebuildReplica(
                    stream.topic, stream.log_stream, epoch, view.uuid, sealed_end
                )
                await self._ask_nodes(stream, (node,), view, rebuild)
            case SyncReplica(node, source, epoch):
                (address,) = _addresses((source,), view)
                await self._ask(node, view, messages.SyncReplica(stream.log_stream, epoch, address))
            case RepairReplica(node, sources):
                repair = messages.RepairReplica(stream.log_stream, _addresses(sources, view))
                await self._ask(node, view, repair)
            case ReplaceReplica():
                await self._replace(stream, step, view, found)
            case BeginTopic() | Reconfigure() | NoStep():
                pass  # of sequenced topics: see ProjectionRunner

    async def _ask_repository(self, stream: LogStream, step: SealStream | UnsealStream) -> None:
        if isinstance(step, SealStream):
            request: Message = messages.SealStream(stream.log_stream)
        else:
            request = messages.UnsealStream(stream.log_stream, step.epoch)
        await self._peers.ask_repository(request, messages.StreamReply)

    async def _replace(
        self, stream: LogStream, step: ReplaceReplica, view: ClusterView, found: Found
    ) -> None:
        """First the replica, then the repository (as R-REG-2): if interrupted in between, it is a zombie, which the next attempt
        uses."""
        if step.new not in stream.replicas:
            await self._make_empty(stream, step.new, view, found.get(step.new))
        change = messages.SetReplicas(stream.log_stream, step.epoch, step.replicas)
        await self._peers.ask_repository(change, messages.StreamReply)

    async def _make_empty(
        self, stream: LogStream, node: NodeID, view: ClusterView, left: ReplicaStatus | None
    ) -> None:
        """An empty replica on a node outside the stream. What is left there of an older one is removed first, unless it has
        changed since its status: the node compares the epoch."""
        if left is not None and _is_empty(left):
            return
        if left is not None:
            remove = messages.RemoveLogStream(stream.log_stream, left.epoch, view.uuid)
            try:
                await self._ask(node, view, remove)
            except UnknownLogStream:
                pass  # already removed
        make = messages.AddLogStream(stream.topic, stream.log_stream, cluster_uuid=view.uuid)
        await self._ask(node, view, make)

    async def _ask_nodes(
        self, stream: LogStream, nodes: tuple[NodeID, ...], view: ClusterView, request: Message
    ) -> None:
        """Send a request that only a failing disk can refuse, and remember which nodes do."""
        answers = await self._ask_all(nodes, view, request)
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, VarlogError):
                now = asyncio.get_running_loop().time()
                self._refused_since.setdefault((stream.log_stream, node), now)
            else:
                self._refused_since.pop((stream.log_stream, node), None)
        _raise_first(answers)

    async def _ask_all(
        self, nodes: tuple[NodeID, ...], view: ClusterView, request: Message
    ) -> list[Message | BaseException]:
        """Concurrently; each may finish."""
        asks = (self._ask(node, view, request) for node in nodes)
        return await asyncio.gather(*asks, return_exceptions=True)

    async def _ask(self, node: NodeID, view: ClusterView, request: Message) -> Message:
        (replica,) = _addresses((node,), view)
        return await self._peers.ask(replica.address, request, Message)


def _raise_first(answers: list[Message | BaseException]) -> None:
    for failure in [answer for answer in answers if isinstance(answer, BaseException)]:
        raise failure


def _is_empty(replica: ReplicaStatus) -> bool:
    """Never in an epoch of a stream: created by a manager that was interrupted before it registered it."""
    return (
        replica.epoch == NO_EPOCH
        and replica.state is ReplicaState.SEALING
        and replica.durable_end == FIRST_LLSN
    )


def _addresses(nodes: tuple[NodeID, ...], view: ClusterView) -> tuple[ReplicaAddress, ...]:
    found = [(node, view.node(node)) for node in nodes]
    for node, known in found:
        if known is None:
            raise Unavailable(f"storage node {node} is not registered")
    return tuple(ReplicaAddress(node, known.address) for node, known in found if known is not None)
