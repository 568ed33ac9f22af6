"""CuttingProxy: a TCP proxy for one server; each direction can be cut.

It forwards bytes without parsing them. A process that connects while its link is cut is connected and receives nothing: a proxy
cannot refuse to open a connection as a lost packet does.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from varlog.model.limits import KIB
from varlog.rpc.tcp import split_address
from varlog.testing.network.cuttable_network import CutWays

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
