"""Open workload: time and memory of opening a large replica, in a fresh process that runs this module."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from varlog.cli.bench.bench_context import BenchContext
from varlog.cli.bench.processes import usage_of
from varlog.cli.bench.workload import Measured
from varlog.model.batch import pack, place
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, ProducerID, TopicID
from varlog.model.limits import KIB, MIB, SEGMENT_BYTES
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.log_store import LogStore

REPLICA_BYTES = 2048 * MIB
QUICK_REPLICA_BYTES = 256 * MIB
# Small batches make a large index; rows that do not merge (as with a second stream in the topic) a large commits.log.
BATCH_ENTRIES = 4
ENTRY_BYTES = 1 * KIB
BATCHES_PER_WRITE = 64
_EPOCH = Epoch(1)


async def open_replica(stage: BenchContext) -> Measured:
    """Build it (not synced, for speed), put it on disk, drop it from the page cache, open it cold and then warm."""
    size = QUICK_REPLICA_BYTES if stage.settings.quick else REPLICA_BYTES
    size += (
        SEGMENT_BYTES * 3 // 4
    )  # opening reads the last segment: it must not happen to be a nearly empty one
    path = stage.directory / "replica"
    replica_bytes = build_replica(path, size, stage)
    drop_from_cache(path)
    cold = await _opened_elsewhere(path)
    warm = await _opened_elsewhere(path)
    OsDisk().remove_tree(path)
    return {
        "replica_bytes": float(replica_bytes),
        "open_s": cold["open_s"],
        "open_warm_s": warm["open_s"],
        "before_bytes": cold["before_bytes"],
        "peak_bytes": max(cold["peak_bytes"], warm["peak_bytes"]),
    }


def build_replica(path: Path, size: int, stage: BenchContext, *, batch_entries: int = BATCH_ENTRIES) -> int:
    """A replica of about `size` bytes; returns how many its files have."""
    store = LogStore.create(OsDisk(synced=False), path, topic=TopicID(1), log_stream=LogStreamID(1))
    store.cut(_EPOCH, FIRST_LLSN)
    entries = [os.urandom(ENTRY_BYTES) for _ in range(batch_entries)]
    packed = pack(entries, producer=ProducerID(1), sequence=1, time_us=1)
    llsn, glsn, version = int(FIRST_LLSN), 1, 0
    count = batch_entries * BATCHES_PER_WRITE
    while llsn // batch_entries * len(packed) < size:
        batches = [bytearray(packed) for _ in range(BATCHES_PER_WRITE)]
        for number, batch in enumerate(batches):
            place(batch, _EPOCH, LLSN(llsn + number * batch_entries))
        store.append(batches)
        version += 1
        store.commit(
            CommitRow(version, GLSN(glsn + count), GLSN(glsn - 1), GLSN(glsn), LLSN(llsn), count, _EPOCH)
        )
        llsn += count
        glsn += count + 1  # the position between two rows went to another stream
        if version % 256 == 0:
            store.sync_rows()
            stage.display.advance(llsn // batch_entries * len(packed) / size, "building")
    store.sync_rows()
    store.close()
    return sum(file.stat().st_size for file in path.iterdir())


def drop_from_cache(path: Path) -> None:
    """Write the files out and ask the kernel to forget them, so that opening has to read from the disk."""
    for file in path.iterdir():
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


async def _opened_elsewhere(path: Path) -> Measured:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "varlog.cli.bench.replica_open", str(path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise OSError(f"the process that was to open {path} ended with exit code {process.returncode}")
    measured: Measured = json.loads(output)
    return measured


def opened_here(path: Path) -> Measured:
    """Open it in this process and look at what it took."""
    before = usage_of(os.getpid())
    started = time.perf_counter()
    store = LogStore.open(OsDisk(), path)
    elapsed = time.perf_counter() - started
    after = usage_of(os.getpid())
    store.close()
    return {
        "open_s": elapsed,
        "before_bytes": float(before.resident_bytes),
        "peak_bytes": float(after.peak_bytes),
    }


if __name__ == "__main__":
    print(json.dumps(opened_here(Path(sys.argv[1]))))
