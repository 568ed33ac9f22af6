"""MetadataRepository: the process that owns membership and order, or a standby.

It listens, campaigns, leads for a term, and campaigns again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from varlog.metarepo.config import MetadataRepositoryConfig
from varlog.metarepo.leader_term import LeaderTerm
from varlog.metarepo.ordering.sessions import NodeSessions
from varlog.metarepo.store.base import MetadataStore
from varlog.model.cluster import ClusterView
from varlog.model.errors import NotLeader, StartupError, Unavailable
from varlog.rpc.messages import Message
from varlog.rpc.transport import Call, Server, Transport
from varlog.runtime.environment import Environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

# The pause between two terms, in which another waiting repository may take over.
CAMPAIGN_PAUSE_S: Final = 0.1

_log = get_logger("metarepo")


class MetadataRepository:
    """One metadata repository over one store. Several may share a store: one of them leads, the others redirect to it."""

    def __init__(
        self,
        config: MetadataRepositoryConfig,
        store: MetadataStore,
        environment: Environment,
        transport: Transport,
    ) -> None:
        self._config = config
        self._store = store
        self._environment = environment
        self._transport = transport
        self._tasks = Tasks("metarepo", self._task_failed)
        self._server: Server | None = None
        self._leader_term: LeaderTerm | None = None
        self._failure: asyncio.Future[BaseException] | None = None

    @property
    def address(self) -> str:
        """The address at which others reach it; known after the start."""
        if self._config.advertise:
            return self._config.advertise
        return self._server.address if self._server is not None else self._config.listen

    @property
    def leads(self) -> bool:
        return self._leader_term is not None and self._store.leads

    @property
    def sessions(self) -> NodeSessions | None:
        """The sessions of the current term; None while it does not lead."""
        return self._leader_term.sessions if self._leader_term is not None else None

    @property
    def view(self) -> ClusterView | None:
        """The view of the current term; None while it does not lead."""
        return self._leader_term.state.view if self._leader_term is not None else None

    async def start(self) -> None:
        """Listen, and lead if no other process shares the store; otherwise campaign in the background. Raises StartupError with
        the reason if that fails, and then leaves nothing behind."""
        self._failure = asyncio.get_running_loop().create_future()
        try:
            self._server = await self._transport.serve(self._config.listen, lambda _: self._handle)
            if not self._store.shared:
                await self._begin()
            _ = self._tasks.spawn("terms", self._run_terms())
        except BaseException:
            await self.stop()
            raise
        if self._store.shared:
            _log.info(logfmt("metadata repository listens", address=self.address, store=self._store.place))

    async def stop(self) -> None:
        """Shut down cleanly: durable state stays, unanswered requests get an error."""
        stopping = Unavailable("the metadata repository is stopping")
        if self._leader_term is not None:
            self._leader_term.silence(stopping)
        if self._server is not None:
            await self._server.close()
            self._server = None
        await self._tasks.close()
        leader_term, self._leader_term = self._leader_term, None
        if leader_term is not None:
            await leader_term.end(stopping)
        await self._store.close()

    async def wait_failed(self) -> BaseException:
        """Wait until the repository has failed (its own store failed, or a law was violated); its process must then exit."""
        if self._failure is None:
            raise StartupError("the metadata repository was not started")
        return await asyncio.shield(self._failure)

    def _handle(self, call: Call | None, message: Message, payload: bytearray) -> None:
        """Check the leadership for every request, by the clock: a process that was paused may have lost its lease without having
        noticed (law 7)."""
        if self._leader_term is None or not self._store.leads:
            raise NotLeader(self._store.leader)
        self._leader_term.handle(call, message, payload)

    async def _run_terms(self) -> None:
        """Run term after term. The store decides each time who leads; no state is carried over from one term to the next."""
        while True:
            if self._leader_term is None and not await self._campaign():
                await self._pause()
                continue
            if (leader_term := self._leader_term) is None:
                continue
            why = await leader_term.wait_over()
            if not self._store.shared or not isinstance(why, Unavailable):
                raise why  # its own store failed, or a law was violated: a restart may help
            self._leader_term = None
            await leader_term.end(NotLeader(self._store.leader))
            _log.warning(logfmt("the metadata repository no longer leads", term=leader_term.term, why=why))
            await self._store.close()
            await self._pause()

    async def _campaign(self) -> bool:
        """Campaign once. Returns True if it leads. A lease that ended during the campaign is no failure: the next try may
        succeed."""
        try:
            await self._begin()
        except Unavailable as error:
            _log.warning(logfmt("the metadata repository does not lead yet", why=error))
            await self._store.close()
            return False
        return True

    async def _begin(self) -> None:
        self._leader_term = leader_term = await LeaderTerm.begin(
            self._config, self._store, self._environment, self._transport, self.address
        )
        state = leader_term.state
        _log.info(
            logfmt(
                "metadata repository started",
                address=self.address,
                store=self._store.place,
                term=leader_term.term,
                version=state.order.version,
                streams=len(state.streams),
            )
        )

    async def _pause(self) -> None:
        await asyncio.sleep(CAMPAIGN_PAUSE_S * self._environment.entropy.uniform(0.5, 1.5))

    def _task_failed(self, name: str, error: BaseException) -> None:
        _log.critical(logfmt("the metadata repository has stopped", task=name, error=error), exc_info=error)
        if self._leader_term is not None:
            self._leader_term.silence(Unavailable(f"the metadata repository has stopped: {error}"))
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(error)
