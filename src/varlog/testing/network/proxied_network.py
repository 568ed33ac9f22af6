"""ProxiedNetwork: a cuttable network made of one proxy per server.

The kernel's list of connections shows which process connects, so the addresses are the same for all. It differs from a cut cable in
what kernels do by themselves: nobody's keepalive or retransmission ends a connection here, so a cut is `Loss` and nothing between.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.ports import HOST, free_ports
from varlog.localcluster.process import ServerProcess
from varlog.model.limits import KIB
from varlog.rpc.tcp import split_address
from varlog.testing.network.cuttable_network import CLIENTS, OUTSIDE, CutWays, Loss, server_places


class ProxiedNetwork:
    """`pids` are those of the servers, by place; another process that we have started is a client."""

    def __init__(
        self, plan: ProxiedPlan, pids: Callable[[], Mapping[str, int]], *, loss: Loss = Loss.HELD
    ) -> None:
        self._pids = pids
        self._loss = loss
        self._ways = CutWays()
        self._proxies = [
            CuttingProxy(place, plan.front(place), plan.behind(place), self._ways, self._place_of)
            for place in plan.places
        ]

    def cut(self, source: str, target: str) -> None:
        """What `source` sends to `target` does not arrive from now on; the other direction works."""
        self._ways.cut(source, target, self._loss)
        if self._loss is Loss.BROKEN:
            for proxy in self._proxies:
                proxy.reset_between(source, target)

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        # First, or what was held would follow a gap.
        for proxy in self._proxies:
            proxy.reset_gaps()
        self._ways.heal()

    async def __aenter__(self) -> Self:
        try:
            for proxy in self._proxies:
                await proxy.start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for proxy in self._proxies:
            await proxy.stop()

    async def _place_of(self, near: Address, far: Address) -> str | None:
        pid = await asyncio.to_thread(dialling_process, near, far)
        if pid is None:
            return None
        if pid == os.getpid():
            return OUTSIDE
        return {pid: place for place, pid in self._pids().items()}.get(pid, CLIENTS)


# ProxiedPlan: a cluster on this machine whose processes reach each other, and are reached, through proxies alone.


@dataclass(frozen=True)
class ProxiedPlan(ClusterPlan):
    """`ports`, where the processes listen, are known to the proxies alone; `fronts`, in the same order, are advertised. The
    sequencer's come last."""

    fronts: tuple[int, ...] = ()

    @property
    def repositories(self) -> tuple[str, ...]:
        return (self.front("vmr"),)

    @property
    def manager(self) -> str:
        return self.front("vmc")

    @property
    def node_addresses(self) -> tuple[str, ...]:
        return tuple(map(self.front, self.places[2:-1]))

    @property
    def sequencer(self) -> str:
        return self.front("vseq")

    @property
    def places(self) -> list[str]:
        return server_places(self.nodes)

    def front(self, place: str) -> str:
        return f"{HOST}:{self.fronts[self.places.index(place)]}"

    def behind(self, place: str) -> str:
        return f"{HOST}:{(*self.ports, self.sequencer_port)[self.places.index(place)]}"

    def _process(self, name: str, *arguments: str) -> ServerProcess:
        front = self.front(name)
        listen = (f"--listen={self.behind(name)}", f"--advertise={front}")
        others = [argument for argument in arguments if argument != f"--listen={front}"]
        return super()._process(name, *others, *listen)


def proxied_plan(directory: Path, *, nodes: int, replicas: int, streams: int = 2) -> ProxiedPlan:
    ports = free_ports(2 * (nodes + 3))
    return ProxiedPlan(
        directory,
        ports[: nodes + 2],
        replicas=replicas,
        streams=streams,
        heartbeat_s=0.1,
        fronts=ports[nodes + 3 :],
        sequencer_port=ports[nodes + 2],
    )


# DiallingProcess: which process of ours has opened a connection, found by the two ends of it as the kernel lists them.

_TABLE = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _INODE = 1, 2, 9


def dialling_process(near: tuple[str, int], far: tuple[str, int]) -> int | None:
    """The id of the one that has `near` as its own end and `far` as the other: a process that this one has started, or
    this one itself. None if there is none: it is gone.

    The table of connections is read once: for each process by itself it took so long on a busy machine that clients gave up first.
    """
    inode = _inode_of(_listed(near), _listed(far))
    if inode is None:
        return None
    own = psutil.Process()
    for process in [*own.children(recursive=True), own]:
        if _has(process.pid, f"socket:[{inode}]"):
            return process.pid
    return None


def _listed(end: tuple[str, int]) -> str:
    """As the table has it: the address in the byte order of this machine."""
    (address,) = struct.unpack("=I", socket.inet_aton(end[0]))
    return f"{address:08X}:{end[1]:04X}"


def _inode_of(near: str, far: str) -> str | None:
    for line in _TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[_LOCAL] == near and fields[_REMOTE] == far:
            return fields[_INODE]
    return None


def _has(pid: int, target: str) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return False  # it has just ended
    for name in names:
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"{directory}/{name}") == target:
                return True
    return False


