"""RangeBytes: how many bytes a range of entries has on disk, of either ordering."""

from __future__ import annotations

from dataclasses import dataclass

from varlog.model.lsn import LLSN


@dataclass(frozen=True, slots=True)
class RangeBytes:
    """An estimate in bytes, and `points`: (LLSN, bytes before it), increasing, inside the range, each the start of a batch."""

    bytes: int
    points: tuple[tuple[LLSN, int], ...]
