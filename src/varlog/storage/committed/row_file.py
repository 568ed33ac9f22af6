"""[A9] The file `commits.log`: one 64-byte row per commit context.

Each row has its CRC; a header of the same size comes first.

offset  size  field of the header          offset  size  field of a row (little endian)
     0     4  magic "VLC1"                      0     8  version of the cut
     4     2  format version                    8     8  topic's high watermark after it
     6     2  bytes of a row                   16     8  topic's high watermark before it
     8     8  topic                            24     8  GLSN of the first entry
    16     8  log stream                       32     8  LLSN of the first entry
    24     8  begin: first LLSN (0 means 1)    40     8  count of entries
    32    28  reserved, zero                   48     8  synced: rows before it that were durable when it was written
    60     4  CRC32C of bytes 0 to 59
                                               56     4  epoch
                                               60     4  CRC32C of bytes 0 to 59

A row whose count is 0 is the end mark. It is written, unsynced, behind rows that were just synced, and the next rows overwrite it.
A clean stop syncs it, and so does a start that finds damage.
`synced` and the mark distinguish a torn write from damage: a bad row that nothing proves durable was being written when the power
failed, and is cut; a bad row that was durable once is damage, because the repository may have forgotten it.

`begin` is above 1 in a replica that was filled from another one whose older entries were trimmed: those never existed here.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from varlog.model.batch import Buffer, crc32c
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, CorruptReplica
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN
from varlog.runtime.disk import File
from varlog.storage.segment_file import ReadFileAt

ROWS_NAME: Final = "commits.log"
ROW_BYTES: Final = 64
_FORMAT_VERSION: Final = 1

_MAGIC: Final = b"VLC1"
_HEADER = struct.Struct("<4sHHQQQ28x")
_ROW = struct.Struct("<QQQQQQQI")
_CRC = struct.Struct("<I")
_CHECKED: Final = ROW_BYTES - _CRC.size
# Rows that are read and checked at a time: a million of them must not need their 64 MB in memory at once.
_WINDOW_ROWS: Final = 16_384

_FIELDS: Final = ("version", "high_watermark", "previous_high_watermark", "glsn", "llsn", "count", "synced")
ROW_TYPE: Final = np.dtype([*((field, "<i8") for field in _FIELDS), ("epoch", "<u4"), ("crc", "<u4")])

RowArray = NDArray[np.void]


def encode_row_header(topic: TopicID, log_stream: LogStreamID, begin: LLSN = FIRST_LLSN) -> bytes:
    """The first bytes of the file."""
    stored_begin = begin if begin > FIRST_LLSN else 0
    head = _HEADER.pack(_MAGIC, _FORMAT_VERSION, ROW_BYTES, topic, log_stream, stored_begin)
    return head + _CRC.pack(crc32c(head))


def check_row_header(content: Buffer, topic: TopicID, log_stream: LogStreamID, path: Path) -> LLSN:
    """Refuse a file that is damaged at its start, of an unknown version, or of another replica. Returns where its rows begin."""
    if len(content) < ROW_BYTES or _CRC.unpack_from(content, _CHECKED)[0] != crc32c(content[:_CHECKED]):
        raise CorruptReplica(str(path), "its header's checksum is wrong")
    magic, version, row_bytes, of_topic, of_log_stream, begin = _HEADER.unpack_from(content)
    if magic != _MAGIC or version != _FORMAT_VERSION or row_bytes != ROW_BYTES:
        raise CorruptReplica(str(path), f"it has no known format (this is version {_FORMAT_VERSION})")
    if (of_topic, of_log_stream) != (topic, log_stream):
        raise CorruptReplica(
            str(path), f"it is of log stream {of_log_stream} of topic {of_topic}, not {log_stream} of {topic}"
        )
    return LLSN(max(begin, FIRST_LLSN))


def encode_row(row: CommitRow, synced: int) -> bytes:
    """One row, written when `synced` rows before it were durable."""
    body = _ROW.pack(
        row.version,
        row.high_watermark,
        row.previous_high_watermark,
        row.glsn_begin,
        row.llsn_begin,
        row.count,
        synced,
        row.epoch,
    )
    return body + _CRC.pack(crc32c(body))


def encode_end_mark(rows: int) -> bytes:
    """The mark behind `rows` durable rows."""
    body = _ROW.pack(0, 0, 0, 0, 0, 0, rows, 0)
    return body + _CRC.pack(crc32c(body))


def encode_row_file(
    topic: TopicID, log_stream: LogStreamID, rows: RowArray, begin: LLSN = FIRST_LLSN
) -> bytes:
    """The content of a whole file, which replaces the old one atomically: every row in it is durable."""
    signed = rows.copy()
    signed["synced"] = np.arange(len(rows))
    signed["crc"] = _row_crcs(signed)
    return encode_row_header(topic, log_stream, begin) + signed.tobytes() + encode_end_mark(len(rows))


def good_rows(rows: RowArray) -> NDArray[np.bool_]:
    """Which of the rows match their checksums."""
    good: NDArray[np.bool_] = (rows["crc"] == _row_crcs(rows)) & (rows["count"] > 0)
    return good


def row_at(rows: RowArray, number: int) -> CommitRow:
    """Row `number` of an array, as the model has it."""
    version, high, previous, glsn, llsn, count, _, epoch, _ = rows[number].item()
    return CommitRow(version, GLSN(high), GLSN(previous), GLSN(glsn), LLSN(llsn), count, Epoch(epoch))


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The content of a row file: columns of its good rows, the last of them, and how the file ends after them."""

    llsns: NDArray[np.int64]
    glsns: NDArray[np.int64]
    counts: NDArray[np.int64]
    torn: bool  # behind the good rows is something else than one end mark
    marked: bool  # an end mark is right behind the good rows
    proven: int  # how many of the good rows were durable, by a later row or the end mark
    begin: LLSN = FIRST_LLSN  # what is ordered here begins there

    def __len__(self) -> int:
        return len(self.llsns)

    @property
    def end_llsn(self) -> LLSN:
        """One past the last entry that the rows order."""
        return LLSN(int(self.llsns[-1] + self.counts[-1])) if len(self.llsns) else self.begin

    def within(self, written_end: LLSN) -> int:
        """How many rows order only entries below `written_end` (R-CTX-3)."""
        return int(np.searchsorted(self.llsns + self.counts, written_end, side="right"))


