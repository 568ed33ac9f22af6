"""[A8] Journal: the newest commits of a store, in a file that is written in place: one write and one sync a commit, nothing else.

A file system has to log every new block and every new size of a file before a sync of it returns. So the file is made whole, filled
with zeros, and written over from its beginning again and again; each time around is a *lap*. Records are numbered without gaps over
all laps, so that what is left of an older lap is never taken for a part of this one.

    offset  size  field
         0     4  magic "VLMJ"      \\
         4     4  format version     >  the file's header
         8     8  term of its owner /
        16     -  records, back to back:
                     4  magic "VLMR"
                     4  CRC32C of everything behind this field
                     8  number of the record
                     4  length of the body
                     -  body: MessagePack, an array of [key, value]

Record n + 1 is written only after record n was synced. A bad record is therefore the torn end of the journal if nothing newer is
behind it; if something is, it is damage, and nobody may go on as if what follows had never been acknowledged (law 3).

Whoever opens the store writes his term into the header of the journal that he finds, and reads it then. Its owner looks at the
header behind each sync: while it is his own, what he wrote was there before anybody else read (law 7). The field was zero before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.batch import crc32c
from varlog.model.limits import KIB, MIB
from varlog.runtime.disk import Disk, File

JOURNAL_BYTES: Final = 1 * MIB
# A larger commit goes to the store itself: it would fill the journal after a few, and one write is not what takes its time.
RECORD_BYTES_MAX: Final = 128 * KIB
FORMAT_VERSION: Final = 1

_FILE_MAGIC: Final = b"VLMJ"
_RECORD_MAGIC: Final = b"VLMR"
_FILE_HEADER: Final = struct.Struct("<4sIQ")
_RECORD_HEADER: Final = struct.Struct("<4sIQI")
_CHECKED: Final = struct.Struct("<QI")  # the record's header behind its CRC
_CHECKED_AT: Final = 8
_TERM: Final = struct.Struct("<Q")
_TERM_AT: Final = 8

Puts = list[tuple[str, bytes]]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Puts).decode


class JournalDamaged(Exception):
    """The journal is not what was written: commits that were acknowledged may be missing."""


def journal_path(store: Path) -> Path:
    return store.with_name(store.name + ".journal")


def encode_record(number: int, puts: Puts) -> bytes:
    body = _encode(puts)
    checked = _CHECKED.pack(number, len(body)) + body
    return _RECORD_MAGIC + crc32c(checked).to_bytes(4, "little") + checked


def empty_journal(term: int) -> bytes:
    return _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, term).ljust(JOURNAL_BYTES, b"\0")


def claim(disk: Disk, path: Path, term: int) -> None:
    """Tell the owner of the journal at `path` that his term is over. Not synced: who is asked is a process on this machine, and
    after a power loss there is none. JournalDamaged, and nothing is written, if it is not a journal."""
    file = disk.open(path)
    try:
        _check_header(file.read_at(_FILE_HEADER.size, 0))
        file.write_at([_TERM.pack(term)], _TERM_AT)
    finally:
        file.close()


def records_after(content: bytes, applied: int) -> list[Puts]:
    """The commits after number `applied`, oldest first. JournalDamaged if some of them cannot be had."""
    _check_header(content)
    at, newest, found = _FILE_HEADER.size, 0, []
    for number, body, end in _whole_records(content, at):
        if newest and number != newest + 1:
            break  # left of an older lap
        if newest == 0 and number > applied + 1:
            raise JournalDamaged(f"it begins with commit {number}, and the store ends with {applied}")
        at, newest = end, number
        if number > applied:
            found.append(_decode(body))
    _check_nothing_newer(content, at, max(newest, applied))
    return found


def _check_header(content: bytes) -> None:
    if len(content) < _FILE_HEADER.size or not content.startswith(_FILE_MAGIC):
        raise JournalDamaged("it is no journal of a metadata store")
    _, version, _ = _FILE_HEADER.unpack_from(content)
    if version != FORMAT_VERSION:
        raise JournalDamaged(f"it has format version {version}, this program knows version {FORMAT_VERSION}")


def _whole_records(content: bytes, at: int) -> Iterator[tuple[int, bytes, int]]:
    """(number, body, end) of the good records that lie back to back from `at` on."""
    while (found := _record_at(content, at)) is not None:
        yield found
        at = found[2]


def _record_at(content: bytes, at: int) -> tuple[int, bytes, int] | None:
    if at + _RECORD_HEADER.size > len(content):
        return None
    magic, crc, number, size = _RECORD_HEADER.unpack_from(content, at)
    end = at + _RECORD_HEADER.size + size
    if magic != _RECORD_MAGIC or end > len(content):
        return None
    if crc32c(memoryview(content)[at + _CHECKED_AT : end]) != crc:
        return None
    return number, content[at + _RECORD_HEADER.size : end], end


def _check_nothing_newer(content: bytes, at: int, newest: int) -> None:
    while (at := content.find(_RECORD_MAGIC, at)) >= 0:
        found = _record_at(content, at)
        if found is not None and found[0] > newest:
            raise JournalDamaged(f"commit {newest + 1} cannot be read, and commit {found[0]} is there")
        at += 1


class Journal:
    """The journal of one opening of a store: a file of its own, so that an earlier opening writes into nobody's any more."""

    def __init__(self, disk: Disk, path: Path, term: int, applied: int, *, synced: bool) -> None:
        """A new, empty one in place of any other. The store holds every commit up to `applied`."""
        disk.replace_file(path, empty_journal(term))
        self.newest = applied
        self._term = _TERM.pack(term)
        self._file: File = disk.open(path)
        self._synced = synced
        self._at = _FILE_HEADER.size

    def append(self, puts: Puts) -> bool:
        """Make one commit durable; False, and nothing is written, if there is no room for it."""
        record = encode_record(self.newest + 1, puts)
        if len(record) > RECORD_BYTES_MAX or self._at + len(record) > JOURNAL_BYTES:
            return False
        self._file.write_at([record], self._at)
        if self._synced:
            self._file.sync()
        self.newest += 1
        self._at += len(record)
        return True

    @property
    def claimed(self) -> bool:
        """Whether somebody opened the store after us: what was written last may have come too late for him."""
        return self._file.read_at(_TERM.size, _TERM_AT) != self._term

    def begin_lap(self) -> None:
        """The store holds everything up to `newest`: write over it."""
        self._at = _FILE_HEADER.size

    def close(self) -> None:
        self._file.close()
