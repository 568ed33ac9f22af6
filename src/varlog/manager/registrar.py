"""Registrar, StreamMaker: register nodes, create log streams (R-REG-1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from varlog.manager.config import ManagerConfig
from varlog.manager.peers import Peers
from varlog.manager.placement_rules import NodeLoad, place_chain, place_replicas
from varlog.manager.repair_loop import POLL_S, ClusterWatcher, RepairLoop
from varlog.manager.snapshot import Snapshot
from varlog.model.cluster import Grouping, StorageNode, Topic
from varlog.model.epoch import NO_EPOCH
from varlog.model.errors import NotInCluster, PreconditionFailed, Rejected, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.rpc import messages
from varlog.rpc.messages import GetNodeStatus, GetNodeStatusReply, Message, RegisterNode, SetManager
from varlog.runtime.logging import get_logger, logfmt

log = get_logger("manager")


class Registrar:
    """Registers storage nodes, and the manager itself, with the repository."""

    def __init__(self, config: ManagerConfig, peers: Peers) -> None:
        self._config = config
        self._peers = peers
        # Nodes that were named when the manager started and have not been registered yet.
        self.pending: dict[str, None] = dict.fromkeys(config.nodes)

    async def register(self, address: str) -> StorageNode:
        """Ask the node at `address` for its identity; a node of another cluster is refused. A repeated call is harmless, and
        updates the address."""
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
        """Retry until it succeeds: a configured node may start later than the manager."""
        logged = ""
        while True:
            try:
                await self.register(address)
                self.pending.pop(address, None)
                return
            except VarlogError as error:
                if (why := str(error)) != logged:
                    log.warning(logfmt("a storage node is not registered yet", address=address, why=why))
                    logged = why
            await asyncio.sleep(self._config.heartbeat_s)

    async def keep_announcing(self, address: str) -> None:
        """Retry until the repository knows the manager's address. Once per start, so that two managers do not overwrite each other
        forever."""
        while True:
            try:
                await self._peers.ask_repository(
                    SetManager(address, self._config.auto_create_topics), Message
                )
                return
            except VarlogError:
                await asyncio.sleep(self._config.heartbeat_s)


# Less than clients wait for a reply.
NODES_TIMEOUT_S = 8.0
# A snapshot of this age may still be used to place replicas.
SNAPSHOT_LASTS_S = 0.5


class StreamMaker:
    """Creates streams of either ordering: on their nodes first, then at the repository (R-REG-2). What is left of a failed attempt
    is removed immediately, or becomes a zombie."""

    def __init__(
        self,
        config: ManagerConfig,
        peers: Peers,
        registrar: Registrar,
        repair: RepairLoop,
        watcher: ClusterWatcher,
    ) -> None:
        self._config = config
        self._peers = peers
        self._registrar = registrar
        self._repair = repair
        self._watcher = watcher
        # Streams created lately, and when: a snapshot may be older.
        self._made: dict[LogStreamID, tuple[tuple[NodeID, ...], float]] = {}

    async def make(
        self,
        topic: Topic,
        replicas: int,
        *,
        streams_max: int = 0,
        seen: Snapshot | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> LogStreamID:
        """R-REG-2: allocate an id, create the replicas concurrently, then register: only then does it exist for others. `seen`: a
        snapshot that is no older than SNAPSHOT_LASTS_S. `before` is called before the first change, and raises if the caller has
        given up."""
        snapshot, nodes = await self.place_replicas(
            replicas, topic, sequenced=topic.sequenced, grouping=topic.grouping, seen=seen
        )
        before()
        new_id = await self._peers.ask_repository(messages.NewLogStreamID(), messages.NewLogStreamIDReply)
        log_stream = new_id.log_stream
        addresses = [found.address for node in nodes if (found := snapshot.view.node(node)) is not None]
        add = messages.AddLogStream(
            topic.topic, log_stream, ordering=topic.ordering, cluster_uuid=snapshot.view.uuid
        )
        answers = await self._peers.ask_all(addresses, add)
        failures = [answer for answer in answers if answer is not None]
        # Nothing refers to this stream and nothing will, so its replicas may be removed: only in no epoch, so that a late message
        # cannot remove what became of them.
        remove = messages.RemoveLogStream(log_stream, NO_EPOCH, snapshot.view.uuid)
        if failures:
            await self._peers.ask_all(addresses, remove)
            raise failures[0]
        try:
            register = messages.RegisterLogStream(topic.topic, log_stream, nodes, streams_max)
            await self._peers.ask_repository(register, Message)
        except (Rejected, PreconditionFailed):
            await self._peers.ask_all(addresses, remove)
            raise
        self._made[log_stream] = (nodes, asyncio.get_running_loop().time())
        self._repair.wake()
        log.info(logfmt("created a log stream", log_stream=log_stream, topic=topic.topic, nodes=nodes))
        return log_stream

    async def place_replicas(
        self,
        replicas: int,
        topic: Topic | None = None,
        *,
        sequenced: bool,
        grouping: Grouping,
        seen: Snapshot | None = None,
    ) -> tuple[Snapshot, tuple[NodeID, ...]]:
        """The nodes of a new stream. If there are too few, wait: configured nodes may still be starting, and one that has just
        stopped answering may only be slow."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NODES_TIMEOUT_S
        wanted = replicas or self._config.replicas
        while True:
            # Checked before the snapshot: a node that is registered meanwhile is not in it, and not pending any more.
            more = seen is not None or bool(self._registrar.pending)
            snapshot, seen = seen or await self._watcher.snapshot(), None
            present = snapshot.view.streams_of(topic.topic) if topic is not None else ()
            try:
                load = self._load(snapshot)
                if not sequenced:
                    return snapshot, place_replicas(load, wanted)
                chains = [stream.replicas for stream in present]
                return snapshot, place_chain(load, wanted, grouping, chains)
            except PreconditionFailed:
                if not (more or _may_be_back(snapshot)) or loop.time() > deadline:
                    raise
            await asyncio.sleep(POLL_S)

    def _load(self, snapshot: Snapshot) -> tuple[NodeLoad, ...]:
        """The load of the living nodes, including streams created since the snapshot."""
        oldest = asyncio.get_running_loop().time() - 2 * SNAPSHOT_LASTS_S
        self._made = {made: at for made, at in self._made.items() if at[1] > oldest}
        known = {stream.log_stream for stream in snapshot.view.streams}
        counted = {load.node: load for load in snapshot.load()}
        for log_stream, (nodes, _) in self._made.items():
            for node in nodes if log_stream not in known else ():
                if node in counted:
                    counted[node] = counted[node].with_one_more(primary=node == nodes[0])
        return tuple(counted.values())


def _may_be_back(snapshot: Snapshot) -> bool:
    """A registered node did not answer in this round, and has not been away for long; or it is back since, and its status is not
    known yet."""
    return any(
        snapshot.unreachable_s.get(known.node, 0.0) < NODES_TIMEOUT_S
        for known in snapshot.view.nodes
        if known.node not in snapshot.nodes
    )
