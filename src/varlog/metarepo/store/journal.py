"""[A8] Journal: the newest commits of a store, in a file written in place.

One write and one sync per commit.

A file system must log every new block and every size change of a file before a sync of it returns. So the file is allocated in
full and then overwritten in a circle; each pass is a *lap*. A record starts at a sector boundary, shares no sector with another
one, and exists twice, back to back in one write: one bad sector, or a write that tears the sector beside it, costs one copy.

        sector 0             header: format version, salt, term of its owner, first commit, length of the file
    sector 1             term of the newest claim (see below)
    sectors 2 … end - 2  records: all sectors of the first copy, then all sectors of the second
    last sector          the header again

Every sector of a record describes itself:

    offset  size  field                                          offset  size  field
         0     4  magic "VLMS"                                       40     4  place: number of this sector in the file
         4     4  CRC32C of what follows, payload too                44     4  start: place of the record's first sector
         8    16  salt of the file, random                           48     4  lap
        24     8  number of the commit; 0: never written             52     2  index of this sector in its copy
        32     8  durable: newest commit known to be synced then     54     2  sectors per copy
                                                                     56     2  length of the payload
                                                                     58     -  payload: a part of the body

The body is MessagePack, an array of [key, value], [key, nil] (delete) or [begin, end] (delete a range; both are
strings). No byte of a body is ever at the beginning of a sector, and no client knows the salt: a value cannot be mistaken for a
record.

Commit n + 1 is written only after n was synced, and records that (`durable`): a commit that is known to be durable and cannot be
read from either copy is damage, and the store must not continue as if it had never been acknowledged (law 3). A write in flight
when the power fails leaves sectors that are old, new, or a mixture: all of these have the magic and the salt. If sectors at the
place of the next record lack them, and it is not one bad sector beside a good one, an acknowledged commit may have been there:
that is damage, and so is a file that is too short.

A process that opens the store writes its term into the claim of the journal that it finds, and then reads the journal. The owner
compares the claim with its own term after each sync: while they are equal, what it wrote was there before any other process read
(law 7). The claim has a sector of its own and is not synced: after a power loss there is no owner left to read it.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from varlog.metarepo.store.base import DeleteItem, DeleteItems, PutItem, StoreChange
from varlog.model.batch import crc32c
from varlog.model.limits import KIB, MIB
from varlog.runtime.disk import Disk, File

# Covers drives with sectors of 512 bytes, of 4 KiB, and those that only claim to have the former.
SECTOR_BYTES: Final = 4 * KIB
# Space for the cuts between two bases, each in two sectors, and some more.
JOURNAL_BYTES: Final = 5 * MIB
# A larger commit goes to the database: a few of them would fill the journal, and their cost is not in the one write.
RECORD_BYTES_MAX: Final = 128 * KIB
FORMAT_VERSION: Final = 2
SALT_BYTES: Final = 16

_FILE_MAGIC: Final = b"VLMJ"
_SECTOR_MAGIC: Final = b"VLMS"
_FILE_HEADER: Final = struct.Struct("<4sII16sQQQB")  # magic, version, CRC, salt, term, base, bytes, synced
_HEADER_CHECKED_AT: Final = 12
_SECTOR: Final = struct.Struct("<4sI16sQQIIIHHH")
_SECTOR_CHECKED: Final = struct.Struct("<16sQQIIIHHH")
_SECTOR_CHECKED_AT: Final = 8
_PAYLOAD_BYTES: Final = SECTOR_BYTES - _SECTOR.size
_ZEROS: Final = bytes(SECTOR_BYTES)
_TERM: Final = struct.Struct("<Q")
_CLAIM_PLACE: Final = 1
_FIRST_PLACE: Final = 2

Body = list[tuple[str, Any]]  # bytes: a value; None; str: the end of a range

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Body).decode


class JournalDamaged(Exception):
    """The journal is not what was written: acknowledged commits may be missing. `known`: the number of commits that existed."""

    def __init__(self, why: str, known: int = 0) -> None:
        super().__init__(why)
        self.known = known


def journal_path(store: Path) -> Path:
    return store.with_name(store.name + ".journal")


# --- the format --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    """The constants of a journal. `base`: the store held every commit up to it when the journal was created."""

    salt: bytes
    term: int
    base: int
    size: int
    synced: bool


def encode_header(header: Header) -> bytes:
    fields = (header.salt, header.term, header.base, header.size, header.synced)
    blank = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, 0, *fields).ljust(SECTOR_BYTES, b"\0")
    return _FILE_HEADER.pack(
        _FILE_MAGIC, FORMAT_VERSION, crc32c(memoryview(blank)[_HEADER_CHECKED_AT:]), *fields
    ).ljust(SECTOR_BYTES, b"\0")


def _decode_header(sector: bytes) -> Header | None:
    if len(sector) != SECTOR_BYTES:
        return None
    magic, version, crc, salt, term, base, size, synced = _FILE_HEADER.unpack_from(sector)
    if magic != _FILE_MAGIC or version != FORMAT_VERSION:
        return None
    if crc != crc32c(memoryview(sector)[_HEADER_CHECKED_AT:]):
        return None
    return Header(salt, term, base, size, bool(synced))


def encode_sector(
    salt: bytes,
    number: int,
    durable: int,
    place: int,
    start: int,
    lap: int,
    index: int,
    count: int,
    payload: bytes,
) -> bytes:
    """One sector, without the padding of zeros."""
    checked = (
        _SECTOR_CHECKED.pack(salt, number, durable, place, start, lap, index, count, len(payload)) + payload
    )
    return _SECTOR_MAGIC + crc32c(checked).to_bytes(4, "little") + checked


def encode_record(salt: bytes, number: int, durable: int, start: int, lap: int, body: bytes) -> list[bytes]:
    """All sectors of both copies, in file order."""
    if len(body) <= _PAYLOAD_BYTES:  # nearly every record: avoids the loops
        copies = [
            encode_sector(salt, number, durable, place, start, lap, 0, 1, body)
            for place in (start, start + 1)
        ]
        padding = _ZEROS[len(copies[0]) :]
        return [copies[0], padding, copies[1], padding]
    parts = [body[at : at + _PAYLOAD_BYTES] for at in range(0, len(body), _PAYLOAD_BYTES)]
    count = len(parts)
    padding = _ZEROS[: _PAYLOAD_BYTES - len(parts[-1])]
    record: list[bytes] = []
    for nth in range(2 * count):
        index = nth % count
        record.append(
            encode_sector(salt, number, durable, start + nth, start, lap, index, count, parts[index])
        )
        if index == count - 1:
            record.append(padding)
    return record


def encode_body(changes: Iterable[StoreChange]) -> bytes:
    body: Body = []
    for change in changes:
        if isinstance(change, PutItem):
            body.append((change.key, change.value))
        elif isinstance(change, DeleteItem):
            body.append((change.key, None))
        else:
            body.append((change.begin, change.end))
    return _encode(body)


def decode_changes(body: bytes) -> list[StoreChange]:
    changes: list[StoreChange] = []
    for key, value in _decode(body):
        if value is None:
            changes.append(DeleteItem(key))
        elif isinstance(value, str):
            changes.append(DeleteItems(key, value))
        else:
            changes.append(PutItem(key, value))
    return changes


def _blank(header: Header) -> bytes:
    return encode_sector(header.salt, 0, 0, 0, 0, 0, 0, 0, b"").ljust(SECTOR_BYTES, b"\0")


def empty_journal(header: Header) -> bytes:
    """The content of a new file. No sector is all zeros, so one that is was damaged."""
    whole = encode_header(header)
    blank = _blank(header)
    claimed = _TERM.pack(header.term).ljust(SECTOR_BYTES, b"\0")
    return b"".join((whole, claimed, blank * (header.size // SECTOR_BYTES - _FIRST_PLACE - 1), whole))


# --- reading -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovered:
    """The commits of a journal that the database lacks, oldest first, and complaints about the file for an operator."""

    commits: list[list[StoreChange]]
    complaints: list[str]


@dataclass(slots=True)
class _Record:
    """What was found of one record in both of its copies."""

    start: int
    count: int
    lap: int
    durable: int
    parts: dict[int, bytes] = field(default_factory=dict)  # by index
    places: set[int] = field(default_factory=set)  # sectors that can be read

    @property
    def whole(self) -> bool:
        return len(self.parts) == self.count

    @property
    def end(self) -> int:
        return self.start + 2 * self.count

    def body(self) -> bytes:
        return b"".join(self.parts[index] for index in range(self.count))


def read_journal(disk: Disk, path: Path) -> bytes:
    """The content, with zeros where the device cannot read: no sector of a good journal is all zeros."""
    file = disk.open(path)
    try:
        size = file.size()
        try:
            return file.read_at(size, 0)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        return b"".join(
            _read_sector(file, at, min(SECTOR_BYTES, size - at)) for at in range(0, size, SECTOR_BYTES)
        )
    finally:
        file.close()


def _read_sector(file: File, at: int, size: int) -> bytes:
    try:
        return file.read_at(size, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return bytes(size)


def read_header(disk: Disk, path: Path) -> Header | None:
    """See find_header."""
    file = disk.open(path)
    try:
        return _header_in(file)
    finally:
        file.close()


def _header_in(file: File) -> Header | None:
    size = file.size()
    ends = [_read_sector(file, at, min(SECTOR_BYTES, size)) for at in (0, max(0, size - SECTOR_BYTES))]
    return find_header(b"".join(ends))


def find_header(content: bytes) -> Header | None:
    """The header of a journal, from either copy; None: format 1, which had neither salt nor copies. Raises JournalDamaged if it
    is not a journal."""
    for sector in (content[:SECTOR_BYTES], content[-SECTOR_BYTES:]):
        if (found := _decode_header(sector)) is not None:
            return found
    if not content.startswith(_FILE_MAGIC) or len(content) < _V1_FILE_HEADER.size:
        raise JournalDamaged("it is no journal of a metadata store, or both copies of its header are damaged")
    version = _V1_FILE_HEADER.unpack_from(content)[1]
    if version == 1:
        return None
    if version == FORMAT_VERSION:
        raise JournalDamaged("both copies of its header are damaged")
    raise JournalDamaged(f"it has format version {version}, this program knows version {FORMAT_VERSION}")


def recover_journal(content: bytes, applied: int, recorded: int = 0) -> Recovered:
    """The commits after number `applied`. Raises JournalDamaged if some of them cannot be read. `recorded`: the newest commit
    that the database knows to have been in this journal."""
    header = find_header(content)
    if header is None:
        return _recover_v1(content, applied)
    complaints = _check_file(content, header)
    records, lost = _scan(content, header)
    commits, newest = [], applied
    while (found := records.get(newest + 1)) is not None and found.whole:
        commits.append(decode_changes(found.body()))
        newest += 1
    _check_complete(header, records, applied, newest, recorded)
    _check_next_place(header, records, lost, newest)
    complaints += _bad_copies(header, records, lost, applied)
    return Recovered(commits, complaints)


def _check_file(content: bytes, header: Header) -> list[str]:
    if len(content) < header.size:
        raise JournalDamaged(
            f"it is {len(content)} bytes long and was made {header.size} bytes long: its end is missing"
        )
    complaints = []
    if len(content) > header.size:
        complaints.append(f"it is {len(content) - header.size} bytes longer than it was made")
    for name, at in (("first", 0), ("second", header.size - SECTOR_BYTES)):
        if _decode_header(content[at : at + SECTOR_BYTES]) != header:
            complaints.append(f"the {name} copy of its header is damaged")
    return complaints


def _scan(content: bytes, header: Header) -> tuple[dict[int, _Record], dict[int, bool]]:
    """The readable parts of all records, by number, and the places of bad sectors: True for those that a torn write may leave."""
    records: dict[int, _Record] = {}
    bad: dict[int, bool] = {}
    blank = _blank(header)
    for place in _places(header):
        sector = content[place * SECTOR_BYTES : (place + 1) * SECTOR_BYTES]
        if sector == blank:
            continue
        magic, crc, salt, number, durable, own, start, lap, index, count, size = _SECTOR.unpack_from(sector)
        if (
            crc32c(memoryview(sector)[_SECTOR_CHECKED_AT : _SECTOR.size + size]) != crc
            or own != place
            or not number
        ):
            bad[place] = magic == _SECTOR_MAGIC and salt == header.salt
            continue
        if magic != _SECTOR_MAGIC or salt != header.salt:
            bad[place] = False
            continue
        record = records.setdefault(number, _Record(start, count, lap, durable))
        record.parts[index] = sector[_SECTOR.size : _SECTOR.size + size]
        record.places.add(place)
    return records, bad


def _places(header: Header) -> range:
    return range(_FIRST_PLACE, header.size // SECTOR_BYTES - 1)


def _check_complete(
    header: Header, records: dict[int, _Record], applied: int, newest: int, recorded: int
) -> None:
    """Check that everything known to be durable is present, and that the database is neither older nor newer than this journal."""
    if header.base > applied:
        raise JournalDamaged(
            f"it was begun behind commit {header.base}, and the database ends with commit {applied}: the database is an older copy",
            header.base,
        )
    durable = max((record.durable for record in records.values()), default=0)
    known = max([durable, *(number for number, record in records.items() if record.whole)])
    if known > newest:
        found = "is there" if known in records else "was acknowledged"
        raise JournalDamaged(f"commit {newest + 1} cannot be read, and commit {known} {found}", known)
    if header.synced and max(records, default=header.base) < recorded:
        raise JournalDamaged(
            f"it ends with commit {max(records, default=header.base)}, and the database has commit {recorded} from it: the "
            "journal is an older copy"
        )
    laps = [records[number].lap for number in range(applied + 1, newest + 1)]
    if laps != sorted(laps):
        raise JournalDamaged(f"commits {applied + 1} to {newest} are not of consecutive laps: {laps}")


def _check_next_place(header: Header, records: dict[int, _Record], bad: dict[int, bool], newest: int) -> None:
    """Check that the place of the next record holds old, new or torn sectors only: then nothing was acknowledged there."""
    for extent in _next_extents(header, records, newest):
        lost = [place for place in extent if bad.get(place) is False]
        known = any(place not in bad for place in extent)
        # One lost sector beside an old or new one is a bad sector, or the result of a torn write.
        if len(lost) > (1 if known else 0):
            raise JournalDamaged(
                f"sectors {lost}, behind commit {newest}, hold nothing that was ever written there: commits that were "
                "acknowledged may be missing"
            )


def _next_extents(header: Header, records: dict[int, _Record], newest: int) -> list[range]:
    """Where the record after `newest` is: its sectors if it exists in part, otherwise the first two of each place it may have."""
    if (torn := records.get(newest + 1)) is not None:
        return [range(torn.start, torn.end)]
    places = _places(header)
    last = max((number for number in records if number <= newest), default=0)
    end = records[last].end if last else places.start
    # A larger record begins the next lap although a smaller one would still fit.
    starts = [end] if end + 2 <= places.stop else []
    if end + 2 * _sectors_of(RECORD_BYTES_MAX) > places.stop:
        starts.append(places.start)
    return [range(start, start + 2) for start in starts]


def _bad_copies(header: Header, records: dict[int, _Record], bad: dict[int, bool], applied: int) -> list[str]:
    complaints = []
    for number, record in sorted(records.items()):
        missing = [place for place in range(record.start, record.end) if place not in record.places]
        if number > applied and record.whole and missing:
            complaints.append(
                f"one copy of commit {number} is damaged (sectors {missing}); the other one was used"
            )
    harmed = [place for place, torn in bad.items() if not torn]
    if harmed:
        complaints.append(f"sectors {harmed} hold nothing that was ever written there")
    return complaints


def _sectors_of(size: int) -> int:
    return -(-size // _PAYLOAD_BYTES)


def apply_changes(items: dict[str, bytes], changes: Iterable[StoreChange]) -> None:
    """Apply the changes to a map."""
    for change in changes:
        if isinstance(change, PutItem):
            items[change.key] = change.value
        elif isinstance(change, DeleteItem):
            items.pop(change.key, None)
        else:
            for key in [key for key in items if change.begin <= key < change.end]:
                del items[key]


# --- writing -----------------------------------------------------------------------------------------------------------------


def claim(disk: Disk, path: Path, term: int) -> None:
    """Show the owner of the journal at `path` that its term has ended. Not synced: the owner is a process on this machine, and
    after a power loss there is none. Raises JournalDamaged, and writes nothing, if it is not a journal."""
    file = disk.open(path)
    try:
        header = _header_in(file)
        file.write_at([_TERM.pack(term)], _V1_TERM_AT if header is None else _CLAIM_PLACE * SECTOR_BYTES)
    finally:
        file.close()


class Journal:
    """The journal of one opening of a store, in files of its own, so that an earlier opening never writes into those of a later
    one.

    With a `mirror`, the same bytes are written to a second file, on another volume, and both are synced. A mirror that fails is
    dropped with a complaint: the store needs the first file only.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        term: int,
        applied: int,
        *,
        synced: bool,
        salt: bytes,
        mirror: Path | None = None,
    ) -> None:
        """Create an empty journal in place of any other. The database holds every commit up to `applied`."""
        header = Header(salt, term, applied, JOURNAL_BYTES, synced)
        disk.replace_file(path, empty_journal(header))
        self.newest = applied  # the newest commit: recorded here, or made in the database itself
        self.recorded = applied  # the newest commit that is recorded here
        self.mirror_failure = ""
        self._salt = salt
        self._size = header.size
        self._synced = synced
        self._term = _TERM.pack(term)
        self._file: File = disk.open(path)
        self._mirror: File | None = None
        if mirror is not None:
            self._begin_mirror(disk, mirror, header)
        self._places = _places(header)
        self._at = self._places.start  # where the next record begins
        self._lap = 1
        self._used = 0  # sectors of records that the database lacks, and the unused end of a lap

    def _begin_mirror(self, disk: Disk, path: Path, header: Header) -> None:
        try:
            disk.replace_file(path, empty_journal(header))
            self._mirror = disk.open(path)
        except OSError as error:
            self.mirror_failure = f"{path} cannot be written: {error}"

    def append(self, changes: Sequence[StoreChange]) -> bool:
        """Make one commit durable. Returns False, and writes nothing, if there is no space for it."""
        body = encode_body(changes)
        if len(body) > RECORD_BYTES_MAX:
            return False
        sectors = 2 * _sectors_of(len(body))
        wraps = self._at + sectors > self._places.stop
        skipped = self._places.stop - self._at if wraps else 0
        if self._used + skipped + sectors > len(self._places):
            return False
        if wraps:
            self._at = self._places.start
            self._lap += 1
        durable = self.newest if self._synced else 0
        record = encode_record(self._salt, self.newest + 1, durable, self._at, self._lap, body)
        self._file.write_at(record, self._at * SECTOR_BYTES)
        if self._mirror is not None:
            self._write_mirror(self._mirror, record)
        if self._synced:
            self._file.sync()
        self.newest += 1
        self.recorded = self.newest
        self._at += sectors
        self._used += skipped + sectors
        return True

    def _write_mirror(self, mirror: File, record: list[bytes]) -> None:
        try:
            mirror.write_at(record, self._at * SECTOR_BYTES)
            if self._synced:
                mirror.sync()
        except OSError as error:
            self._mirror = None
            self.mirror_failure = f"{mirror.path} cannot be written: {error}"
            mirror.close()

    @property
    def claimed(self) -> bool:
        """Whether the store was opened again since: the last write may have come too late for that opening."""
        return self._file.read_at(_TERM.size, _CLAIM_PLACE * SECTOR_BYTES) != self._term

    def is_linked(self) -> bool:
        """Whether the names of the file and its mirror still refer to the open files, and these have their length."""
        files = [self._file, *([self._mirror] if self._mirror is not None else [])]
        return all(file.is_linked() and file.size() >= self._size for file in files)

    def release(self, newest: int) -> None:
        """Free the space of the commits up to `newest`, which the database holds."""
        self.newest = newest
        self._used = 0

    def close(self) -> None:
        self._file.close()
        if self._mirror is not None:
            self._mirror.close()


