"""Harms to one file: what a device, a crash or a mistake does to it.

"Newest" is what was written last: what differs from an older copy of the file. Where there is none, or nothing differs, it is what
is before the zeros at the end of the file: files that are reserved ahead end in them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

SECTOR_BYTES = 512
# Harms one file in place; the bytes are those of an older copy.
Harm = Callable[[Path, bytes], None]


def newest(path: Path, older: bytes) -> range:
    """From the first to behind the last byte that was written since the older copy."""
    now = path.read_bytes()
    size = max(len(now), len(older))
    if older and now != older:
        before, after = older.ljust(size, b"\0"), now.ljust(size, b"\0")
        end = _last_difference(before, after)
        begin = size - _last_difference(before[::-1], after[::-1])
        return range(min(begin, len(now)), min(end, len(now)))
    return range(len(now.rstrip(b"\0")))


def _last_difference(before: bytes, after: bytes) -> int:
    """Behind the last byte that differs; found by halves, as files are large."""
    low, high = 0, len(before)  # everything from `high` on is equal
    while low < high:
        middle = (low + high) // 2
        if before[middle:high] == after[middle:high]:
            high = middle
        else:
            low = middle + 1
    return high


def flip_newest_bit(path: Path, older: bytes) -> None:
    """One bit in the middle of what was written last."""
    written = newest(path, older)
    _flip(path, written[len(written) // 2] if written else 0)


def flip_last_bit(path: Path, older: bytes) -> None:
    """One bit, a few bytes before the end of what was written last."""
    _flip(path, max(0, newest(path, older).stop - 5))


def flip_middle_bit(path: Path, older: bytes) -> None:
    """One bit in the middle of everything that was written."""
    _flip(path, newest(path, older).stop // 2)


def zero_newest_sector(path: Path, older: bytes) -> None:
    """The sector that the newest byte is in."""
    begin = max(0, newest(path, older).stop - 1) // SECTOR_BYTES * SECTOR_BYTES
    _overwrite(path, begin, bytes(min(SECTOR_BYTES, path.stat().st_size - begin)))


def zero_tail(path: Path, older: bytes) -> None:
    """From the middle of what was written last on, as a file system leaves it that had recorded a size and no data."""
    written = newest(path, older)
    begin = (written.start + written.stop) // 2
    _overwrite(path, begin, bytes(path.stat().st_size - begin))


def truncate_newest_bytes(path: Path, older: bytes) -> None:
    """A few bytes fewer than were written."""
    os.truncate(path, max(0, newest(path, older).stop - 3))


def truncate_to_nothing(path: Path, older: bytes) -> None:
    os.truncate(path, 0)


def delete_file(path: Path, older: bytes) -> None:
    path.unlink()


def older_copy(path: Path, older: bytes) -> None:
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(older)
        file.truncate()


def replace(path: Path, older: bytes) -> None:
    """Another file, with the older bytes, is moved over it: a process that has it open continues with one that has no name."""
    other = path.with_name(f"{path.name}.old")
    other.write_bytes(older)
    os.replace(other, path)


def _flip(path: Path, at: int) -> None:
    with path.open("rb") as file:
        file.seek(at)
        found = file.read(1)
    if found:
        _overwrite(path, at, bytes([found[0] ^ 0x10]))


def _overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
