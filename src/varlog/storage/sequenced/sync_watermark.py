"""[Q5] The `synced` file of a log unit: how far its newest segment is synced.

It distinguishes a torn tail from damage. What is behind the mark may be a write that a crash cut off, and is removed; what is
before it was acknowledged, and a bad byte there is damage that is reported, never cut (law 10). The mark is written after every
sync of the segment and synced itself only occasionally: an older one that reappears after a power loss is true as well.

Two slots of 32 bytes: the one that is synced stays unchanged while the other one is written. The file exists before its unit does,
with two good slots. So no crash leaves a unit without a readable mark.

offset  size  field (little endian)
     0     4  magic "VLY1"
     4     2  format version
     6     2  reserved, zero
     8     8  number of the segment
    16     8  bytes of it that are synced; all earlier segments are synced
    24     4  reserved, zero
    28     4  CRC32C of bytes 0 to 27
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

from varlog.model.batch import crc32c
from varlog.runtime.disk import Disk, File
from varlog.storage.open_file import unlinked

SYNCED_NAME: Final = "synced"
_FORMAT_VERSION: Final = 1
SLOT_BYTES: Final = 32
# The mark itself is synced after this many groups.
SYNC_MARKS: Final = 64

_MAGIC: Final = b"VLY1"
_SLOT = struct.Struct("<4sHHQQI")
_CRC = struct.Struct("<I")


class Synced(NamedTuple):
    """Every segment before number `segment` is synced, and `size` bytes of that one."""

    segment: int = 0
    size: int = 0


def encode_slot(synced: Synced) -> bytes:
    content = _SLOT.pack(_MAGIC, _FORMAT_VERSION, 0, synced.segment, synced.size, 0)
    return content + _CRC.pack(crc32c(content))


def decode_slots(content: bytes) -> tuple[Synced | None, ...]:
    """The mark in each slot; None where it is torn or damaged."""
    return tuple(_decode(content[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES))


def _decode(slot: bytes) -> Synced | None:
    if len(slot) != SLOT_BYTES or _CRC.unpack_from(slot, _SLOT.size)[0] != crc32c(slot[: _SLOT.size]):
        return None
    magic, version, reserved, segment, size, _ = _SLOT.unpack_from(slot)
    return Synced(segment, size) if (magic, version, reserved) == (_MAGIC, _FORMAT_VERSION, 0) else None


def read_mark(disk: Disk, directory: Path) -> Synced | None:
    """The newest mark of a unit; None if the file is missing or no slot of it can be read."""
    path = directory / SYNCED_NAME
    slots = decode_slots(disk.read_file(path)) if disk.exists(path) else ()
    return max((slot for slot in slots if slot is not None), default=None)


class SyncWatermark:
    """The file, open. Used by the unit's worker alone."""

    def __init__(self, file: File, slot: int, newest: Synced) -> None:
        # What was written last: if an older one is read, the device lost a write.
        self.newest = newest
        self._file = file
        self._slot = slot
        self._unsynced = 0

    @classmethod
    def open(cls, disk: Disk, directory: Path) -> SyncWatermark:
        """Open the file, creating it if it is missing."""
        path = directory / SYNCED_NAME
        if not disk.exists(path):
            disk.replace_file(path, encode_slot(Synced()) * 2)
        slots = [slot or Synced() for slot in decode_slots(disk.read_file(path))]
        return cls(disk.open(path), 0 if slots[0] <= slots[1] else 1, max(slots))

    def move(self, synced: Synced, *, sure: bool = False) -> None:
        """Record that the segment was synced up to here. `sure`: the mark itself survives a power loss."""
        self._file.write_at([encode_slot(synced)], self._slot * SLOT_BYTES)
        self.newest = synced
        self._unsynced += 1
        if sure or self._unsynced >= SYNC_MARKS:
            self._file.sync()
            self._unsynced = 0
            self._slot = 1 - self._slot

    def write_again(self) -> None:
        """Write both slots, because what can be read of them is old."""
        self._file.write_at([encode_slot(self.newest) * 2], 0)
        self._file.sync()
        self._unsynced = 0

    def relink(self, disk: Disk) -> str:
        """If the file was deleted or replaced, write it under its name again; returns a note, or ''."""
        if self._file.is_linked():
            return ""
        path = self._file.path
        disk.make_directory(path.parent)
        disk.replace_file(path, encode_slot(self.newest) * 2)
        self._file.close()
        self._file = disk.open(path)
        self._unsynced = 0
        return unlinked(path)

    @property
    def is_sure(self) -> bool:
        return self._unsynced == 0

    def close(self) -> None:
        self._file.close()
