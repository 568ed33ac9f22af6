"""Finds and repairs ranges of a segment that do not match their checksums.

A range lies between two points of the index. Where it begins and ends, in entries and in bytes, is known whatever its own bytes
are now; and committed bytes never change and are the same on every replica (law 3). So a copy from another replica, of exactly the
same size, is written over the damage while the replica continues to serve. Doing it twice is harmless, and a crash in the middle
leaves damage that is found like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from varlog.model.batch import HEADER_BYTES, BatchHeader, Buffer, check_body, pack, parse_header, place_batch
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch
from varlog.model.ids import ProducerID
from varlog.model.limits import ENTRY_BYTES_MAX
from varlog.model.lsn import LLSN
from varlog.runtime.disk import File
from varlog.storage.committed.segment import Segment

# The epochs in which entries were ordered: (begin, end, epoch), in order. There are as few as there were seals.
Ordered = Sequence[tuple[LLSN, LLSN, Epoch]]


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Entries [begin, end), all committed, from `offset` on. They fill `size` bytes; where not `exact` (nothing behind them says
    where they end: the log's newest) they are somewhere within them."""

    segment: Segment
    begin: LLSN
    end: LLSN
    offset: int
    size: int
    exact: bool

    def parts(self) -> Iterator[BlockRange]:
        """The same range from point to point: the smallest parts that are repaired."""
        index = self.segment.index
        first, last = index.at_or_before(self.begin), index.at_or_before(LLSN(self.end - 1))
        for point in range(first, last):
            begin, offset = index.llsn(point), index.offset(point)
            yield BlockRange(
                self.segment, begin, index.llsn(point + 1), offset, index.offset(point + 1) - offset, True
            )
        offset = index.offset(last)
        rest = self.offset + self.size - offset
        yield BlockRange(self.segment, index.llsn(last), self.end, offset, rest, self.exact)


@dataclass(frozen=True, slots=True)
class Corruption:
    """A damaged range, and what is wrong with it."""

    begin: LLSN
    end: LLSN
    what: str


def find_block_range(segment: Segment, llsn: LLSN, limit: LLSN, bytes_max: int, *, whole: bool) -> BlockRange:
    """The range from the last point at or before `llsn` on: as far as `bytes_max` allows and not beyond `limit`, but at least
    to the next point. `whole`: the segment is closed and ends at `limit`. Touches memory only."""
    index = segment.index
    point = index.at_or_before(llsn)
    begin, offset = index.llsn(point), index.offset(point)
    last = max(point + 1, index.last_within(limit, offset + bytes_max))
    if last < len(index) and index.llsn(last) <= limit:
        return BlockRange(segment, begin, index.llsn(last), offset, index.offset(last) - offset, True)
    return BlockRange(segment, begin, limit, offset, segment.size - offset, whole)


def read_block_range(blocks: BlockRange) -> bytes:
    """The bytes of the range, or none if they cannot be read."""
    try:
        opened = blocks.segment.borrow()
        return opened.file.read_at(blocks.size, blocks.offset)
    except OSError:
        return b""


def examine_block_range(blocks: BlockRange, ordered: Ordered = ()) -> list[Corruption]:
    """Read the range and check every checksum in it, and that its batches are those that were ordered; what is damaged, point to
    point. FileNotFoundError if it was trimmed."""
    opened = blocks.segment.borrow()
    try:
        _check(blocks, opened.file.read_at(blocks.size, blocks.offset), ordered)
        return []
    except (CorruptBatch, OSError):
        pass  # which part of it is damaged is found out below
    corrupt = []
    for part in blocks.parts():
        try:
            _check(part, opened.file.read_at(part.size, part.offset), ordered)
        except CorruptBatch as problem:
            corrupt.append(Corruption(part.begin, part.end, problem.what))
        except OSError as error:
            # A sector that the device cannot read is damage as well, and rewriting it is the remedy.
            corrupt.append(Corruption(part.begin, part.end, f"it cannot be read: {error}"))
    return corrupt


def _check(blocks: BlockRange, data: Buffer, ordered: Ordered) -> None:
    size = check_batches(data, blocks.begin, blocks.end, ordered)
    if blocks.exact and size != blocks.size:
        raise CorruptBatch(f"its batches are {size} bytes, and should be {blocks.size}", blocks.offset)


def check_batches(data: Buffer, begin: LLSN, end: LLSN, ordered: Ordered = ()) -> int:
    """Check that batches of exactly the entries [begin, end) begin `data`, each of them whole and as it was ordered; returns their
    bytes."""
    view = memoryview(data)
    at, llsn = 0, begin
    while llsn < end:
        header = parse_header(view, at)
        if header.first_llsn != llsn:
            raise CorruptBatch(f"it begins at LLSN {header.first_llsn}, not {llsn}", at)
        check_body(view, header, at)
        check_ordered(header, ordered, at)
        at, llsn = at + header.size, header.end_llsn
    if llsn != end:
        raise CorruptBatch(f"its last batch ends at LLSN {llsn}, not {end}", at)
    return at


