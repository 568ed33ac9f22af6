"""MetadataRepository: the process that knows who exists and gives the order. Start and stop, and the end when its store fails."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from varlog.metarepo import state as states
from varlog.metarepo.commit_loop import CommitLoop
from varlog.metarepo.commit_rules import Cut
from varlog.metarepo.reports import ReportTable
from varlog.metarepo.service import RepositoryService
from varlog.metarepo.sessions import SessionParts, Sessions
from varlog.metarepo.state import RepositoryState
from varlog.metarepo.store.base import MetadataStore
from varlog.model.cluster import ClusterView
from varlog.model.errors import StartError
from varlog.model.ids import ClusterID
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.transport import Server, Transport
from varlog.runtime.doors import Doors
from varlog.runtime.logs import get_logger, told
from varlog.runtime.tasks import Tasks

_log = get_logger("metarepo")


@dataclass(frozen=True, slots=True)
class MetadataRepositoryConfig:
    """`advertise` "": others reach it where it listens. A node that cannot be reached is dialled every `node_retry_s`."""

    cluster: ClusterID
    listen: str
    advertise: str = ""
    node_retry_s: float = 0.2


class MetadataRepository:
    """One metadata repository over one store."""

    def __init__(
        self, config: MetadataRepositoryConfig, store: MetadataStore, doors: Doors, transport: Transport
    ) -> None:
        self._config = config
        self._store = store
        self._doors = doors
        self._transport = transport
        self._tasks = Tasks("metarepo", self._task_failed)
        self._dispatcher = Dispatcher("the metadata repository")
        self._server: Server | None = None
        self._service: RepositoryService | None = None
        self._sessions: Sessions | None = None
        self._state: RepositoryState | None = None
        self._committing: asyncio.Task[None] | None = None
        self._failure: asyncio.Future[BaseException] | None = None

    @property
    def address(self) -> str:
        """Where others reach it; known after the start."""
        if self._config.advertise:
            return self._config.advertise
        return self._server.address if self._server is not None else self._config.listen

    async def start(self) -> None:
        """Load, listen, open sessions. StartError says why not, and leaves nothing behind."""
        self._failure = asyncio.get_running_loop().create_future()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        opened = await self._store.open()
        state, first = states.load(opened.items, self._config.cluster, self._store.place)
        if first:
            await self._store.commit(first)
        self._state = state
        reports = ReportTable()
        commits = CommitLoop(state, reports, self._store, self._applied)
        parts = SessionParts(
            state,
            reports,
            self._doors,
            self._transport,
            opened.term,
            self._config.node_retry_s,
            commits.wake,
        )
        self._sessions = Sessions(parts, self._tasks)
        self._service = RepositoryService(state, commits, self._sessions)
        self._service.register(self._dispatcher)
        self._server = await self._transport.serve(self._config.listen, lambda _: self._dispatcher.handle)
        self._committing = self._tasks.spawn("commits", commits.run())
        self._sessions.follow_view()
        _log.info(
            told(
                "metadata repository started",
                address=self.address,
                store=self._store.place,
                term=opened.term,
                version=state.order.version,
                streams=len(state.streams),
            )
        )

    async def stop(self) -> None:
        """Clean end; what is durable stays, what was not answered is told so."""
        if self._service is not None:
            self._service.stop("the metadata repository is stopping")
        if self._server is not None:
            await self._server.close()
            self._server = None
        await self._tasks.close()
        await self._dispatcher.close()
        await self._store.close()

    async def wait_failed(self) -> BaseException:
        """Wait until the repository cannot go on (its store failed, a law broke); its process must end then."""
        if self._failure is None:
            raise StartError("the metadata repository was not started")
        return await asyncio.shield(self._failure)

    def _applied(self, cut: Cut | None, before: ClusterView) -> None:
        if self._sessions is None or self._service is None or self._state is None:
            return
        self._sessions.applied(cut, before)
        if self._state.view is not before:
            self._service.view_changed()

    def _task_failed(self, name: str, error: BaseException) -> None:
        """What is durable and what is in memory may differ now: no answer from here may be believed (law 10)."""
        _log.critical(told("the metadata repository has stopped", task=name, error=error), exc_info=error)
        if self._service is not None:
            self._service.stop(f"the metadata repository has stopped: {error}")
        if self._sessions is not None:
            self._sessions.end()
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(error)
