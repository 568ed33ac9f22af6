"""[A6] Replicator: sends a primary's batches to its backups.

One ordered connection per backup; the same bytes that the client packed. Backups report to the repository, not to the primary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from varlog.model.batch import Buffer
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID
from varlog.model.lsn import LLSN
from varlog.rpc.messages import ReplicaOpen, Replicate
from varlog.rpc.transport import Connection, ConnectionLost, Transport


class Replicator:
    """The connections of one primary in one epoch. `on_broken` is called once, when the first connection breaks."""

    def __init__(self, log_stream: LogStreamID, epoch: Epoch, on_broken: Callable[[str], None]) -> None:
        self._message = Replicate(log_stream, epoch)
        self._on_broken = on_broken
        self._connections: list[Connection] = []
        self.closed = False

    async def open(
        self, transport: Transport, backups: Sequence[str], next_llsn: LLSN, *, timeout_s: float
    ) -> None:
        """Connect to every backup, or to none: a primary that cannot replicate must not start."""
        opened = await asyncio.gather(
            *(self._open_one(transport, address, next_llsn, timeout_s) for address in backups),
            return_exceptions=True,
        )
        self._connections = [found for found in opened if not isinstance(found, BaseException)]
        failures = [found for found in opened if isinstance(found, BaseException)]
        if failures:
            self.close()
            raise failures[0]
        for connection in self._connections:
            connection.on_close(lambda peer=connection.peer: self._broken(peer))  # type: ignore[misc]

    async def _open_one(
        self, transport: Transport, address: str, next_llsn: LLSN, timeout_s: float
    ) -> Connection:
        connection = await transport.connect(address, timeout_s=timeout_s)
        try:
            request = ReplicaOpen(self._message.log_stream, self._message.epoch, next_llsn)
            await connection.call(request, timeout_s=timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection

    def replicate(self, batch: Buffer) -> None:
        """Send a placed batch to every backup."""
        try:
            for connection in self._connections:
                connection.send(self._message, batch)
        except ConnectionLost as lost:
            self._broken(lost.what)

    def close(self) -> None:
        self.closed = True
        for connection in self._connections:
            connection.close()

    def _broken(self, what: str) -> None:
        if not self.closed:
            self.close()
            self._on_broken(f"replication broke: {what}")
