"""[A2] PURE. Idempotent writes: which rows exist, which are left (R-USE-4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from varlog.model.errors import VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.lsn import LLSN

# A row of at least this length is remembered by a digest of this length.
_DIGEST_BYTES: Final = 16


class IndeterminateInput(VarlogError):
    """An earlier attempt wrote rows that this one does not have: they are in the log, and nothing was written twice."""

    def __init__(self, log_stream: LogStreamID, rows: int) -> None:
        super().__init__(log_stream, rows)
        self.log_stream = log_stream
        self.rows = rows

    def message(self) -> str:
        return (
            f"an earlier attempt of this write brought {self.rows} rows into log stream {self.log_stream} that are not among the "
            f"rows of this attempt: the input, or how it is cut into tasks, is not the same each time. This attempt wrote nothing "
            f"twice, and what was written stays. Make the input deterministic (in Spark: option orderBy, or write it to files "
            f"first and these to the log), and write it again"
        )


class TrimmedWrite(VarlogError):
    """Part of what an earlier attempt wrote is trimmed: its rows cannot be determined any more."""

    def __init__(self, log_stream: LogStreamID, begin: int, end: int) -> None:
        super().__init__(log_stream, begin, end)
        self.log_stream = log_stream
        self.begin = begin
        self.end = end

    def message(self) -> str:
        return (
            f"batches {self.begin} to {self.end - 1} that an earlier attempt of this write brought into log stream "
            f"{self.log_stream} were trimmed before the write ended: whether their rows are those of this attempt is not known. "
            f"Trim only what finished writes have written"
        )


class Recorded(NamedTuple):
    """A batch of the sequence that is in the log."""

    sequence: int
    llsn: LLSN
    rows: int
    body_crc: int


class Mine(NamedTuple):
    """A batch of the sequence as this attempt has it."""

    sequence: int
    rows: int
    body_crc: int


def same(mine: Mine, recorded: Recorded) -> bool:
    return mine == (recorded.sequence, recorded.rows, recorded.body_crc)


def common(mine: Sequence[Mine], recorded: Sequence[Recorded]) -> int:
    """How many of this attempt's batches, from the first on, equal those in the log."""
    for index, (one, other) in enumerate(zip(mine, recorded, strict=False)):
        if not same(one, other):
            return index
    return min(len(mine), len(recorded))


def behind(position: int, recorded: Sequence[Recorded], log_stream: LogStreamID) -> list[Recorded]:
    """The batches in the log after batch number `position`, without a gap; raises TrimmedWrite if there is one."""
    rest = [one for one in recorded if one.sequence > position]
    for expected, one in enumerate(rest, position + 1):
        if one.sequence != expected:
            raise TrimmedWrite(log_stream, expected, one.sequence)
    return rest


class Rows:
    """Rows that others wrote in this sequence and that have not appeared in this attempt's own input yet, each with its
    multiplicity. Long rows are kept as digests, because there may be very many."""

    def __init__(self) -> None:
        self._rows: Counter[bytes] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Iterable[bytes]) -> None:
        names = list(map(_name, rows))
        self._rows.update(names)
        self._count += len(names)

    def leave_out(self, rows: Sequence[bytes]) -> list[bytes]:
        """The given rows that no other attempt has written, in their order. Rows found are counted off."""
        left: list[bytes] = []
        held = self._rows
        for row in rows:
            name = _name(row)
            if held.get(name, 0) > 0:
                held[name] -= 1
                if not held[name]:
                    del held[name]
                self._count -= 1
            else:
                left.append(row)
        return left


def _name(row: bytes) -> bytes:
    # Shorter than a digest, so it cannot be mistaken for one.
    return row if len(row) < _DIGEST_BYTES else blake2b(row, digest_size=_DIGEST_BYTES).digest()
