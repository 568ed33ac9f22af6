"""BlockRepair: replaces damaged bytes of a replica with those of the others.

In place, while the replica keeps its state and continues to serve.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from varlog.model.errors import CorruptBatch, NotWritten, Trimmed, Unavailable, VarlogError
from varlog.model.lsn import LLSN
from varlog.rpc.messages import CheckEntries, Fetch, FetchReply, ReplicaAddress
from varlog.rpc.transport import Connection, Transport
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.worker import Worker
from varlog.storage.corruption import BlockRange, Ordered, intact_bytes, read_block_range

if TYPE_CHECKING:
    from varlog.storagenode.committed.replica import Replica

FETCH_TIMEOUT_S: Final = 3.0

_log = get_logger("repair")


class BlockRepair:
    """Repairs the recorded damage of one replica. It examines before it writes: what proves intact is only removed from the
    list."""

    def __init__(self, replica: Replica, transport: Transport, worker: Worker, read_worker: Worker) -> None:
        self._replica = replica
        self._transport = transport
        self._worker = worker
        self._read_worker = read_worker
        self._busy = False

    async def repair(self, sources: Sequence[ReplicaAddress]) -> None:
        """Repair everything that is recorded now, as far as the sources have it. Does nothing if a repair is running."""
        if self._busy:
            return
        self._busy = True
        try:
            for begin, end in self._replica.damage.above(self._replica.store.low_llsn):
                await self._repair_range(begin, end, sources)
        except Unavailable as closed:
            _log.info(logfmt("repair stopped", log_stream=self._replica.log_stream, why=closed))
        finally:
            self._busy = False

    async def _repair_range(self, begin: LLSN, end: LLSN, sources: Sequence[ReplicaAddress]) -> None:
        replica, llsn = self._replica, begin
        while llsn < end:
            try:
                blocks = replica.store.block_range(llsn)
                if await self._is_intact(blocks):
                    replica.mark_verified(blocks.begin, blocks.end)
                else:
                    await self._repair_block_range(blocks, sources)
                llsn = blocks.end
            except Trimmed:  # gone since it was recorded, or since it was read
                llsn = max(LLSN(llsn + 1), replica.store.low_llsn)
                replica.damage.remove(begin, llsn)
            except NotWritten:
                return

    async def _is_intact(self, blocks: BlockRange) -> bool:
        replica = self._replica
        replica.check_open()
        store = replica.store
        if replica.unverified.touches(blocks.begin, blocks.end):
            return False
        try:
            return not await self._read_worker.run(lambda: store.examine(blocks))
        except OSError as error:
            raise Unavailable(f"the segment cannot be opened: {error}") from error

    async def _repair_block_range(self, blocks: BlockRange, sources: Sequence[ReplicaAddress]) -> None:
        """Restore the range, if all of it can be fetched."""
        replica = self._replica
        entries = f"[{blocks.begin}, {blocks.end})"
        try:
            copy = await self._copy(blocks, sources)
            replica.check_open()
            # A write that failed before, even that of a repair, must not keep it damaged.
            await replica.reopen_if_failed()
            store = replica.store
            await self._worker.run(lambda: store.repair(blocks.begin, blocks.end, copy))
        except OSError as error:
            replica.repair_failed(blocks.begin, blocks.end, error)
        except VarlogError as error:
            replica.check_open()
            if replica.store.low_llsn >= blocks.end:
                raise Trimmed(blocks.begin, replica.store.low_llsn) from error
            _log.info(
                logfmt("damage not repaired", log_stream=replica.log_stream, entries=entries, why=error)
            )
        else:
            replica.mark_repaired(blocks.begin, blocks.end)
            _log.warning(logfmt("damaged entries repaired", log_stream=replica.log_stream, entries=entries))

    async def _copy(self, blocks: BlockRange, sources: Sequence[ReplicaAddress]) -> bytearray:
        """The range as it should be: the intact batches here, and each other batch from the first source that has it intact."""
        store = self._replica.store
        own, ordered = await self._read_worker.run(lambda: (read_block_range(blocks), store.ordered(blocks)))
        copy, llsn = bytearray(), blocks.begin
        while llsn < blocks.end:
            size, end = intact_bytes(memoryview(own)[len(copy) :], llsn, blocks.end, ordered)
            low = self._replica.store.low_llsn
            if size:
                copy += own[len(copy) : len(copy) + size]
            elif llsn < low:
                # No replica has trimmed entries any more, and where the rest begins here is not known: fetch that from others.
                copy, own, end = bytearray(), b"", low
            else:
                batch, end = await self._fetch_from_any(blocks, llsn, sources, ordered)
                copy += batch
            llsn = end
        return copy

    async def _fetch_from_any(
        self, blocks: BlockRange, llsn: LLSN, sources: Sequence[ReplicaAddress], ordered: Ordered
    ) -> tuple[memoryview, LLSN]:
        """Fetch from the first source that answers and is not damaged there."""
        failures = []
        for source in sources:
            try:
                connection = await self._transport.connect(source.address, timeout_s=FETCH_TIMEOUT_S)
                try:
                    return await self._fetch(connection, blocks, llsn, ordered)
                finally:
                    connection.close()
            except VarlogError as error:
                failures.append(f"node {source.node}: {error}")
        raise Unavailable("; ".join(failures) or "there is no other replica")

    async def _fetch(
        self, connection: Connection, blocks: BlockRange, llsn: LLSN, ordered: Ordered
    ) -> tuple[memoryview, LLSN]:
        """The intact batches of a source from the one with `llsn` on, at least one; and where to continue."""
        log_stream = self._replica.log_stream
        # One batch is requested: the source may be damaged right behind it.
        fetched, payload = await connection.call(
            Fetch(log_stream, llsn, bytes_max=1), timeout_s=FETCH_TIMEOUT_S
        )
        if not isinstance(fetched, FetchReply) or not payload:
            raise Unavailable(f"it does not have LLSN {llsn} yet")
        size, end = intact_bytes(payload, llsn, blocks.end, ordered)
        if not size:
            with contextlib.suppress(VarlogError):  # best effort: its own scrub finds it as well
                check = CheckEntries(log_stream, llsn, LLSN(llsn + 1))
                await connection.call(check, timeout_s=FETCH_TIMEOUT_S)
            raise CorruptBatch(f"LLSN {llsn} is damaged there as well")
        return memoryview(payload)[:size], end
