"""Drive: what a host's disk holds, and what of it would survive a crash.

What was not synced is lost at random.

It can be made to fail, as disks do: syncs, writes, reads, opens, and a capacity that is reached; to lose or misplace writes that it
acknowledged; to spoil what lies beside a write in flight; and it can be put back to what it was a while ago.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECTOR_BYTES = 512
# The unit that a device writes as a whole: a power loss in the middle of it spoils what else is in it.
BLOCK_BYTES = 4096
# Free space of a drive without a capacity.
ENDLESS_BYTES = 1 << 50


@dataclass(slots=True)
class DirectoryChange:
    """One change of a file since its last sync: bytes put at an offset, or (data None) a new size."""

    offset: int
    data: bytes | None = None


class Inode:
    """A file: its content as processes see it, the content that is on the platter, and the changes in between."""

    __slots__ = ("changes", "content", "durable")

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.changes: list[DirectoryChange] = []

    def write(self, offset: int, data: bytes) -> None:
        self.changes.append(DirectoryChange(offset, data))
        _put(self.content, offset, data)

    def resize(self, size: int) -> None:
        self.changes.append(DirectoryChange(size))
        _resize(self.content, size)

    def write_lost(self, offset: int, data: bytes) -> None:
        """A write that the device acknowledges and never does: readers see it until the page is read from the platter again."""
        _put(self.content, offset, data)

    def write_misplaced(self, offset: int, data: bytes, elsewhere: int) -> None:
        """A write that lands at another place of the platter than the one it was for."""
        self.changes.append(DirectoryChange(elsewhere, data))
        _put(self.content, offset, data)

    def reload(self) -> None:
        """The page cache lets go of the file: from now on readers see the platter, and what has yet to be written to it."""
        self.content = bytearray(self.durable)
        for change in self.changes:
            _apply(self.content, change)

    def rewrite(self, content: bytes) -> None:
        """Another content, on the platter and for readers: damage, or a copy that was put back."""
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.changes.clear()

    def sync(self) -> None:
        for change in self.changes:
            _apply(self.durable, change)
        self.changes.clear()

    def forget_writes(self) -> None:
        """A sync failed, as Linux has it: what was written since the last good one can still be read, counts as clean, and is
        never on the platter unless it is written again. A new size is the journal's business, and comes with the next sync."""
        self.changes = [change for change in self.changes if change.data is None]

    def flip(self, at: int, bit: int) -> None:
        """Corruption: one bit of the file is flipped from now on, on the platter and for every reader."""
        for content in (self.content, self.durable):
            if at < len(content):
                content[at] ^= 1 << bit

    def crash(self, rng: random.Random, fate: Fate) -> None:
        """Each change since the last sync survives, is lost, or survives in parts; a later may outlive an earlier."""
        for change in self.changes:
            kept = fate.keeps(rng)
            if kept == KEPT:
                _apply(self.durable, change)
            elif kept == TORN and change.data is not None:
                for offset, data in _sectors(change, rng):
                    if rng.random() < 0.5:
                        _put(self.durable, offset, data)
                if fate.spoils:
                    self._spoil_beside(change, rng)
        self.changes.clear()
        self.content = bytearray(self.durable)

    def _spoil_beside(self, change: DirectoryChange, rng: random.Random) -> None:
        """The block that the torn write ends or begins in is garbage now, what was synced before included."""
        end = change.offset + len(change.data or b"")
        at = rng.choice((change.offset, max(change.offset, end - 1)))
        begin = at - at % BLOCK_BYTES
        for place in range(begin, min(begin + BLOCK_BYTES, len(self.durable)), SECTOR_BYTES):
            if rng.random() < 0.5:
                stop = min(place + SECTOR_BYTES, len(self.durable))
                self.durable[place:stop] = rng.randbytes(stop - place)


LOST, KEPT, TORN = 0, 1, 2