# CuttingProxy: a TCP proxy for one server; each direction can be cut.
#
# It forwards bytes without parsing them. A process that connects while its link is cut is connected and receives nothing: a proxy
# cannot refuse to open a connection as a lost packet does.

Address = tuple[str, int]
# The place of the process at this end of a connection to that one; None: it is gone, or unknown.
Who = Callable[[Address, Address], Awaitable[str | None]]


class CuttingProxy:
    """Listens at `front` for the server of `place`, which listens at `behind`."""

    def __init__(self, place: str, front: str, behind: str, ways: CutWays, who: Who) -> None:
        self.place = place
        self._front = split_address(front)
        self._behind = split_address(behind)
        self._ways = ways
        self._who = who
        self._server: asyncio.Server | None = None
        # Kept to the end: a bug of ours must not die unseen.
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._carried: dict[CarriedConnection, None] = {}

    async def start(self) -> None:
        host, port = self._front
        self._server = await asyncio.start_server(self._accept, host, port, limit=READ_BYTES_MAX)

    async def stop(self) -> None:
        """Every connection is reset. What went wrong in here is raised now."""
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for writer in self._tasks.values():
            writer.transport.abort()  # a task that had not begun did not do it
        await self._server.wait_closed()
        for task in self._tasks:
            if not task.cancelled():
                task.result()

    @property
    def address(self) -> Address:
        """Where it listens, once it does."""
        if self._server is None:
            return self._front
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def reset_between(self, one: str, other: str) -> None:
        """What is open between the two is broken."""
        for connection in [found for found in self._carried if found.joins(one, other)]:
            connection.reset()

    def reset_gaps(self) -> None:
        """A connection that has lost bytes can never continue."""
        for connection in [found for found in self._carried if found.has_gap]:
            connection.reset()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = self._serve(reader, writer)
        task = asyncio.get_running_loop().create_task(serving, name=f"to {self.place}")
        self._tasks[task] = writer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        near = End("nobody", reader, writer)
        try:
            place = await self._who(peer, self.address) if peer else None
            if place is not None:
                near = End(place, reader, writer)
                await self._carry(near)
        finally:
            near.reset()

    async def _carry(self, near: End) -> None:
        # Its first packet is lost as well.
        await self._ways.wait_open(near.place, self.place)
        try:
            behind = await asyncio.open_connection(*self._behind, limit=READ_BYTES_MAX)
        except OSError:
            return  # nobody listens there: it is being restarted
        connection = CarriedConnection(near, End(self.place, *behind), self._ways)
        self._carried[connection] = None
        try:
            await connection.carry()
        finally:
            del self._carried[connection]


# CarriedConnection: one connection through a proxy: what goes each way, what is held or swallowed, and how it ends.

READ_BYTES_MAX = 256 * KIB
# Close without waiting: the other side gets a reset, not an end.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class End:
    """One of the two ends of a connection; `place` is where its process is."""

    place: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def reset(self) -> None:
        """Now, and once only: what was not sent yet is gone."""
        if not self.writer.is_closing():
            wire = self.writer.get_extra_info("socket")
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()

    async def wait_closed(self) -> None:
        """Until everything has gone out."""
        self.writer.close()
        with suppress(OSError):  # it may be gone
            await self.writer.wait_closed()


class CarriedConnection:
    """`near` has connected, `far` is the server. An end or a reset is sent as bytes are: only when its way is open."""

    def __init__(self, near: End, far: End, ways: CutWays) -> None:
        self.near = near
        self.far = far
        self.has_gap = False
        self._ways = ways

    def joins(self, one: str, other: str) -> bool:
        return {self.near.place, self.far.place} == {one, other}

    def reset(self) -> None:
        """For both, now."""
        self.near.reset()
        self.far.reset()

    async def carry(self) -> None:
        """Until both sides have ended it, or one has broken it. Cancelled: it is reset for both."""
        try:
            async with asyncio.TaskGroup() as group:
                for source, target in ((self.near, self.far), (self.far, self.near)):
                    name = f"carry {source.place} > {target.place}"
                    group.create_task(self._carry(source, target), name=name)
            await self.near.wait_closed()
            await self.far.wait_closed()
        finally:
            self.reset()

    async def _carry(self, source: End, target: End) -> None:
        way = source.place, target.place
        broken = False
        try:
            while data := await source.reader.read(READ_BYTES_MAX):
                if self._ways.swallows(*way):
                    self.has_gap = True
                    continue
                await self._ways.wait_open(*way)
                await _send(target, data)
        except OSError:
            broken = True
        # That it is over is sent like everything else.
        await self._ways.wait_open(*way)
        if broken:
            self.reset()
        elif not target.writer.is_closing():
            with suppress(OSError):  # it was reset a moment ago: the other direction reports it
                target.writer.write_eof()


async def _send(target: End, data: bytes) -> None:
    """To a closed end, nothing: the other direction reports it, if that one is open."""
    if target.writer.is_closing():
        return
    target.writer.write(data)
    with suppress(OSError):
        await target.writer.drain()
