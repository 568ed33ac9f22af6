"""CorruptionService: damage reports of readers, repairs for the manager.

It owns the node's scrub. Besides the passes over all bytes, the names of files are checked every minute: a file that was deleted or
replaced while it is open is intact for the process that has it open, and gone at the next start. That costs two system calls per
open file, and no read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from varlog.model.errors import InvalidRequest, UnknownLogStream
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.limits import SCRUB_INTERVAL_S_MIN
from varlog.rpc.messages import CheckEntries, Done, RepairReplica
from varlog.rpc.transport import Call
from varlog.runtime.environment import Environment
from varlog.runtime.tasks import Tasks
from varlog.storagenode.committed.replica import Replica
from varlog.storagenode.committed.scrub import Scrub
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.sequenced.scrub import UnitScrub
from varlog.storagenode.sequenced.unit import LogUnit

# How often the names of files are checked, unless the scrub's interval is shorter.
NAME_CHECK_INTERVAL_S: Final = 60.0


class CorruptionService:
    """Both calls are answered before the work is done: ReplicaStatus.damage shows what is found, and what is left."""

    def __init__(
        self,
        node: NodeID,
        replicas: Mapping[LogStreamID, Replica],
        units: Mapping[LogStreamID, LogUnit],
        tasks: Tasks,
        environment: Environment,
        config: StorageNodeConfig,
        scrub_node: Callable[[], Awaitable[None]],
    ) -> None:
        """`scrub_node` checks the node's own metadata files."""
        self._node = node
        self._replicas = replicas
        self._units = units
        self._tasks = tasks
        self._worker = environment.make_worker("scrub")
        self._scrub = Scrub(
            replicas, self._worker, environment, config.scrub_bytes_per_s, config.scrub_interval_s
        )
        self._unit_scrub = UnitScrub(units, self._worker, config.scrub_bytes_per_s, config.scrub_interval_s)
        self._tend_node = scrub_node
        self._names_s = min(NAME_CHECK_INTERVAL_S, max(config.scrub_interval_s, SCRUB_INTERVAL_S_MIN))
        self._scrubs = config.scrub_bytes_per_s > 0

    def start(self) -> None:
        _ = self._tasks.spawn("scrub", self._scrub.loop.run())
        _ = self._tasks.spawn("unit-scrub", self._unit_scrub.loop.run())
        if self._scrubs:
            _ = self._tasks.spawn("names", self._watch_names())

    async def _watch_names(self) -> None:
        """Check the names of all open files of this node, and of its own metadata files, periodically."""
        while True:
            await asyncio.sleep(self._names_s)
            await self._tend_node()
            for replica in list(self._replicas.values()):
                await replica.relink()
            for unit in list(self._units.values()):
                await unit.relink()

    async def close(self) -> None:
        """After the node's tasks have ended: nothing that the worker reads is closed under it."""
        await self._worker.close()

    def check_soon(self) -> None:
        """Record that a replica or unit has read bytes that may be damaged."""
        self._scrub.loop.check_soon()
        self._unit_scrub.loop.check_soon()

    def unit_added(self) -> None:
        """The scrub of a node without units waits for the first."""
        self._unit_scrub.loop.check_soon()

    def check_entries(self, call: Call, request: CheckEntries) -> None:
        """Check the entries of a reader's report, which is not trusted."""
        if not 0 < request.begin < request.end:
            raise InvalidRequest(f"[{request.begin}, {request.end}) are no entries")
        unit = self._units.get(request.log_stream)
        (unit or self._replica(request.log_stream)).mark_suspect(request.begin, request.end)
        call.reply(Done())

    async def repair(self, request: RepairReplica, _payload: bytearray) -> Done:
        """Start a repair from the sources in the given order, except this node."""
        replica = self._replica(request.log_stream)
        sources = [source for source in request.sources if source.node != self._node]
        _ = self._tasks.spawn(f"repair/ls={request.log_stream}", replica.block_repair.repair(sources))
        return Done()

    def _replica(self, log_stream: LogStreamID) -> Replica:
        replica = self._replicas.get(log_stream)
        if replica is None:
            raise UnknownLogStream(log_stream)
        return replica