# --- format 1 ----------------------------------------------------------------------------------------------------------------

# Read when a store of that format is opened, and never written. A file header (magic, version, term), then records back to back
# from offset 16 on: magic, CRC32C of the rest, number, length, body. The file was written from its beginning in each lap.
_V1_FILE_HEADER: Final = struct.Struct("<4sIQ")
_V1_TERM_AT: Final = 8
_V1_RECORD_MAGIC: Final = b"VLMR"
_V1_RECORD_HEADER: Final = struct.Struct("<4sIQI")
_V1_CHECKED_AT: Final = 8


def _recover_v1(content: bytes, applied: int) -> Recovered:
    """Recover by the rules of format 1: a bad newest record counts as torn, because there is only one copy."""
    at, newest, commits = _V1_FILE_HEADER.size, 0, []
    for number, body, end in _whole_v1_records(content, at):
        if newest and number != newest + 1:
            break  # a rest of an older lap
        if newest == 0 and number > applied + 1:
            raise JournalDamaged(f"it begins with commit {number}, and the store ends with {applied}")
        at, newest = end, number
        if number > applied:
            commits.append(decode_changes(body))
    newest = max(newest, applied)
    _check_nothing_newer_v1(content, at, newest)
    return Recovered(commits, _torn_v1(content, at, newest))