def check_ordered(header: BatchHeader, ordered: Ordered, at: int) -> None:
    """CorruptBatch if the batch is of another epoch than the one in which its entries were ordered: a seal had cut it off, and it
    came back with an older copy of the file. A batch without a row is not checked."""
    for begin, end, epoch in ordered:
        if begin <= header.first_llsn < end and epoch != header.epoch:
            raise CorruptBatch(
                f"a batch of epoch {header.epoch} is where LLSN {header.first_llsn} of epoch {epoch} was ordered",
                at,
            )


def repair(segment: Segment, begin: LLSN, end: LLSN, copy: Buffer, low_llsn: LLSN) -> None:
    """Write `copy`, the batches of entries [begin, end) of another replica, over what is here, and sync. In the worker that alone
    writes to the segment. CorruptBatch: the copy is bad, or not of these entries; then nothing was written.

    What is trimmed on the other replica (below `low_llsn`) the copy may lack: see `_filler`.
    """
    offset, space = _space_of(segment, begin, end)
    header = parse_header(copy)
    first = header.first_llsn
    size = check_batches(copy, first, end)
    if size != len(copy):
        raise CorruptBatch(f"the copy has {len(copy) - size} bytes too many")
    parts = [copy]
    if begin < first <= low_llsn:
        ahead = space - size if space is not None else _bytes_before(segment, offset, copy)
        parts.insert(0, _filler(begin, first, ahead, header.epoch))
    elif first != begin or (space is not None and size != space):
        raise CorruptBatch(
            f"a copy of {size} bytes from LLSN {first} on is not what was at LLSN {begin}", offset
        )
    opened = segment.borrow()
    if space is None:
        _check_follows(opened.file, offset + sum(map(len, parts)), end)
    opened.file.write_at(parts, offset)
    opened.file.sync()
    check_batches(opened.file.read_at(sum(map(len, parts)), offset), begin, end)


def fill_block_range(segment: Segment, begin: LLSN, end: LLSN, epoch: Epoch) -> None:
    """Write a batch of the same size over the trimmed entries [begin, end), and sync. CorruptBatch: their size is not known."""
    offset, space = _space_of(segment, begin, end)
    if space is None:
        raise CorruptBatch(f"where LLSN {end} begins is not known", offset)
    opened = segment.borrow()
    opened.file.write_at([_filler(begin, end, space, epoch)], offset)
    opened.file.sync()


def intact_bytes(data: Buffer, llsn: LLSN, end: LLSN, ordered: Ordered = ()) -> tuple[int, LLSN]:
    """How many bytes of `data` are intact batches, back to back from the one with `llsn` on, as they were ordered and none behind
    `end`; and the LLSN at which they end."""
    view, at = memoryview(data), 0
    try:
        while llsn < end:
            header = parse_header(view, at)
            if header.first_llsn != llsn and (at or not header.first_llsn < llsn < header.end_llsn):
                break
            check_body(view, header, at)
            check_ordered(header, ordered, at)
            at, llsn = at + header.size, header.end_llsn
    except CorruptBatch:
        pass
    return at, llsn


def _space_of(segment: Segment, begin: LLSN, end: LLSN) -> tuple[int, int | None]:
    """Where the entries [begin, end) are, and how many bytes they have; None if no point of the index says so."""
    index = segment.index
    point = index.at_or_before(begin)
    offset, found = index.offset(point), index.llsn(point)
    after = point + 1 < len(index)
    next_llsn = index.llsn(point + 1) if after else segment.end_llsn
    if found != begin or end > next_llsn:
        raise CorruptBatch(f"LLSNs [{begin}, {end}) are not between two points of the index", offset)
    space = (index.offset(point + 1) if after else segment.size) - offset
    return offset, space if end == next_llsn else None


def _bytes_before(segment: Segment, offset: int, copy: Buffer) -> int:
    """How many bytes lie between `offset` and the same bytes as `copy`, where neither headers nor index say so."""
    here = segment.borrow().file.read_at(segment.size - offset, offset)
    if (found := bytes(here).find(copy)) < 0:
        raise CorruptBatch("what can be read is damaged as well, so that its offset is not known", offset)
    return found


def _check_follows(file: File, at: int, end: LLSN) -> None:
    """Check that entries that are not committed yet continue after the copy, as far as they can be read."""
    try:
        header = parse_header(file.read_at(HEADER_BYTES, at))
    except CorruptBatch:
        return  # damaged as well: repaired once it is committed
    if header.first_llsn != end:
        raise CorruptBatch(f"LLSN {header.first_llsn} follows the copy, not {end}", at)


def _filler(begin: LLSN, end: LLSN, size: int, epoch: Epoch) -> bytearray:
    """A batch of exactly `size` bytes in the place of trimmed entries. They are never read (law 9), but the readable ones behind
    are reached over their headers, and no replica has the old bytes any more. It has the epoch of what follows: an older one
    could look like a tail behind a seal."""
    count = end - begin
    spare = size - HEADER_BYTES - 4 * (count + 1)
    if spare < 0:
        raise CorruptBatch(f"LLSNs [{begin}, {end}) were never in {size} bytes")
    sizes = [max(0, min(ENTRY_BYTES_MAX, spare - number * ENTRY_BYTES_MAX)) for number in range(count)]
    batch = pack([bytes(size) for size in sizes], producer=ProducerID(0), sequence=0, time_us=0)
    place_batch(batch, epoch, begin)
    return batch
