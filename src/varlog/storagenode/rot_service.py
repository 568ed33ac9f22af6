"""What others say of damage: a reader that got some, the manager that wants it mended. Owns the node's scrub."""

from __future__ import annotations

from collections.abc import Mapping

from varlog.model.errors import InvalidRequest, UnknownLogStream
from varlog.model.ids import LogStreamID, NodeID
from varlog.rpc.messages import CheckEntries, Done, MendReplica
from varlog.rpc.transport import Call
from varlog.runtime.doors import Doors
from varlog.runtime.tasks import Tasks
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.log_stream.replica import Replica
from varlog.storagenode.log_stream.scrub import Scrub
from varlog.storagenode.log_unit.unit import LogUnit
from varlog.storagenode.log_unit.unit_scrub import UnitScrub


class RotService:
    """Both calls are answered before the work is done: ReplicaStatus.damage tells what is found, and what is left."""

    def __init__(
        self,
        node: NodeID,
        replicas: Mapping[LogStreamID, Replica],
        units: Mapping[LogStreamID, LogUnit],
        tasks: Tasks,
        doors: Doors,
        config: StorageNodeConfig,
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._units = units
        self._tasks = tasks
        self._worker = doors.make_worker("scrub")
        self._scrub = Scrub(replicas, self._worker, doors, config.scrub_bytes_per_s, config.scrub_interval_s)
        self._unit_scrub = UnitScrub(units, self._worker, config.scrub_bytes_per_s, config.scrub_interval_s)

    def start(self) -> None:
        _ = self._tasks.spawn("scrub", self._scrub.run())
        _ = self._tasks.spawn("unit-scrub", self._unit_scrub.run())

    async def close(self) -> None:
        """After the node's tasks have ended: what the worker looks at just now is not taken from under it."""
        await self._worker.close()

    def look_soon(self) -> None:
        """A replica or unit has met bytes that may be damaged."""
        self._scrub.look_soon()
        self._unit_scrub.look_soon()

    def unit_is_new(self) -> None:
        """A node without units looks at none, and waits for the first."""
        self._unit_scrub.look_soon()

    def check_entries(self, call: Call, request: CheckEntries) -> None:
        """A reader's word is not believed, but looked into."""
        if not 0 < request.begin < request.end:
            raise InvalidRequest(f"[{request.begin}, {request.end}) are no entries")
        unit = self._units.get(request.log_stream)
        (unit or self._replica(request.log_stream)).suspect(request.begin, request.end)
        call.reply(Done())

    async def mend(self, request: MendReplica, _payload: bytearray) -> Done:
        """The sources in the order given, this node itself excepted."""
        replica = self._replica(request.log_stream)
        sources = [source for source in request.sources if source.node != self._node]
        _ = self._tasks.spawn(f"mend/ls={request.log_stream}", replica.mender.mend(sources))
        return Done()

    def _replica(self, log_stream: LogStreamID) -> Replica:
        replica = self._replicas.get(log_stream)
        if replica is None:
            raise UnknownLogStream(log_stream)
        return replica
