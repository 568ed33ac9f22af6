"""SimNetwork: a Transport per process, with delays, cuts, loss and damage."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from varlog.model.batch import Buffer
from varlog.model.errors import StartupError
from varlog.model.limits import CONNECTION_WRITE_BYTES_MAX
from varlog.rpc.codec import decode, encode, number_of
from varlog.rpc.endpoint import Endpoint
from varlog.rpc.framing import HEADER_BYTES, REPLY, REQUEST, FrameReader, MalformedFrame, frame_head
from varlog.rpc.messages import Message
from varlog.rpc.transport import Connection, ConnectionLost, Handler
from varlog.testing.sim.core.loop import Process

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
        """How many of the frames in flight still arrive when their connection breaks."""
        return self._rng.randint(0, in_flight)

    def notice_delay(self) -> float:
        """How long the other side of a dead connection believes in it."""
        rng = self._rng
        return rng.uniform(0.0001, 0.01) if rng.random() < 0.8 else rng.uniform(0.1, 1.5)

    def keep_alive_delay(self) -> float:
        """How long a connection is believed in over which nothing comes any more: TCP asks, and gives up after about this."""
        return self._rng.uniform(KEEP_ALIVE_S / 4, KEEP_ALIVE_S)

    def cut_one(self) -> str:
        """Break a connection between two living processes; returns which, or ''."""
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
        """A connection between two living processes drops everything from now on; returns which, or ''."""
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
        ours, theirs = link_connections(network, self._process, server.process, address)
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


# SimConnection: one end of a connection. What it sends is encoded, copied, held up, and arrives in order or never.


@dataclass(slots=True)
class SimFrame:
    """One message in flight."""

    kind: int
    request: int
    number: int
    meta: bytes
    payload: bytes
    source: Buffer  # what the sender handed over: it must not write to it any more
    corrupt: bool = False  # it was damaged in transit

    def is_believed(self, meta: bytes) -> bool:
        """Whether the reader of frames takes it if its message has become `meta` on its way, and its checksum is as it was."""
        if meta == self.meta:
            return False  # the damage is elsewhere
        facts = self.kind, self.number, self.request, 0
        signed = HEADER_BYTES - 4
        crc = frame_head(*facts, self.meta, self.payload)[signed:HEADER_BYTES]
        wire = frame_head(*facts, meta, self.payload)[:signed] + crc + meta + self.payload
        taken: list[int] = []
        try:
            FrameReader(memoryview(bytearray(wire)), lambda kind, *_: taken.append(kind)).received(len(wire))
        except MalformedFrame:
            return False
        return bool(taken)


class SimConnection(Endpoint):
    """One end; calls, answers and back-pressure are the production code of Endpoint. Its callbacks run in its process."""

    def __init__(self, network: SimNetwork, process: Process, peer: str, *, accepting: bool) -> None:
        super().__init__(asyncio.get_running_loop(), accepting=accepting)
        self.process = process
        self.other: SimConnection
        self._peer = peer
        self._network = network
        self._arrives_at = 0.0
        self._inbox: deque[SimFrame | None] = (
            deque()
        )  # in flight to this end; None is the end of the connection
        self._inbox_bytes = 0
        self._late = 0  # frames whose time came while reading was paused
        self._over = False  # broken, though nobody here has noticed yet
        self._deaf = False  # nothing reaches this end any more, though both may believe in the connection
        self._not_before = 0.0  # what is in flight to this end arrives no earlier
        self.posted = 0  # the request that the newest message from this end is, or answers
        network.add(self)

    @property
    def accepting(self) -> bool:
        """Whether the other end dialled."""
        return self._accepting

    # --- Endpoint -----------------------------------------------------------------------------------------------

    def _post(self, kind: int, message: Message, payload: Buffer, request: int) -> None:
        self.process.check()
        network, other = self._network, self.other
        number, meta = number_of[type(message)], encode(message)
        frame_head(kind, number, request, 0, meta, payload)  # refuses what no wire would take
        network.messages += 1
        self.posted = request
        if network.on_message is not None:
            network.on_message(self, message)
            self.process.check()
        if other._closed or self._over:
            return  # lost
        if other._deaf:
            other._inbox_bytes += len(payload)  # never acknowledged, so it stays in the sender's buffer
        else:
            frame = SimFrame(kind, request, number, meta, bytes(payload), payload)
            frame.corrupt = network.spoil is not None and network.spoil(self, message)
            other._put(frame)
        if other._inbox_bytes > CONNECTION_WRITE_BYTES_MAX and not self._writes_backed_up:
            self._set_writes_backed_up(True)

    def _set_reading(self, reading: bool) -> None:
        if reading:
            late, self._late = self._late, 0
            for _ in range(late):
                self._schedule(0.0)

    def _disconnect(self) -> None:
        self._network.discard(self)
        self._inbox.clear()
        if not self.other._closed and not self.other._deaf:
            self.other._ends_after(self._network.latency())

    # --- how connections end otherwise ----------------------------------------------------------------------------

    def die(self) -> None:
        """This end's process is dead: the other end gets some of what was sent, and notices after a while."""
        self._closed = True
        self._network.discard(self)
        if not self.other._closed and not self.other._deaf:
            self.other._lose_some()
            self.other._ends_after(self._network.notice_delay())

    def snap(self) -> None:
        """The network breaks the connection: both ends lose some of what is in flight, and notice when they do."""
        for end in (self, self.other):
            if not end._closed:
                end._over = True
                end._lose_some()
                end._ends_after(self._network.notice_delay())

    def lose(self, *, both_ways: bool) -> None:
        """What this end sends from now on never arrives (both ways: nor what it is sent). Both ends learn of it late: without
        an acknowledgement the network gives the connection up at last, and then they may be of two minds for a while."""
        for end in (self.other, self) if both_ways else (self.other,):
            end._deaf = True
            end._inbox.clear()
        for end in (self, self.other):
            delay = self._network.keep_alive_delay()
            self._loop.call_later(delay, end._give_up, context=end.process.context)

    def _give_up(self) -> None:
        if not self._closed:
            self._network.discard(self)
            self._inbox.clear()
            self._end("nothing comes from the other side any more")

    def straggle(self, late_s: float) -> None:
        """The connection breaks: this end, which dialled, notices at once; what it has sent lies unread at the other, and is
        taken late."""
        dialling, accepting = self, self.other
        if dialling._closed or accepting._closed or accepting._deaf:
            return
        accepting._not_before = self._loop.time() + late_s
        accepting._over = dialling._over = True
        accepting._ends_after(late_s)
        dialling._give_up()

    def _lose_some(self) -> None:
        for _ in range(len(self._inbox) - self._network.kept(len(self._inbox))):
            frame = self._inbox.pop()
            if frame is not None:
                self._inbox_bytes -= len(frame.payload)

    def _ends_after(self, delay: float) -> None:
        self._inbox.append(None)
        self._schedule(delay)

    # --- what arrives ---------------------------------------------------------------------------------------------

    def _put(self, frame: SimFrame) -> None:
        self._inbox.append(frame)
        self._inbox_bytes += len(frame.payload)
        self._schedule(self._network.latency())

    def _schedule(self, delay: float) -> None:
        here, there = self.process.host, self.other.process.host
        held = self._network.held_until(there, here)
        delay += self._network.distance(here, there)
        self._arrives_at = max(self._arrives_at, self._loop.time() + delay, held)
        self._loop.call_at(self._arrives_at, self._arrive, context=self.process.context)

    def _arrive(self) -> None:
        if self._closed or not self._inbox:
            return
        if self._reading_paused:
            self._late += 1
            return
        if self._not_before > self._loop.time():
            self._loop.call_at(self._not_before, self._arrive, context=self.process.context)
            return
        frame = self._inbox.popleft()
        if frame is None:
            self._network.discard(self)
            self._end("the other side is gone")
            return
        self._inbox_bytes -= len(frame.payload)
        if self.other._writes_backed_up and self._inbox_bytes <= CONNECTION_WRITE_BYTES_MAX // 2:
            self.other._set_writes_backed_up(False)
        if frame.source != frame.payload:
            self._network.complaints.append(
                f"{self._peer} wrote to a payload after sending it to {self.process.name}"
            )
        message = decode(frame.number, frame.meta)
        if frame.corrupt:
            message = self._network.damaged(message)
            # The checksum of the frame shows it: nothing of it is believed, and nothing behind it can be found.
            if not frame.is_believed(encode(message)):
                self._break_off("a frame arrived damaged")
                return
        self._take(frame, message)
        if self._network.on_arrival is not None:
            self._network.on_arrival(self, message)

    def _break_off(self, why: str) -> None:
        self._network.discard(self)
        self._inbox.clear()
        if not self.other._closed and not self.other._deaf:
            self.other._ends_after(self._network.latency())
        self._end(why)

    def _take(self, frame: SimFrame, message: Message) -> None:
        payload = bytearray(frame.payload)
        if frame.kind == REQUEST:
            self._take_request(frame.request, message, payload)
        elif frame.kind == REPLY:
            self._take_reply(frame.request, message, payload)
        else:
            self._take_oneway(message, payload)


