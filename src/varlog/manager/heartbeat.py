"""Heartbeat: asks each storage node how it is; one that does not answer in time is not alive (R-SEAL-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from varlog.manager.config import ManagerConfig
from varlog.manager.peers import Peers
from varlog.model.cluster import NodeStatus, StorageNode
from varlog.model.errors import VarlogError
from varlog.model.ids import NodeID
from varlog.rpc.messages import GetNodeStatus, NodeStatusIs
from varlog.runtime.logs import get_logger, told

log = get_logger("manager")


class Heartbeat:
    """What each node said last, and whether it answered the last time."""

    def __init__(self, config: ManagerConfig, peers: Peers) -> None:
        self._config = config
        self._peers = peers
        self._silent: dict[NodeID, None] = {}
        self.last: dict[NodeID, NodeStatus] = {}

    def is_alive(self, node: NodeID) -> bool:
        return node in self.last and node not in self._silent

    async def poll(self, nodes: Sequence[StorageNode]) -> dict[NodeID, NodeStatus]:
        """Ask all of them at the same time; the answers of those that gave one."""
        answers = await asyncio.gather(*(self._ask(node) for node in nodes))
        known = {node.node: None for node in nodes}
        for gone in [node for node in self.last if node not in known]:
            del self.last[gone]
            self._silent.pop(gone, None)
        return {node.node: status for node, status in zip(nodes, answers, strict=True) if status is not None}

    async def _ask(self, node: StorageNode) -> NodeStatus | None:
        # A node known to be silent is not waited for as long: the streams of the others must not wait with it.
        silent = node.node in self._silent
        timeout_s = (
            min(self._config.heartbeat_s, self._config.node_timeout_s)
            if silent
            else self._config.node_timeout_s
        )
        try:
            status = (
                await self._peers.ask(node.address, GetNodeStatus(), NodeStatusIs, timeout_s=timeout_s)
            ).status
        except VarlogError as error:
            self._not_alive(node, str(error))
            return None
        if (status.node, status.cluster) != (node.node, self._config.cluster):
            self._not_alive(node, f"node {status.node} of cluster {status.cluster} listens there")
            return None
        if self._silent.pop(node.node, self) is None:
            log.info(told("a storage node answers again", node=node.node, address=node.address))
        self.last[node.node] = status
        return status

    def _not_alive(self, node: StorageNode, why: str) -> None:
        if node.node not in self._silent:
            log.warning(told("a storage node does not answer", node=node.node, address=node.address, why=why))
            self._silent[node.node] = None
