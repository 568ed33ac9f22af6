"""Sync of a log unit (R-SEQ-14): an empty one on one storage node is filled from one on another, each node a process of its own."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from varlog.cli.bench.bench_context import BenchContext
from varlog.cli.bench.replica_open import BATCHES_PER_WRITE, ENTRY_BYTES, drop_from_cache
from varlog.cli.bench.sync import (
    BATCH_ENTRIES,
    DESTINATION,
    LOOK_S,
    QUICK_REPLICA_BYTES,
    REPLICA_BYTES,
    SOURCE,
    STREAM,
    TOPIC,
    Node,
    placed,
    started_node,
    volume_of,
)
from varlog.cli.bench.workload import Measured
from varlog.model.batch import pack, place
from varlog.model.cluster import Ordering, SyncState
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed
from varlog.model.ids import ProducerID
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.rpc.messages import AddLogStream, ReplicaAddress, SyncReply, SyncUnit
from varlog.runtime.disk import OsDisk
from varlog.storage.page_store import PageStore

_EPOCH = Epoch(1)


async def sync_unit(stage: BenchContext) -> Measured:
    """Build the source's unit, drop it from the page cache, start both nodes, and time the sync."""
    size = QUICK_REPLICA_BYTES if stage.settings.quick else REPLICA_BYTES
    path = placed(stage.directory)
    entries = await asyncio.to_thread(build_unit, path, size, stage)
    async with (
        started_node(stage.directory, SOURCE) as source,
        started_node(stage.directory, DESTINATION) as destination,
    ):
        await destination.ask(AddLogStream(TOPIC, STREAM, ordering=Ordering.SEQUENCED))
        drop_from_cache(path)
        measured = await _timed(source, destination, stage)
    for node in (SOURCE, DESTINATION):
        OsDisk().remove_tree(volume_of(stage.directory, node))
    return measured | {"entries_per_s": entries / measured["seconds"]}


def build_unit(path: Path, size: int, stage: BenchContext) -> int:
    """A log unit of about `size` bytes; returns how many entries it has."""
    store = PageStore.create(OsDisk(synced=False), path, topic=TOPIC, log_stream=STREAM)
    store.set_epoch(_EPOCH)
    entries = [os.urandom(ENTRY_BYTES) for _ in range(BATCH_ENTRIES)]
    packed = pack(entries, producer=ProducerID(1), sequence=1, time_us=1)
    llsn = int(FIRST_LLSN)
    while store.bytes < size:
        batches = [bytearray(packed) for _ in range(BATCHES_PER_WRITE)]
        for batch in batches:
            place(batch, _EPOCH, LLSN(llsn))
            llsn += BATCH_ENTRIES
        store.publish(store.append(batches))
        stage.display.advance(store.bytes / size, "building")
    store.close()
    return llsn - FIRST_LLSN


async def _timed(source: Node, destination: Node, stage: BenchContext) -> Measured:
    request = SyncUnit(STREAM, ReplicaAddress(SOURCE, source.address))
    begin = time.perf_counter()
    while True:
        answer = await destination.ask(request)
        if not isinstance(answer, SyncReply) or answer.sync.state is SyncState.ERROR:
            raise PreconditionFailed(
                f"the sync failed: {answer.sync.why if isinstance(answer, SyncReply) else answer}"
            )
        sync = answer.sync
        if sync.state is SyncState.COMPLETE:
            break
        stage.display.advance(sync.copied_end / max(1, sync.target_end), "copying")
        await asyncio.sleep(LOOK_S)
    elapsed = time.perf_counter() - begin
    return {"bytes_per_s": sync.copied_bytes / elapsed, "seconds": elapsed}
