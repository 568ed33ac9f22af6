"""ReceivedRows: what the emulated nodes received, and whether it is one order.

Pure. `ReceivedRows` are the rows that all replicas received, as columns; every check names the first row that breaks it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.ordering.load import Ints


class OrderBroken(Exception):
    """The repository has sent an order that breaks a law."""


@dataclass(frozen=True, slots=True)
class ReceivedRows:
    """Rows in the order in which each replica got them: entries `llsn + i` of `stream` are at `glsn + i` for 0 <= i < count."""

    replica: Ints
    stream: Ints
    llsn: Ints
    glsn: Ints
    count: Ints

    @classmethod
    def of(cls, columns: Ints) -> ReceivedRows:
        """`columns`: [5, rows] in the order of the fields."""
        return cls(*columns)


def check_order(rows: ReceivedRows, ends: Ints, topics: Ints, copies: int) -> int:
    """Laws 3 and 4, for a run from the first position on: `ends` is how far each stream must be, `topics` its topic. Returns how
    many entries were ordered. OrderBroken if anything is missing, twice, or not the same everywhere."""
    if (rows.count <= 0).any():
        raise OrderBroken("a row is empty")
    by_replica = [_of_replica(rows, replica, ends) for replica in range(copies)]
    for replica in range(1, copies):
        for primary, other in zip(by_replica[0], by_replica[replica], strict=True):
            if len(primary) != len(other) or (primary != other).any():
                raise OrderBroken(f"replica {replica} received another order than the primary")
    stream, _, glsn, count = by_replica[0]
    for topic in np.unique(topics):
        _check_dense(f"topic {topic}", glsn[topics[stream] == topic], count[topics[stream] == topic])
    return int(count.sum())


def _of_replica(rows: ReceivedRows, replica: int, ends: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Its rows by stream, those that continue in both orders merged: a slow node receives the same in fewer rows."""
    mine = np.flatnonzero(rows.replica == replica)
    # Stable: the rows of one stream stay in the order in which they came.
    mine = mine[np.argsort(rows.stream[mine], kind="stable")]
    stream, llsn, glsn, count = rows.stream[mine], rows.llsn[mine], rows.glsn[mine], rows.count[mine]
    if len(np.unique(stream)) != len(ends):
        raise OrderBroken(f"replica {replica}: {len(ends) - len(np.unique(stream))} streams received nothing")
    first = np.flatnonzero(np.diff(stream, prepend=-1))
    same = stream[1:] == stream[:-1]
    wrong = np.flatnonzero(same & (llsn[1:] != llsn[:-1] + count[:-1]))
    if len(wrong) or (llsn[first] != 1).any():
        at = int(wrong[0]) + 1 if len(wrong) else int(first[np.flatnonzero(llsn[first] != 1)[0]])
        raise OrderBroken(f"replica {replica}: stream {stream[at]} has a gap or a double at LLSN {llsn[at]}")
    last = np.append(first[1:], len(stream)) - 1
    reached = llsn[last] + count[last]
    if (reached != ends).any():
        at = int(np.flatnonzero(reached != ends)[0])
        raise OrderBroken(
            f"replica {replica}: stream {at} ends at {reached[at]}, and {ends[at]} was reported"
        )
    goes_on = np.append(False, same & (glsn[1:] == glsn[:-1] + count[:-1]))
    begins = np.flatnonzero(~goes_on)
    return stream[begins], llsn[begins], glsn[begins], np.add.reduceat(count, begins)


def _check_dense(what: str, glsn: Ints, count: Ints) -> None:
    order = np.argsort(glsn)
    glsn, count = glsn[order], count[order]
    wrong = np.flatnonzero(glsn[1:] != glsn[:-1] + count[:-1])
    if glsn[0] != 1 or len(wrong):
        at = int(wrong[0]) + 1 if len(wrong) else 0
        raise OrderBroken(f"{what}: GLSNs have a gap or a double at {glsn[at]}")
