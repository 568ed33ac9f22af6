"""SimNetwork: a Transport for each process. Delays, cuts, loss, refusals; order within a connection is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count

from varlog.model.errors import StartupError
from varlog.rpc.messages import Message
from varlog.rpc.transport import Connection, ConnectionLost, Handler
from varlog.testing.sim.connection import SimConnection, link
from varlog.testing.sim.damaged import damaged
from varlog.testing.sim.process import Process

# As TcpTransport has the kernel do it: a connection over which nothing is acknowledged for so long is over.
KEEP_ALIVE_S = 11.0


class SimNetwork:
    """All listeners and connections of a simulated world."""

    def __init__(self, rng: random.Random) -> None:
        self.messages = 0
        self.slow = 0.02  # share of messages that are held up
        self.far_share = 0.0  # share of pairs of hosts that are far from each other
        self.on_message: Callable[[SimConnection, Message], None] | None = None  # it is being sent
        self.on_arrival: Callable[[SimConnection, Message], None] | None = (
            None  # its receiver has acted on it
        )
        self.complaints: list[str] = []
        self._rng = rng
        self._servers: dict[str, SimServer] = {}
        self._connections: dict[SimConnection, None] = {}
        self._ports = count(40_000)
        # What does not arrive before when: from one host to another, "" for any.
        self._held_until: dict[tuple[str, str], float] = {}
        self._distances: dict[tuple[str, str], float] = {}
        # What every message between two hosts takes besides for a while: (until, seconds).
        self._slow_links: dict[tuple[str, str], tuple[float, float]] = {}
        self.spoil: Callable[[SimConnection, Message], bool] | None = (
            None  # whether a message arrives damaged
        )

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

    def keep_alive_delay(self) -> float:
        """How long a connection is believed in over which nothing comes any more: TCP asks, and gives up after about this."""
        return self._rng.uniform(KEEP_ALIVE_S / 4, KEEP_ALIVE_S)

    def cut_one(self) -> str:
        """Break a connection between two living processes; tells which, or ''."""
        victim = self._some_connection()
        if victim is None:
            return ""
        victim.snap()
        return f"{victim.process.name} - {victim.peer}"

    def _some_connection(self) -> SimConnection | None:
        alive = [end for end in self._connections if end.process.alive and not end.closed]
        return alive[self._rng.randrange(len(alive))] if alive else None

    def cut_off(self, host: str, other: str, until: float, *, one_way: bool = False) -> None:
        """Nothing passes between two hosts (other "": this one and all others) until then; what was sent arrives late.

        With `one_way` what `host` sends is held, and what it is sent still arrives.
        """
        self._held_until[host, other] = until
        if not one_way:
            self._held_until[other, host] = until

    def lose(self, host: str, other: str, until: float, *, one_way: bool = False) -> int:
        """As cut_off, but what was sent is lost: every connection between them is dead, and is believed in for a while.
        Returns how many there were."""
        self.cut_off(host, other, until, one_way=one_way)
        doomed = [
            end
            for end in self._connections
            if not end.closed and end.process.host == host and other in ("", end.other.process.host)
        ]
        for end in doomed:
            end.lose(both_ways=not one_way)
        return len(doomed)

    def lose_one(self) -> str:
        """A connection between two living processes swallows everything from now on; tells which, or ''."""
        victim = self._some_connection()
        if victim is None:
            return ""
        victim.lose(both_ways=self.chance(0.5))
        return f"{victim.process.name} - {victim.peer}"

    def held_until(self, sender: str, receiver: str) -> float:
        """When what one host sends another now can arrive at the earliest."""
        held = self._held_until
        if not held or sender == receiver:
            return 0.0
        return max(
            held.get((sender, receiver), 0.0), held.get((sender, ""), 0.0), held.get(("", receiver), 0.0)
        )

    def distance(self, one: str, two: str) -> float:
        """What every message between these two hosts takes besides. Most are near each other, some are far, all run long."""
        pair = min(one, two), max(one, two)
        found = self._distances.get(pair)
        if found is None:
            far = self._rng.random() < self.far_share
            found = self._distances[pair] = self._rng.choice((0.005, 0.05, 0.15)) if far else 0.0
        if self._slow_links and (slow := self._slow_links.get(pair)) is not None:
            if asyncio.get_running_loop().time() < slow[0]:
                return found + slow[1]
            del self._slow_links[pair]
        return found

    def damaged(self, message: Message) -> Message:
        """What a message is like after one of its numbers changed on the way."""
        return damaged(message, self._rng)

    def slow_link(self, one: str, two: str, until: float, extra_s: float) -> None:
        """Every message between two hosts takes so much longer until then."""
        self._slow_links[min(one, two), max(one, two)] = until, extra_s

    def reunite(self) -> None:
        """Nobody is cut off any more, and everyone is near."""
        self._held_until.clear()
        self._distances.clear()
        self._slow_links.clear()
        self.far_share = 0.0

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
    """What one process is handed as its Transport. A damaged message closes its connection, and is not counted."""

    corrupt_frames = 0

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
        here, there = self._process.host, address.rpartition(":")[0]
        # A handshake needs both ways.
        held_until = max(network.held_until(here, there), network.held_until(there, here))
        held = held_until - asyncio.get_running_loop().time()
        await asyncio.sleep(max(network.latency() + network.distance(here, there), held))
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
            raise StartupError(
                f"cannot listen at {address}: another process listens there. Stop it, or choose another address"
            )
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
