"""OrphanCollector: removes unregistered replicas after a grace time (R-REG-4)."""

from __future__ import annotations

import asyncio

from varlog.manager.config import ManagerConfig
from varlog.manager.events import EventLog
from varlog.manager.peers import Peers
from varlog.manager.snapshot import Snapshot
from varlog.manager.zombie_rules import Zombie, unregistered
from varlog.model.cluster import changed
from varlog.model.errors import UnknownLogStream, VarlogError
from varlog.model.events import Event, EventKind
from varlog.model.ids import ClusterUUID
from varlog.rpc.messages import Message, RemoveLogStream
from varlog.runtime.tasks import Tasks


class OrphanCollector:
    """Remembers since when it has seen each zombie, and removes it in the epoch in which it was seen. A restarted manager starts to
    count again."""

    def __init__(self, config: ManagerConfig, peers: Peers, events: EventLog, tasks: Tasks) -> None:
        self._config = config
        self._peers = peers
        self._events = events
        self._tasks = tasks
        self._seen_since: dict[Zombie, float] = {}
        self._reported: dict[Zombie, None] = {}

    def collect(self, snapshot: Snapshot) -> None:
        """Start to remove those that have been seen for the whole grace time."""
        now, nodes = asyncio.get_running_loop().time(), snapshot.nodes
        seen = unregistered(snapshot.view, nodes, snapshot.was_registered, snapshot.wanted)
        self._report_foreign(seen.foreign)
        self._seen_since = {found: self._seen_since.get(found, now) for found in seen.zombies}
        for found, since in self._seen_since.items():
            if now - since >= self._config.zombie_grace_s:
                # Restart the count: one that cannot be removed is retried after another grace time.
                self._seen_since[found] = now
                _ = self._tasks.spawn(
                    f"remove/{found.log_stream}@{found.node}",
                    self._remove(found, nodes[found.node].address, snapshot.view.uuid),
                )

    def _report_foreign(self, foreign: tuple[Zombie, ...]) -> None:
        """Once each: an operator must decide."""
        for found in [found for found in foreign if found not in self._reported]:
            self._events.record(_event(EventKind.FOREIGN_REPLICA_KEPT, found))
        self._reported = dict.fromkeys(foreign)

    async def _remove(self, zombie: Zombie, address: str, cluster_uuid: ClusterUUID) -> None:
        try:
            remove = RemoveLogStream(zombie.log_stream, zombie.epoch, cluster_uuid)
            await self._peers.ask(address, remove, Message)
        except UnknownLogStream:
            return  # another manager was quicker
        except VarlogError as error:
            self._events.record(changed(_event(EventKind.REMOVE_ORPHAN, zombie), failure=str(error)))
            return
        self._events.record(_event(EventKind.REMOVE_ORPHAN, zombie))


def _event(kind: EventKind, zombie: Zombie) -> Event:
    return Event(kind, log_stream=zombie.log_stream, node=zombie.node, epoch=zombie.epoch)
