"""PURE. Decides Spark's exactly-once: which task attempts are the same write.

Spark runs a task again after a failure, and sometimes twice at once. Every attempt of a task computes the same producer id
(`producer_of`), so that all of them extend the same sequence of batches, and the log appends each batch of it once
(client/writers/idempotent.py). The first attempt fixes the log streams and the begin of the write (`begin_write` in task.py), and
the write ends when every task has reported (`committed_write`): from then on it is recognised as done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from varlog.model.ids import ProducerID
from varlog.spark.write.input_rules import InputError


@dataclass(frozen=True, slots=True)
class Write:
    """One write of many tasks: batch `batch` of the writer `name`. `kept`: the same write may be repeated much later."""

    name: str
    batch: int
    kept: bool


def producer_of(topic: int, write: Write, partition: int) -> ProducerID:
    """The same for every attempt of a task, in any process, and for no other task: 63 bits of a hash."""
    identity = f"{topic}\0{write.batch}\0{partition}\0{write.name}"
    return ProducerID(int.from_bytes(blake2b(identity.encode(), digest_size=8).digest(), "little") >> 1 or 1)


def committed_write(written: Iterable[Write | None]) -> Write | None:
    """The write whose tasks have all reported; None if it had none. Refuses messages that are missing or of several writes."""
    reports = list(written)
    if None in reports:
        raise InputError(
            f"{reports.count(None)} of {len(reports)} tasks did not report what they wrote: the write is not complete"
        )
    writes = {write for write in reports if write is not None}
    if len(writes) > 1:
        raise InputError(f"the tasks of one write belong to several: {sorted(map(str, writes))}")
    return writes.pop() if writes else None


def left_behind(topic: str, write: Write | None, *, stream: bool) -> str:
    """What is in the log of a failed write, and how to complete it."""
    if stream:
        remedy = "start the query again with the same checkpoint: it completes this batch, and nothing is duplicated"
    elif write is not None and write.kept:
        remedy = (
            f"run the same job again (writer {write.name!r}, batch {write.batch}, the same rows in the same partitions): it "
            "completes the write, and nothing is duplicated"
        )
    else:
        remedy = (
            "a job that has the option 'writer' (a name that is its own) can be run again to complete it without duplicating "
            "anything; this one had none"
        )
    return (
        f"the write to topic {topic!r} failed; what it had written stays in the log. To complete it: {remedy}"
    )
