"""[Q3] Sequencer: the process that issues the next positions (R-SEQ-1)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from varlog.model.epoch import Epoch
from varlog.model.errors import InvalidRequest, NoLease, NotSequencing, StartupError, Unavailable, VarlogError
from varlog.model.ids import ClusterID, TopicID
from varlog.model.projection import SequencerID
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.leader import LeaderClient
from varlog.rpc.messages import (
    GetSequencer,
    GetSequencerReply,
    GetView,
    GetViewReply,
    NextTokens,
    NextTokensReply,
)
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import Call, Server, Transport
from varlog.runtime.environment import Environment
from varlog.runtime.fair_places import FairPlaces
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks
from varlog.sequencer.in_flight import TokensInFlight
from varlog.sequencer.lease import SequencerLease
from varlog.sequencer.token_machine import GrantedTokens, TokenMachine, UnknownEpoch

VIEW_TIMEOUT_S: Final = 1.0
WAITING_MAX: Final = 10_000

_log = get_logger("sequencer")


class Sequencer:
    """One start of a sequencer: nothing of it is durable, and the next start is another one (R-SEQ-2)."""

    def __init__(self, config: SequencerConfig, environment: Environment, transport: Transport) -> None:
        self._config = config
        self._environment = environment
        self._transport = transport
        self._pool = ConnectionPool(transport, owner="sequencer")
        self._leader = LeaderClient(self._pool, config.repository)
        self._dispatcher = Dispatcher("the sequencer")
        self._tasks = Tasks("sequencer", self._task_failed)
        self._server: Server | None = None
        self._waiting: FairPlaces[Call, tuple[Call, NextTokens]] = FairPlaces()
        self._waiting_soon = asyncio.Event()
        self._in_flight: dict[TopicID, TokensInFlight] = {}
        # Known after the start.
        self._loop: asyncio.AbstractEventLoop
        self._machine: TokenMachine
        self._lease: SequencerLease
        self._failure: asyncio.Future[BaseException] | None = None

    @property
    def address(self) -> str:
        """Where others reach it; known after the start."""
        if self._config.advertise:
            return self._config.advertise
        return self._server.address if self._server is not None else self._config.listen

    @property
    def me(self) -> SequencerID:
        return self._machine.me

    @property
    def leased(self) -> bool:
        return self._lease.holds

    async def start(self) -> None:
        """Listen, and ask for a lease in the background. StartupError says why not, and leaves nothing behind."""
        self._loop = asyncio.get_running_loop()
        self._failure = self._loop.create_future()
        try:
            self._server = await self._transport.serve(self._config.listen, lambda _: self._dispatcher.handle)
            me = SequencerID(self.address, self._incarnation())
            self._machine = TokenMachine(me)
            self._lease = SequencerLease(
                me, self._leader, self._environment.clock, on_epochs=self._apply_epochs, drop=self._pool.drop
            )
            self._dispatcher.on(GetSequencer, self._get_sequencer)
            self._dispatcher.on(NextTokens, self._next_tokens)
            _ = self._tasks.spawn("lease", self._lease.keep())
            _ = self._tasks.spawn("view", self._refresh_forever())
        except BaseException:
            await self.stop()
            raise
        _log.info(logfmt("sequencer started", address=self.address, incarnation=me.incarnation))

    async def stop(self) -> None:
        """What it counted is forgotten: the next start is another sequencer."""
        if self._server is not None:
            await self._server.close()
            self._server = None
        await self._tasks.close()
        await self._dispatcher.close()
        await self._pool.close()

    async def wait_leased(self) -> None:
        """Until the repository knows this sequencer."""
        await self._lease.wait_granted()

    async def wait_failed(self) -> BaseException:
        """Wait until it has failed; its process must end then."""
        if self._failure is None:
            raise StartupError("the sequencer was not started")
        return await asyncio.shield(self._failure)

    def _incarnation(self) -> int:
        """Different at every start: the time of day, and random bits in case that stops or goes back."""
        return self._environment.clock.wall_us() * 1024 + self._environment.entropy.randrange(1024)

    # --- requests ----------------------------------------------------------------------------------------------------------

    def _get_sequencer(self, call: Call | None, request: GetSequencer, payload: bytearray) -> None:
        _expected(call).reply(GetSequencerReply(self.me, self.leased))

    def _next_tokens(self, call: Call | None, request: NextTokens, payload: bytearray) -> None:
        call = _expected(call)
        if request.written or request.given_up:
            self._ended(request)
        try:
            self._grant(call, request)
        except UnknownEpoch:
            self._wait(call, request)

    def _wait(self, call: Call, request: NextTokens) -> None:
        """Wait for the next view. Each connection has its share of the waiting places."""
        left = self._waiting.make_room(call.connection, WAITING_MAX)
        if left is None:
            raise _too_many()
        for other, _ in left:
            other.fail(_too_many())
        self._waiting.put(call, call.connection, (call, request))
        self._waiting_soon.set()

    def _grant(self, call: Call, request: NextTokens) -> None:
        if not self._lease.holds:
            raise NoLease(f"the sequencer at {self.address}")
        if request.within_ms and request.count > 0:
            first, skipped = self._grant_in_time(request)
        else:
            first, skipped = self._machine.grant(request.topic, request.epoch, request.count)
        call.reply(NextTokensReply(first, skipped))

    def _ended(self, request: NextTokens) -> None:
        in_flight = self._in_flight.get(request.topic)
        if in_flight is not None:
            for first, took_us in request.written:
                in_flight.written(first, took_us / 1e6)
            if request.given_up:
                in_flight.given_up(request.given_up)

    def _grant_in_time(self, request: NextTokens) -> GrantedTokens:
        """Overloaded: the batch would be written too late, behind those that are in flight."""
        now, within_s = self._loop.time(), request.within_ms / 1000
        in_flight = self._in_flight.get(request.topic)
        if in_flight is not None:
            in_flight.check(within_s, now)
        given = self._machine.grant(request.topic, request.epoch, request.count)
        if in_flight is None:
            # Made for a topic that exists: a request for another was refused just now.
            in_flight = self._in_flight[request.topic] = TokensInFlight()
        in_flight.given(given.first, within_s, now)
        return given

    def _apply_epochs(self, epochs: Iterable[tuple[TopicID, Epoch]]) -> None:
        if not self._machine.apply_epochs(epochs):
            self._waiting_soon.set()

    # --- the view ----------------------------------------------------------------------------------------------------------

    async def _refresh_forever(self) -> None:
        """Fetch the view, once for all requests that wait. A request that comes meanwhile may know of more, and waits
        for the next."""
        while True:
            await self._waiting_soon.wait()
            self._waiting_soon.clear()
            waiting, self._waiting = self._waiting, FairPlaces()
            try:
                answer = await self._leader.call(GetView(), timeout_s=VIEW_TIMEOUT_S)
                if isinstance(answer, GetViewReply):
                    self._leader.learn(answer.view.repositories)
                    self._machine.apply_view(answer.view)
            except VarlogError as error:
                for call, _ in waiting.values():
                    call.fail(Unavailable(f"the sequencer cannot ask the metadata repository: {error}"))
                continue
            for call, request in waiting.values():
                self._answer_late(call, request)

    def _answer_late(self, call: Call, request: NextTokens) -> None:
        try:
            self._grant(call, request)
        except UnknownEpoch as error:
            call.fail(NotSequencing(error.topic, error.asked, error.here))
        except VarlogError as error:
            call.fail(error)

    def _task_failed(self, name: str, error: BaseException) -> None:
        _log.critical(logfmt("the sequencer has stopped", task=name, error=error), exc_info=error)
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(error)


def _too_many() -> Unavailable:
    return Unavailable("too many wait for this sequencer to learn of an epoch: try again")


def _expected(call: Call | None) -> Call:
    if call is None:
        raise InvalidRequest("the sequencer takes requests, and no one-way messages")
    return call


@dataclass(frozen=True, slots=True)
class SequencerConfig:
    """`repository`: where the metadata repository listens, or several of them. `advertise` "": others reach it where it
    listens."""

    cluster: ClusterID
    repository: str
    listen: str
    advertise: str = ""
