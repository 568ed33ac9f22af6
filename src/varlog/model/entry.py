"""What a client returns: Position, Run of a batch, Entry, StreamRange."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import msgspec

from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN


class Position(msgspec.Struct, frozen=True, gc=False):
    """Where one entry is: in the topic's total order, and in its log stream."""

    glsn: GLSN
    llsn: LLSN
    log_stream: LogStreamID


class Run(msgspec.Struct, frozen=True, gc=False):
    """Where the entries of one batch are: `count` consecutive positions from `first` on (R-ORD-5)."""

    first: Position
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Position:
        if index < 0:
            index += self.count
        if not 0 <= index < self.count:
            raise IndexError(f"a run of {self.count} entries has no entry {index}")
        first = self.first
        return Position(GLSN(first.glsn + index), LLSN(first.llsn + index), first.log_stream)

    def __iter__(self) -> Iterator[Position]:
        glsn, llsn, log_stream = self.first.glsn, self.first.llsn, self.first.log_stream
        glsns, llsns = range(glsn, glsn + self.count), range(llsn, llsn + self.count)
        return map(Position, glsns, llsns, repeat(log_stream))  # type: ignore[arg-type]

    @property
    def last(self) -> Position:
        return self[self.count - 1]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One entry of the log."""

    glsn: GLSN
    llsn: LLSN
    log_stream: LogStreamID
    time_us: int
    data: bytes

    @property
    def position(self) -> Position:
        return Position(self.glsn, self.llsn, self.log_stream)


class StreamRange(msgspec.Struct, frozen=True, gc=False):
    """LLSNs [begin, end) of a log stream, and roughly how many bytes they have on disk. `points` are (LLSN, bytes
    before it in the range), ascending, strictly inside the range, spaced about evenly in bytes."""

    begin: LLSN
    end: LLSN
    bytes: int
    points: tuple[tuple[LLSN, int], ...] = ()