def link_connections(
    network: SimNetwork, one: Process, two: Process, address: str
) -> tuple[SimConnection, SimConnection]:
    """The two ends of a new connection from process `one` to process `two`."""
    ours = SimConnection(network, one, address, accepting=False)
    theirs = SimConnection(network, two, one.name, accepting=True)
    ours.other, theirs.other = theirs, ours
    return ours, theirs


# Damaged messages: one number changes on the way, and nothing checks it.

# A path to a number in a message: names of fields and places in tuples.
Steps = tuple[str | int, ...]


def damaged(message: Message, rng: random.Random) -> Message:
    """The message with one of its numbers changed; as it was where it has none, or the other value would be refused."""
    places = list(_numbers(message, ()))
    if not places:
        return message
    steps, value = places[rng.randrange(len(places))]
    other = value + 1 if value <= 0 or rng.random() < 0.5 else value - 1
    try:
        changed: Message = _replace(message, steps, other)
    except (ValueError, TypeError, msgspec.ValidationError):
        return message
    return changed


def _numbers(value: Any, steps: Steps) -> list[tuple[Steps, int]]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [(steps, value)]
    found: list[tuple[Steps, int]] = []
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            found += _numbers(getattr(value, name), (*steps, name))
    elif isinstance(value, tuple | list):
        for at, one in enumerate(value):
            found += _numbers(one, (*steps, at))
    return found


def _replace(value: Any, steps: Steps, number: int) -> Any:
    if not steps:
        return type(value)(number)
    first, *rest = steps
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value, **{str(first): _replace(getattr(value, str(first)), tuple(rest), number)}
        )
    parts = list(value)
    parts[int(first)] = _replace(parts[int(first)], tuple(rest), number)
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
