"""Whether a directory that cannot be opened never held an entry, by its files alone.

A device may lose the writes that make a replica or log unit. Then it is damaged, and knows neither its epoch nor its cluster, and
if its log stream was never registered nobody repairs it. What is empty may be removed, as entries are written in an epoch only:
the state is that of no epoch or was never written, and there is neither a byte of an entry nor a commit row.
"""

from __future__ import annotations

from pathlib import Path

from varlog.model.epoch import NO_EPOCH
from varlog.model.errors import CorruptReplica
from varlog.model.lsn import FIRST_LLSN
from varlog.runtime.disk import Disk
from varlog.storage.row_file import ROW_BYTES, ROWS_NAME, encode_end_mark
from varlog.storage.segment import first_llsn_of
from varlog.storage.state_file import STATE_NAME, decode_state
from varlog.storage.sync_watermark import SYNCED_NAME, Synced, decode_slots
from varlog.storage.unit_state import FIRST_SEGMENT, UNIT_NAME, decode_unit


def is_blank(disk: Disk, path: Path) -> bool:
    """Nothing but what a new replica or log unit has is in this directory, or what is left of that. Reads no segment."""
    if not disk.is_directory(path):
        return False
    return _states_blank(disk, path) and _segments_blank(disk, path) and _rows_blank(disk, path)


def _states_blank(disk: Disk, path: Path) -> bool:
    """No state file at all is not enough: it may have been deleted."""
    names = [name for name in (STATE_NAME, UNIT_NAME) if disk.exists(path / name)]
    return bool(names) and all(_state_blank(name, disk.read_file(path / name), path) for name in names)


def _state_blank(name: str, content: bytes, path: Path) -> bool:
    if not any(content):
        return True  # its write was lost
    try:
        decode = decode_state if name == STATE_NAME else decode_unit
        return decode(content, path / name).epoch == NO_EPOCH
    except CorruptReplica:
        return False


def _segments_blank(disk: Disk, path: Path) -> bool:
    """The first one alone, and it has no bytes: room is reserved with the first entry. Both orderings count from 1."""
    numbered = {name: first for name in disk.list(path) if (first := first_llsn_of(name)) is not None}
    return all(
        first in (FIRST_LLSN, FIRST_SEGMENT) and not _size(disk, path / name)
        for name, first in numbered.items()
    )


def _rows_blank(disk: Disk, path: Path) -> bool:
    """Behind the header is the first end mark or nothing; the mark of a unit says that nothing is synced, or cannot be read."""
    rows = disk.read_file(path / ROWS_NAME) if disk.exists(path / ROWS_NAME) else b""
    marks = disk.read_file(path / SYNCED_NAME) if disk.exists(path / SYNCED_NAME) else b""
    behind = rows[ROW_BYTES:]
    first = (Synced(), Synced(FIRST_SEGMENT, 0))
    return (not any(behind) or behind == encode_end_mark(0)) and all(
        mark is None or mark in first for mark in decode_slots(marks)
    )


def _size(disk: Disk, path: Path) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()
