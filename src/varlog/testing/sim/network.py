"""SimNetwork: a Transport for each process. Delays, broken connections, refusals; order within a connection is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count

from varlog.model.errors import StartError
from varlog.rpc.messages import Message
from varlog.rpc.transport import Connection, ConnectionLost, Handler
from varlog.testing.sim.connection import SimConnection, link
from varlog.testing.sim.process import Process


class SimNetwork:
    """All listeners and connections of a simulated world."""

    def __init__(self, rng: random.Random) -> None:
        self.messages = 0
        self.slow = 0.02  # share of messages that are held up
        self.on_message: Callable[[SimConnection, Message], None] | None = None
        self.complaints: list[str] = []
        self._rng = rng
        self._servers: dict[str, SimServer] = {}
        self._connections: dict[SimConnection, None] = {}
        self._ports = count(40_000)
        self._held_until: dict[str, float] = {}  # hosts that are cut off, and until when

    def transport(self, process: Process) -> SimTransport:
        """The network as `process` sees it; when it dies, its connections break."""
        process.on_death(lambda: self._died(process))
        return SimTransport(self, process)

    def latency(self) -> float:
        rng = self._rng
        if rng.random() < self.slow:
            return rng.uniform(0.005, 0.1)
        return rng.uniform(0.00005, 0.0006)

    def chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def kept(self, in_flight: int) -> int:
        """How many of the frames under way still arrive when their connection breaks."""
        return self._rng.randint(0, in_flight)

    def notice_delay(self) -> float:
        """How long the other side of a dead connection believes in it."""
        rng = self._rng
        return rng.uniform(0.0001, 0.01) if rng.random() < 0.8 else rng.uniform(0.1, 1.5)

    def cut_one(self) -> str:
        """Break a connection between two living processes; tells which, or ''."""
        alive = [link for link in self._connections if link.process.alive and not link.closed]
        if not alive:
            return ""
        victim = alive[self._rng.randrange(len(alive))]
        victim.snap()
        return f"{victim.process.name} - {victim.peer}"

    def cut_off(self, host: str, until: float) -> None:
        """Nothing reaches or leaves this host until then; what was sent meanwhile arrives late."""
        self._held_until[host] = until

    def held_until(self, one: str, two: str) -> float:
        """When what is sent between two hosts now can arrive at the earliest."""
        if not self._held_until or one == two:
            return 0.0
        return max(self._held_until.get(one, 0.0), self._held_until.get(two, 0.0))

    def reunite(self) -> None:
        """Nobody is cut off any more."""
        self._held_until.clear()

    def _died(self, process: Process) -> None:
        for address in [at for at, server in self._servers.items() if server.process is process]:
            del self._servers[address]
        for connection in [one for one in self._connections if one.process is process]:
            connection.die()

    # --- for connections and servers -------------------------------------------------------------------------------

    def listen(self, server: SimServer) -> None:
        self._servers[server.address] = server

    def unlisten(self, server: SimServer) -> None:
        if self._servers.get(server.address) is server:
            del self._servers[server.address]

    def listener(self, address: str) -> SimServer | None:
        server = self._servers.get(address)
        return server if server is not None and server.process.alive else None

    def free_address(self, address: str) -> str:
        host, _, port = address.rpartition(":")
        return f"{host}:{next(self._ports)}" if port == "0" else address

    def add(self, connection: SimConnection) -> None:
        self._connections[connection] = None

    def discard(self, connection: SimConnection) -> None:
        self._connections.pop(connection, None)


class SimTransport:
    """What one process is handed as its Transport."""

    def __init__(self, network: SimNetwork, process: Process) -> None:
        self._network = network
        self._process = process

    async def connect(self, address: str, *, handler: Handler | None = None, timeout_s: float) -> Connection:
        self._process.check()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._connect(address, handler)
        except TimeoutError:
            raise ConnectionLost(f"no answer from {address} within {timeout_s} s", False) from None

    async def _connect(self, address: str, handler: Handler | None) -> SimConnection:
        network = self._network
        held = network.held_until(self._process.host, address.rpartition(":")[0])
        await asyncio.sleep(max(network.latency(), held - asyncio.get_running_loop().time()))
        server = network.listener(address)
        if server is None:
            if network.chance(0.1):  # a machine that is switched off refuses nothing: it is silent
                await asyncio.sleep(3600)
            await asyncio.sleep(network.latency())
            raise ConnectionLost(f"nobody listens at {address}", False)
        ours, theirs = link(network, self._process, server.process, address)
        if handler is not None:
            ours.serve_with(handler)
        server.accept(theirs)
        await asyncio.sleep(network.latency())
        if ours.closed:
            raise ConnectionLost(f"{address} closed the connection at once", False)
        return ours

    async def serve(self, address: str, make_handler: Callable[[Connection], Handler]) -> SimServer:
        self._process.check()
        address = self._network.free_address(address)
        if self._network.listener(address) is not None:
            raise StartError(f"cannot listen at {address}: another process listens there")
        server = SimServer(self._network, self._process, address, make_handler)
        self._network.listen(server)
        return server


class SimServer:
    """A listening address of one process."""

    def __init__(
        self,
        network: SimNetwork,
        process: Process,
        address: str,
        make_handler: Callable[[Connection], Handler],
    ) -> None:
        self.process = process
        self._network = network
        self._address = address
        self._make_handler = make_handler
        self._connections: dict[SimConnection, None] = {}

    @property
    def address(self) -> str:
        return self._address

    def accept(self, connection: SimConnection) -> None:
        """Make the handler in the server's own process, before the first frame can arrive."""
        self._connections[connection] = None
        connection.on_close(lambda: self._connections.pop(connection, None))
        self.process.context.run(connection.serve_with_made, self._make_handler)

    async def close(self) -> None:
        self._network.unlisten(self)
        for connection in list(self._connections):
            connection.close()
