"""CarriedConnection: one connection through a proxy: what goes each way, what is held or swallowed, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

from varlog.model.limits import KIB
from varlog.testing.cut_ways import CutWays

READ_BYTES_MAX = 256 * KIB
# Close without waiting: the other side gets a reset, not an end.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class End:
    """What the proxy has of one of the two who talk: `place` is where he is."""

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
        with suppress(OSError):  # he may be gone
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
            with suppress(OSError):  # it was reset a moment ago: the other way tells
                target.writer.write_eof()


async def _send(target: End, data: bytes) -> None:
    """To one who is gone, nothing: it is for the other way to tell, if that one is open."""
    if target.writer.is_closing():
        return
    target.writer.write(data)
    with suppress(OSError):
        await target.writer.drain()
