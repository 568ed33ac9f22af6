"""Scrub: slowly reads and checks every replica of a node.

Its `loop` decides when. The chunks are small, one at a time, in a worker of its own, so that no reader and no append waits behind
it. What is in the page cache is checked there: the disk below is checked in a later pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from varlog.model.errors import NotWritten, Trimmed, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.limits import SCRUB_CHUNK_BYTES
from varlog.model.lsn import LLSN
from varlog.model.status import ReplicaState
from varlog.runtime.environment import Environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.worker import Worker
from varlog.storagenode.committed.replica import Replica
from varlog.storagenode.scrub_loop import ScrubLoop

_log = get_logger("scrub")


class Scrub:
    """The passes over all replicas, and the checks of what readers reported."""

    def __init__(
        self,
        replicas: Mapping[LogStreamID, Replica],
        worker: Worker,
        environment: Environment,
        bytes_per_s: int,
        interval_s: float,
    ) -> None:
        self._replicas = replicas
        self._worker = worker
        self._entropy = environment.entropy
        self.loop = ScrubLoop(replicas, self._pass, self._check, bytes_per_s, interval_s)

    async def _pass(self) -> None:
        """Every replica once, beginning with a random one: a node that restarts often still checks all of them."""
        streams = list(self._replicas)
        first = self._entropy.randrange(len(streams)) if streams else 0
        for log_stream in [*streams[first:], *streams[:first]]:
            replica = self._replicas.get(log_stream)
            if replica is not None and replica.state is not ReplicaState.FROZEN:
                with contextlib.suppress(Unavailable):  # it is closed: another one may replace it
                    await replica.scrub_metadata()
                store = replica.store
                await self._check(replica, store.oldest_llsn, store.committed_end)

    async def _check(self, replica: Replica, begin: LLSN, end: LLSN) -> None:
        """Check the entries [begin, end), as far as they exist, at the allowed rate."""
        llsn = begin
        while llsn < end and self._replicas.get(replica.log_stream) is replica:
            if replica.state is ReplicaState.FROZEN:
                return
            try:
                llsn, size = await self._check_chunk(replica, llsn)
            except Trimmed:
                llsn = max(LLSN(llsn + 1), replica.store.low_llsn)
                continue
            except (NotWritten, Unavailable):
                return
            await self.loop.pace(size)

    async def _check_chunk(self, replica: Replica, llsn: LLSN) -> tuple[LLSN, int]:
        """Check the next chunk; returns where to continue, and the bytes checked."""
        store = replica.store
        blocks = store.block_range(llsn, SCRUB_CHUNK_BYTES)
        try:
            # Once per segment. The oldest is not checked from its beginning, where it is trimmed.
            if blocks.offset == 0 or llsn <= store.oldest_llsn:
                await replica.scrub_sidecar(blocks)
            corrupt = await self._worker.run(lambda: store.examine(blocks))
        except OSError as error:
            _log.warning(logfmt("a segment cannot be scrubbed", log_stream=replica.log_stream, why=error))
            return blocks.end, blocks.size
        if not corrupt:
            replica.mark_verified(blocks.begin, blocks.end)
        for found in corrupt:
            if found.end <= store.low_llsn:
                await replica.fill_trimmed(found.begin, found.end)  # trimmed: no replica has it any more
            else:
                replica.record_damage(found.begin, found.end, found.what)
        return blocks.end, blocks.size