def read_rows(read: ReadFileAt, file_bytes: int, path: Path, begin: LLSN = FIRST_LLSN) -> FoundRows:
    """All rows, checked without a loop over them; CorruptReplica if one that was durable is bad."""
    llsns, glsns, counts = [], [], []
    good, claimed, marked, at_end = 0, 0, False, False
    for rows in _windows(read, file_bytes):
        valid = rows["crc"] == _row_crcs(rows)
        if valid.any():
            claimed = max(claimed, int(rows["synced"][valid].max()))
        if at_end:
            continue  # only to learn whether a later row proves an earlier one durable
        end = _first(~valid | (rows["count"] <= 0))
        if end < len(rows):
            at_end = True
            marked = bool(valid[end]) and int(rows["synced"][end]) == good + end
        llsns.append(rows["llsn"][:end].copy())
        glsns.append(rows["glsn"][:end].copy())
        counts.append(rows["count"][:end].copy())
        good += end
    if claimed > good:
        raise CorruptReplica(
            str(path), f"row {good} (byte {ROW_BYTES * (good + 1)}) is bad, and was durable once"
        )
    torn = file_bytes != ROW_BYTES * (1 + good + marked) and file_bytes != ROW_BYTES * (1 + good)
    found = FoundRows(_joined(llsns), _joined(glsns), _joined(counts), torn, marked, claimed, begin)
    _check_continuity(found, path)
    return found


def read_row(read: ReadFileAt, number: int) -> CommitRow:
    """One row by its place in the file; it was checked before."""
    rows = np.frombuffer(read(ROW_BYTES, ROW_BYTES * (number + 1)), ROW_TYPE)
    return row_at(rows, 0)


