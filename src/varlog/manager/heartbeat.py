"""Heartbeat: polls each storage node; a silent one is unreachable (R-SEAL-2).

A round waits for the nodes that answered the last time. The others are probed in the background, so that they do not delay the
repair of streams without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from varlog.manager.config import ManagerConfig
from varlog.manager.events import EventLog
from varlog.manager.peers import Peers
from varlog.model.cluster import StorageNode
from varlog.model.errors import Unavailable, VarlogError
from varlog.model.events import Event, EventKind
from varlog.model.ids import NO_UUID, ClusterUUID, NodeID
from varlog.model.status import NodeStatus
from varlog.rpc.messages import GetNodeStatus, GetNodeStatusReply
from varlog.rpc.transport import CallTimeout, ConnectionLost
from varlog.runtime.tasks import Tasks

# Between two probes of a node that is unreachable.
PROBE_S: Final = 0.1
# If a timeout is noticed this much of its length too late, this process itself was paused.
LATE: Final = 0.1


class Heartbeat:
    """Which nodes answer, and since when the others do not. `on_return` is called when a silent node answers again."""

    def __init__(
        self,
        config: ManagerConfig,
        peers: Peers,
        events: EventLog,
        tasks: Tasks,
        on_return: Callable[[], None],
    ) -> None:
        self._config = config
        self._peers = peers
        self._events = events
        self._tasks = tasks
        self._on_return = on_return
        self._cluster_uuid = NO_UUID
        self._silent_since: dict[NodeID, float] = {}
        self._why: dict[NodeID, str] = {}
        # Silent nodes that are probed in the background, as they are registered now.
        self._probed: dict[NodeID, StorageNode] = {}

    def unreachable_s(self) -> dict[NodeID, float]:
        """How long each silent node has been silent."""
        now = asyncio.get_running_loop().time()
        return {node: now - since for node, since in self._silent_since.items()}

    def unreachable_reasons(self) -> dict[NodeID, str]:
        """The error of the newest request to each of them."""
        return {node: self._why[node] for node in self._silent_since}

    async def poll(
        self, nodes: Sequence[StorageNode], cluster_uuid: ClusterUUID = NO_UUID
    ) -> dict[NodeID, NodeStatus]:
        """Poll all of them concurrently; the statuses of those that answered. A node of another cluster than
        `cluster_uuid` counts as silent: no other request is sent to it."""
        self._cluster_uuid = cluster_uuid
        registered = {node.node: None for node in nodes}
        for gone in [node for node in self._silent_since if node not in registered]:
            del self._silent_since[gone], self._why[gone]
            self._probed.pop(gone, None)
        asked = []
        for node in nodes:
            if node.node in self._silent_since:
                self._probe_soon(node)
            else:
                asked.append(node)
        answers = await asyncio.gather(*(self._ask(node) for node in asked))
        return {node.node: status for node, status in zip(asked, answers, strict=True) if status is not None}

    async def _ask(self, node: StorageNode) -> NodeStatus | None:
        try:
            return await self._status(node)
        except VarlogError as error:
            self._why[node.node] = str(error)
            if node.node not in self._silent_since:
                self._silent_since[node.node] = asyncio.get_running_loop().time()
                self._events.record(
                    Event(EventKind.NODE_UNREACHABLE, node=node.node, address=node.address, reason=str(error))
                )
            return None

    async def _status(self, node: StorageNode) -> NodeStatus:
        loop = asyncio.get_running_loop()
        timeout_s = self._config.node_timeout_s
        asked_at = loop.time()
        try:
            answer = await self._peers.ask(
                node.address, GetNodeStatus(), GetNodeStatusReply, timeout_s=timeout_s
            )
        except (ConnectionLost, CallTimeout) as lost:
            # A broken connection proves nothing about the node; nor does a timeout during which this process itself was paused:
            # the answer may have arrived and not been read yet.
            slept = loop.time() - asked_at > (1 + LATE) * timeout_s
            if not lost.sent or (isinstance(lost, CallTimeout) and not slept):
                raise
            answer = await self._peers.ask(
                node.address, GetNodeStatus(), GetNodeStatusReply, timeout_s=timeout_s
            )
        status = answer.status
        if (status.node, status.cluster) != (node.node, self._config.cluster):
            raise Unavailable(f"node {status.node} of cluster {status.cluster} listens at {node.address}")
        if status.cluster_uuid not in (NO_UUID, self._cluster_uuid):
            raise Unavailable(
                f"the node at {node.address} belongs to the cluster with UUID {status.cluster_uuid}, not to {self._cluster_uuid}: "
                "start the metadata repository on the right store, or rebuild it with `vmr recover`"
            )
        return status

    def _probe_soon(self, node: StorageNode) -> None:
        probed = node.node in self._probed
        self._probed[node.node] = node
        if not probed:
            _ = self._tasks.spawn(f"probe/{node.node}", self._probe(node.node))

    async def _probe(self, number: NodeID) -> None:
        """Poll a node until it answers or is no longer registered, often, because streams wait for it."""
        while (node := self._probed.get(number)) is not None:
            if await self._ask(node) is not None:
                self._probed.pop(number, None)
                if self._silent_since.pop(number, None) is not None:
                    self._events.record(Event(EventKind.NODE_RETURNED, node=number, address=node.address))
                    self._on_return()
                return
            await asyncio.sleep(min(PROBE_S, self._config.heartbeat_s))