def _whole_v1_records(content: bytes, at: int) -> Iterator[tuple[int, bytes, int]]:
    """(number, body, end) of the good records that follow each other from `at` on."""
    while (found := _v1_record_at(content, at)) is not None:
        yield found
        at = found[2]


def _v1_record_at(content: bytes, at: int) -> tuple[int, bytes, int] | None:
    if at + _V1_RECORD_HEADER.size > len(content):
        return None
    magic, crc, number, size = _V1_RECORD_HEADER.unpack_from(content, at)
    end = at + _V1_RECORD_HEADER.size + size
    if magic != _V1_RECORD_MAGIC or end > len(content):
        return None
    if crc32c(memoryview(content)[at + _V1_CHECKED_AT : end]) != crc:
        return None
    return number, content[at + _V1_RECORD_HEADER.size : end], end


def _check_nothing_newer_v1(content: bytes, at: int, newest: int) -> None:
    while (at := content.find(_V1_RECORD_MAGIC, at)) >= 0:
        found = _v1_record_at(content, at)
        if found is not None and found[0] > newest:
            raise JournalDamaged(f"commit {newest + 1} cannot be read, and commit {found[0]} is there")
        # Bytes inside a record of an older lap are part of some value.
        at = found[2] if found is not None else at + 1


def _torn_v1(content: bytes, at: int, newest: int) -> list[str]:
    if at + _V1_RECORD_HEADER.size > len(content):
        return []
    magic, _, number, _ = _V1_RECORD_HEADER.unpack_from(content, at)
    if magic != _V1_RECORD_MAGIC or number != newest + 1:
        return []
    return [
        f"commit {number}, the newest, cannot be read: it counts as torn, for format 1 has one copy of it"
    ]