class Fate:
    """How one crash treats what was not synced. A killed process loses nothing, a power cut all or some of it."""

    def __init__(self, rng: random.Random, *, spoils: bool = False) -> None:
        self.kind = rng.choice(("kill", "kill", "lose all", "some", "some", "prefix"))
        self.spoils = spoils  # a torn write takes its neighbours with it
        self._keeping = True

    def keeps(self, rng: random.Random) -> int:
        if self.kind == "lose all":
            return LOST
        if self.kind == "prefix":
            self._keeping = self._keeping and rng.random() < 0.7
            return KEPT if self._keeping else (TORN if rng.random() < 0.3 else LOST)
        return rng.choice((LOST, KEPT, TORN))


@dataclass(slots=True)
class Folder:
    """A directory: its names as processes see them, the names that are durable, and the changes in between."""

    entries: dict[str, Inode | Folder] = field(default_factory=dict)
    durable: dict[str, Inode | Folder] = field(default_factory=dict)
    changes: list[tuple[str, str, Inode | Folder | None]] = field(default_factory=list)

    def link(self, name: str, node: Inode | Folder) -> None:
        self.entries[name] = node
        self.changes.append(("", name, node))

    def unlink(self, name: str) -> None:
        del self.entries[name]
        self.changes.append((name, "", None))

    def rename(self, old: str, new: str) -> None:
        node = self.entries.pop(old)
        self.entries[new] = node
        self.changes.append((old, new, node))

    def sync(self) -> None:
        for change in self.changes:
            self._apply(change)
        self.changes.clear()

    def size(self) -> int:
        """Bytes of all files below, as processes see them."""
        entries = list(self.entries.values())  # at once: a test's worker has a thread, and writes meanwhile
        return sum(node.size() if isinstance(node, Folder) else len(node.content) for node in entries)

    def _apply(self, change: tuple[str, str, Inode | Folder | None]) -> None:
        gone, name, node = change
        if gone:
            self.durable.pop(gone, None)
        if name and node is not None:
            self.durable[name] = node

    def crash(self, rng: random.Random, fate: Fate) -> None:
        """A change of a name survives or not; a rename is one change: never both names lost."""
        for change in self.changes:
            if fate.keeps(rng) == KEPT:
                self._apply(change)
        self.changes.clear()
        self.entries = dict(self.durable)
        for node in self.entries.values():
            node.crash(rng, fate)


