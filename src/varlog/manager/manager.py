"""Manager: services and loops of one manager, started and stopped in order."""

from __future__ import annotations

from varlog.manager.admin import AdminService, ReplicaAdmin
from varlog.manager.config import ManagerConfig
from varlog.manager.events import EventLog
from varlog.manager.peers import Peers
from varlog.manager.registrar import Registrar
from varlog.manager.repair_loop import RepairLoop
from varlog.manager.status import StatusService
from varlog.model.errors import NotInCluster, StartupError, VarlogError
from varlog.model.limits import REPLICAS_MAX
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import GetView, GetViewReply
from varlog.rpc.transport import Server, Transport
from varlog.runtime.environment import Environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

__all__ = ["Manager", "ManagerConfig"]

log = get_logger("manager")


class Manager:
    """Has no durable state: it may be killed at any time, and another may run beside it."""

    def __init__(self, config: ManagerConfig, environment: Environment, transport: Transport) -> None:
        self.config = config
        self._transport = transport
        self._tasks = Tasks("manager", _task_failed)
        self._peers = Peers(transport, config.repository, lambda address: self._repair.wake())
        self._registrar = Registrar(config, self._peers)
        self._repair = RepairLoop(config, self._peers, EventLog(environment.clock), self._tasks)
        self._dispatcher = Dispatcher("the manager")
        AdminService(config, self._peers, self._registrar, self._repair).register(self._dispatcher)
        ReplicaAdmin(self._peers, self._repair).register(self._dispatcher)
        StatusService(transport, self._peers, self._repair).register(self._dispatcher)
        self._server: Server | None = None
        self.address = ""

    async def start(self) -> None:
        """Listen, and start to manage the cluster. A repository that does not run yet is waited for in the background."""
        if not 1 <= self.config.replicas <= REPLICAS_MAX or self.config.streams < 1:
            raise StartupError(
                f"a topic has at least one log stream, and 1 to {REPLICAS_MAX} replicas of each"
            )
        try:
            await self._refuse_foreign_repository()
            self._server = await self._transport.serve(self.config.listen, lambda _: self._dispatcher.handle)
        except BaseException:
            await self.stop()
            raise
        self.address = self._server.address
        _ = self._tasks.spawn(
            "announce", self._registrar.keep_announcing(self.config.advertise or self.address)
        )
        for address in self.config.nodes:
            _ = self._tasks.spawn(f"register/{address}", self._registrar.keep_registering(address))
        _ = self._tasks.spawn("watch", self._repair.watch_view())
        _ = self._tasks.spawn("repair", self._repair.run())

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()
        await self._dispatcher.close()
        await self._tasks.close()
        await self._peers.close()

    async def _refuse_foreign_repository(self) -> None:
        try:
            view = (await self._peers.ask_repository(GetView(), GetViewReply)).view
        except NotInCluster as error:
            raise StartupError(
                f"the metadata repository at {self.config.repository} refuses: {error}"
            ) from None
        except VarlogError:
            return
        if view.cluster != self.config.cluster:
            raise StartupError(
                f"the metadata repository at {self.config.repository} belongs to cluster {view.cluster}, "
                f"not to {self.config.cluster}: check the address and --cluster-id"
            )


def _task_failed(name: str, error: BaseException) -> None:
    log.error(logfmt("a task of the manager failed", task=name, error=repr(error)))
