"""What the storage tests share: batches, a store that is easy to fill, a host that crashes, a disk that fails."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from varlog.model.batch import Buffer, check_body, entries_of, pack, place_batch, walk
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, ProducerID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsDisk, OsFile
from varlog.storage.committed.log_store import BatchChunk, LogStore
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.drive import Drive, Inode
from varlog.testing.sim.core.loop import Process

TOPIC = TopicID(7)
STREAM = LogStreamID(3)


def batch(first_llsn: int, entries: Sequence[bytes], epoch: int = 1) -> bytearray:
    """A placed batch."""
    packed = pack(entries, producer=ProducerID(5), sequence=first_llsn, time_us=1_700_000_000_000_000)
    place_batch(packed, Epoch(epoch), LLSN(first_llsn))
    return packed


def row(llsn: int, glsn: int, count: int, version: int = 1, epoch: int = 1) -> CommitRow:
    """A commit row; the topic's high watermark is its last entry."""
    return CommitRow(
        version, GLSN(glsn + count - 1), GLSN(glsn - 1), GLSN(glsn), LLSN(llsn), count, Epoch(epoch)
    )


def fill(store: LogStore, *groups: Sequence[Sequence[bytes]], epoch: int = 1) -> None:
    """Append each group (batches of entries) as one group commit."""
    for group in groups:
        llsn, buffers = store.written_end, []
        for entries in group:
            buffers.append(batch(llsn, entries, epoch))
            llsn = LLSN(llsn + len(entries))
        store.append(buffers)


def commit_all(store: LogStore, glsn: int | None = None, version: int = 1) -> None:
    """Order everything that is written, from `glsn` on or right behind the last."""
    count = store.written_end - store.committed_end
    if count:
        begin = store.high_watermark + 1 if glsn is None else glsn
        store.commit(row(store.committed_end, begin, count, version, max(1, store.epoch)))


def chunk_entries(chunk: BatchChunk) -> dict[int, bytes]:
    """LLSN -> entry of a chunk, every checksum checked: what a reader does."""
    found: dict[int, bytes] = {}
    for at, header in walk(chunk.data):
        check_body(chunk.data, header, at)
        found.update(enumerate(entries_of(chunk.data, header, at), header.first_llsn))
    return found


def read_all(store: LogStore, bytes_max: int = 1 << 20) -> dict[int, bytes]:
    """LLSN -> entry of everything that may be read, in chunks, as a subscriber does it."""
    found: dict[int, bytes] = {}
    llsn = store.low_llsn
    while llsn < store.committed_end:
        extent = store.extent(llsn, bytes_max)
        chunk = store.read_cached(extent) or store.read(extent)
        assert chunk.first_llsn <= llsn < chunk.end_llsn <= store.committed_end
        found.update({at: entry for at, entry in chunk_entries(chunk).items() if at >= llsn})
        llsn = chunk.end_llsn
    return found


def files_of(directory: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


class Host:
    """A host whose process can crash: what was not synced is then lost, kept or torn by a seeded chance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.drive = Drive()
        self._incarnation = 0
        self.disk = self.boot()

    def boot(self) -> SimDisk:
        """A new process over the same drive."""
        self._incarnation += 1
        process = Process("host", self._incarnation)

        def crash() -> None:
            process.alive = False  # no loop runs here, so there are no tasks to bury
            self.drive.crash(self.rng)

        self.disk = SimDisk(self.drive, process, self.rng, crash)
        self.crash = crash
        return self.disk

    def put(self, directory: Path, files: dict[str, bytes]) -> None:
        """Make `directory` hold exactly these files, durably."""
        self.disk.make_directory(directory)
        folder = self.drive.folder(directory)
        folder.entries = {name: Inode(content) for name, content in files.items()}
        folder.sync()
        folder.durable = dict(folder.entries)

    def files(self, directory: Path) -> dict[str, bytes]:
        """Every file's bytes."""
        return {name: self.disk.read_file(directory / name) for name in self.disk.list(directory)}

    def crash_in(self, operations: int) -> None:
        """Crash in the changing operation that is this far ahead."""
        self.disk.crash_at = self.disk.operations + operations


class FailingFile(OsFile):
    """A file whose next operation of a kind fails."""

    disk: FailingDisk

    def write_at(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.disk.maybe_fail("write")
        super().write_at(buffers, offset)

    def sync(self) -> None:
        self.disk.maybe_fail("sync")
        super().sync()

    def reserve(self, size: int) -> None:
        self.disk.maybe_fail("reserve")
        super().reserve(size)


class FailingDisk(OsDisk):
    """The real disk, with a failure on demand: once, as a device does that loses a page and then forgets about it."""

    def __init__(self) -> None:
        super().__init__(synced=False)
        self.fail_next = ""
        self.fail_errno = errno.EIO
        self.calls: list[str] = []

    def maybe_fail(self, kind: str) -> None:
        self.calls.append(kind)
        if self.fail_next == kind:
            self.fail_next = ""
            raise OSError(self.fail_errno, f"{kind} failed")

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        file = FailingFile(path, create=create, synced=False)
        file.disk = self
        return file


def new_store(tmp_path: Path, *, segment_bytes: int = 1 << 20, disk: OsDisk | None = None) -> LogStore:
    """An empty store of the real disk, sealed once, in epoch 1."""
    store = LogStore.create(
        disk or OsDisk(synced=False),
        tmp_path / f"lsid={STREAM}",
        topic=TOPIC,
        log_stream=STREAM,
        segment_bytes=segment_bytes,
    )
    store.cut(Epoch(1), LLSN(1))
    return store


def reopen(store: LogStore, *, segment_bytes: int = 1 << 20) -> LogStore:
    """The same directory, by a new process after a clean stop."""
    store.close()
    return LogStore.open(OsDisk(synced=False), store.path, segment_bytes=segment_bytes)


def raised(action: Callable[[], object]) -> BaseException | None:
    """What `action` raises, if anything."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error
    return None