class Drive:
    """The disk of one host. It outlives the host's processes.

    `fail_syncs`, `fail_writes`, `fail_reads`: this many of the next ones fail; `fail_opens`: this many of the next files cannot be
    opened, for lack of `open_errno`. `lose_writes`, `misplace_writes`: this many of the next ones are acknowledged and are never on
    the platter, or elsewhere on it. `spoils`: a power loss spoils what lies beside a write in flight. `capacity_bytes`: no more
    fits on it; None is endless.
    """

    def __init__(self) -> None:
        self.root = Folder()
        self.locks: dict[Path, Any] = {}
        self.capacity_bytes: int | None = None
        self.fail_syncs = 0
        self.fail_writes = 0
        self.fail_reads = 0
        self.fail_opens = 0
        self.open_errno = errno.EMFILE
        self.lose_writes = 0
        self.misplace_writes = 0
        self.spoils = False

    def heal(self) -> None:
        """It does what it is asked to from now on."""
        self.fail_syncs = self.fail_writes = self.fail_reads = self.fail_opens = 0
        self.lose_writes = self.misplace_writes = 0
        self.spoils = False
        self.capacity_bytes = None

    # --- trouble -------------------------------------------------------------------------------------------------

    def sync(self, inode: Inode, path: Path) -> None:
        """Bring a file to the platter, or fail and never do."""
        if self.fail_syncs > 0:
            self.fail_syncs -= 1
            inode.forget_writes()
            raise OSError(errno.EIO, "Input/output error", str(path))
        inode.sync()

    def sync_folder(self, folder: Folder, path: Path) -> None:
        """The same for names. They are in the journal: a failed sync loses none, a later one brings them."""
        if self.fail_syncs > 0:
            self.fail_syncs -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))
        folder.sync()

    def check_write(self, path: Path) -> None:
        """Before a write: one that was made to fail does."""
        if self.fail_writes > 0:
            self.fail_writes -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))

    def check_read(self, path: Path) -> None:
        """Before a read: one that was made to fail does."""
        if self.fail_reads > 0:
            self.fail_reads -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))

    def check_open(self, path: Path) -> None:
        """Before a file is opened: the process may have no file descriptor or no memory left for it."""
        if self.fail_opens > 0:
            self.fail_opens -= 1
            raise OSError(self.open_errno, os.strerror(self.open_errno), str(path))

    def write(self, inode: Inode, offset: int, data: bytes) -> None:
        """Into a file, unless the device loses the write or misplaces it."""
        if self.lose_writes > 0 and data:
            self.lose_writes -= 1
            inode.write_lost(offset, data)
        elif self.misplace_writes > 0 and len(inode.durable) > len(data) and data:
            self.misplace_writes -= 1
            places = range(offset % SECTOR_BYTES, len(inode.durable) - len(data) + 1, SECTOR_BYTES)
            others = [place for place in places if place != offset]
            if others:
                inode.write_misplaced(offset, data, others[offset // SECTOR_BYTES % len(others)])
            else:
                inode.write_lost(offset, data)
        else:
            inode.write(offset, data)

    # --- the past ------------------------------------------------------------------------------------------------

    def snapshot(self) -> Folder:
        """What is on the platter now, as a power loss at this moment would leave it at least."""
        return _copy(self.root)

    def restore(self, snapshot: Folder) -> None:
        """The drive is as it was when the snapshot was taken. Nothing may run on it."""
        self.root = _copy(snapshot)

    def check_room(self, needed_bytes: int, path: Path) -> None:
        """Before something grows. What is removed while it is open counts as gone."""
        if needed_bytes > 0 and self.free_bytes() < needed_bytes:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def free_bytes(self) -> int:
        """Below zero never, even where the capacity was made smaller than what is there."""
        if self.capacity_bytes is None:
            return ENDLESS_BYTES
        return max(0, self.capacity_bytes - self.root.size())

    # --- what is where -------------------------------------------------------------------------------------------

    def find(self, path: Path) -> Inode | Folder | None:
        node: Inode | Folder | None = self.root
        for part in path.parts[1:]:
            if not isinstance(node, Folder):
                return None
            node = node.entries.get(part)
        return node

    def folder(self, path: Path) -> Folder:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        if not isinstance(node, Folder):
            raise NotADirectoryError(20, "Not a directory", str(path))
        return node

    def file(self, path: Path) -> Inode:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        if isinstance(node, Folder):
            raise IsADirectoryError(21, "Is a directory", str(path))
        return node

    def crash(self, rng: random.Random) -> str:
        """Lose what was not synced, as one seeded fate has it; returns which.

        Where only the process is killed, nothing is lost: its successor sees it all, although it is not on the platter yet,
        and the next power cut may still take it.
        """
        fate = Fate(rng, spoils=self.spoils)
        if fate.kind != "kill":
            self.root.crash(rng, fate)
        return fate.kind


def _copy(folder: Folder) -> Folder:
    """The durable part of a tree."""
    names: dict[str, Inode | Folder] = {
        name: _copy(node) if isinstance(node, Folder) else Inode(bytes(node.durable))
        for name, node in folder.durable.items()
    }
    return Folder(names, dict(names))


def _sectors(change: DirectoryChange, rng: random.Random) -> Iterator[tuple[int, bytes]]:
    """The parts of a write that the device writes separately: sectors mostly, now and then odd pieces."""
    data = change.data or b""
    size = SECTOR_BYTES if rng.random() < 0.5 else rng.choice((8, 32, 64, 100))
    at = 0
    while at < len(data):
        step = size - (change.offset + at) % size
        yield change.offset + at, data[at : at + step]
        at += step


def _apply(content: bytearray, change: DirectoryChange) -> None:
    if change.data is None:
        _resize(content, change.offset)
    else:
        _put(content, change.offset, change.data)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