def find_rows(file: File, llsn: LLSN, rows_max: int) -> list[CommitRow]:
    """Up to `rows_max` rows of the file, merged, from the one that orders `llsn` on; none if it is not in the file.

    Searched in the file as it is, by its own size, so that it may run while the file is replaced by a smaller one.
    """
    count = file.size() // ROW_BYTES - 1
    if count > 0 and _row_in(file, count - 1)["count"] == 0:
        count -= 1  # the end mark
    number = bisect_right(range(count), llsn, key=lambda number: LLSN(int(_row_in(file, number)["llsn"]))) - 1
    if number < 0:
        return []
    read = file.read_at(ROW_BYTES * min(rows_max, count - number), ROW_BYTES * (number + 1))
    rows = np.frombuffer(read, ROW_TYPE)
    if not good_rows(rows).all():  # also one that was never written: a device may lose a write
        raise CorruptBatch("a commit row is bad", ROW_BYTES * (number + 1), str(file.path))
    merged = merge_rows(rows)
    return [row for row in (row_at(merged, at) for at in range(len(merged))) if row.llsn_end > llsn]


def _row_in(file: File, number: int) -> np.void:
    row: np.void = np.frombuffer(file.read_at(ROW_BYTES, ROW_BYTES * (number + 1)), ROW_TYPE)[0]
    return row


def merge_rows(rows: RowArray) -> RowArray:
    """Rows that continue exactly where the one before ended, in both orders and in one epoch, become one (CommitRow.merged)."""
    if len(rows) < 2:
        return rows
    earlier, later = rows[:-1], rows[1:]
    follows = (later["glsn"] == earlier["glsn"] + earlier["count"]) & (later["epoch"] == earlier["epoch"])
    begins = np.flatnonzero(np.concatenate(([True], ~follows)))
    ends = np.append(begins[1:], len(rows)) - 1
    merged = rows[begins].copy()
    merged["count"] = np.add.reduceat(rows["count"], begins)
    merged["version"] = rows["version"][ends]
    merged["high_watermark"] = rows["high_watermark"][ends]
    return merged


def merge_adjacent(rows: Sequence[CommitRow]) -> list[CommitRow]:
    """The same for rows that are not in the file yet."""
    merged: list[CommitRow] = []
    for row in rows:
        if merged and row.follows(merged[-1]):
            merged[-1] = merged[-1].merged(row)
        else:
            merged.append(row)
    return merged


def _windows(read: ReadFileAt, file_bytes: int) -> Iterator[RowArray]:
    total = file_bytes // ROW_BYTES - 1
    for begin in range(0, total, _WINDOW_ROWS):
        count = min(_WINDOW_ROWS, total - begin)
        yield np.frombuffer(read(count * ROW_BYTES, (begin + 1) * ROW_BYTES), ROW_TYPE)


def _first(mask: NDArray[np.bool_]) -> int:
    """The place of the first True, or the length."""
    return int(mask.argmax()) if mask.any() else len(mask)


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _check_continuity(found: FoundRows, path: Path) -> None:
    """Rows order entries without a gap in LLSN and never go back in GLSN (laws 3, 4)."""
    llsns, glsns, counts = found.llsns, found.glsns, found.counts
    gap = (llsns[1:] != llsns[:-1] + counts[:-1]) | (glsns[1:] < glsns[:-1] + counts[:-1])
    if gap.any():
        raise CorruptReplica(
            str(path), f"row {_first(gap) + 1} does not continue where the row before it ended"
        )


@cache
def _crc_tables() -> tuple[int, NDArray[np.uint32]]:
    """CRC32C of a row of zeros, and what each value of each byte changes in it.

    A CRC is linear: with the length fixed, each byte flips the same bits of the result whatever the other bytes are. So the
    checksums of many rows are sixty lookups of whole columns instead of a call per row.
    """
    base = crc32c(bytes(_CHECKED))
    tables = np.zeros((_CHECKED, 256), np.uint32)
    for place in range(_CHECKED):
        for bit in range(8):
            row = bytearray(_CHECKED)
            row[place] = 1 << bit
            # Each value is one with a bit less, plus that bit.
            tables[place, 1 << bit : 2 << bit] = tables[place, : 1 << bit] ^ np.uint32(crc32c(row) ^ base)
    return base, tables


def _row_crcs(rows: RowArray) -> NDArray[np.uint32]:
    base, tables = _crc_tables()
    columns = np.ascontiguousarray(np.ascontiguousarray(rows).view(np.uint8).reshape(-1, ROW_BYTES).T)
    crcs = np.full(len(rows), base, np.uint32)
    for place in range(_CHECKED):
        crcs ^= tables[place][columns[place]]
    return crcs
