"""Registrar: asks a storage node who it is, and registers it at the metadata repository (R-REG-1)."""

from __future__ import annotations

import asyncio

from varlog.manager.config import ManagerConfig
from varlog.manager.peers import Peers
from varlog.model.cluster import StorageNode
from varlog.model.errors import NotInCluster, VarlogError
from varlog.rpc.messages import GetNodeStatus, GetNodeStatusReply, Message, RegisterNode, SetManager
from varlog.runtime.logs import get_logger, logfmt

log = get_logger("manager")


class Registrar:
    """Makes nodes, and the manager itself, known to the repository."""

    def __init__(self, config: ManagerConfig, peers: Peers) -> None:
        self._config = config
        self._peers = peers
        # Nodes that were named when the manager started and have not been registered yet.
        self.pending: dict[str, None] = dict.fromkeys(config.nodes)

    async def register(self, address: str) -> StorageNode:
        """Ask the node at `address` who it is; a node of another cluster is refused. Again is harmless, and
        updates its address."""
        timeout_s = self._config.node_timeout_s
        status = (
            await self._peers.ask(address, GetNodeStatus(), GetNodeStatusReply, timeout_s=timeout_s)
        ).status
        if status.cluster != self._config.cluster:
            raise NotInCluster(self._config.cluster, status.cluster)
        node = StorageNode(status.node, status.address or address, status.volumes)
        register = RegisterNode(
            node.node,
            node.address,
            node.volumes,
            status.cluster_uuid,
            status.largest_topic,
            status.largest_log_stream,
        )
        await self._peers.ask_repository(register, Message)
        log.info(logfmt("registered a storage node", node=node.node, address=node.address))
        return node

    async def keep_registering(self, address: str) -> None:
        """Until it worked: a node that was named when the manager started may come up later than the
        manager."""
        said = ""
        while True:
            try:
                await self.register(address)
                self.pending.pop(address, None)
                return
            except VarlogError as error:
                if (why := str(error)) != said:
                    log.warning(logfmt("a storage node is not registered yet", address=address, why=why))
                    said = why
            await asyncio.sleep(self._config.heartbeat_s)

    async def keep_announcing(self, address: str) -> None:
        """Until the repository knows where the manager is. Once a start, so that two managers do not outdo
        each other for ever."""
        while True:
            try:
                await self._peers.ask_repository(
                    SetManager(address, self._config.auto_create_topics), Message
                )
                return
            except VarlogError:
                await asyncio.sleep(self._config.heartbeat_s)
