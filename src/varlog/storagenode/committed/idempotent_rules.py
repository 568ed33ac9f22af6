"""[A4] PURE. Idempotent appends: accept, duplicate or conflict, per producer.

Each batch of a producer names its predecessor by sequence and body checksum. However often and from wherever the same batches are
sent, they can only extend the sequence, be recognised as duplicates, or conflict with it. A batch that is sent before its
predecessors are acknowledged must follow batches of the same attempt: two attempts with other orders of the same rows may have one
batch in common.

`ProducerSequences` has the newest batch of each producer of one replica in memory; what it has forgotten is on disk. Every
replica records every batch that it receives, so that a backup that becomes the primary knows as much as the old one did. A record
is *pending* until a commit row covers it. An epoch assigns each LLSN to one batch, so a pending record is true exactly if the row
that covers it is of the same epoch. After anything else that happens to a tail (a cut, a sync, a restart) the following rows find
no such records, and the table knows less, but nothing wrong. Records leave it in the order of their LLSNs: from `known_from` on
it knows every producer's newest batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from varlog.model.batch import BatchHeader
from varlog.model.commit import CommitRow
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import ProducerID
from varlog.model.lsn import LLSN, NO_LLSN


class ProducedBatch(NamedTuple):
    """A batch in its producer's sequence. `attempt`: the writer that sent it; 0 where that is not remembered."""

    producer: ProducerID
    sequence: int
    llsn: LLSN
    body_crc: int
    attempt: int = 0


class Sent(NamedTuple):
    """A batch that is to extend a sequence, and what its sender knows of the sequence: see AppendIdempotent."""

    sequence: int
    body_crc: int
    previous_crc: int
    attempt: int = 0
    known: int = 0


class SequenceDecision(Enum):
    """What to do with a batch that was sent as part of a sequence."""

    ACCEPT = "it follows the newest batch"
    DUPLICATE = "the sequence has this very batch"
    CONFLICT = "the sequence has another batch there, or does not reach it yet"


def decide(newest: ProducedBatch | None, sent: Sent) -> SequenceDecision:
    """Decide about a batch; `newest` is the last one of its producer (None: there is none yet)."""
    last = newest if newest is not None else ProducedBatch(ProducerID(0), 0, NO_LLSN, 0)
    if sent.sequence == last.sequence + 1 and sent.previous_crc == last.body_crc:
        follows = sent.attempt in (0, last.attempt) or sent.known == last.sequence
        return SequenceDecision.ACCEPT if follows else SequenceDecision.CONFLICT
    if newest is not None and (sent.sequence, sent.body_crc) == (last.sequence, last.body_crc):
        return SequenceDecision.DUPLICATE
    return SequenceDecision.CONFLICT


def find_batch(batches: Sequence[ProducedBatch], sequence: int, body_crc: int) -> ProducedBatch | None:
    """That batch among those of its producer that are in flight: a sequence that is sent again joins them."""
    return next(
        (batch for batch in batches if (batch.sequence, batch.body_crc) == (sequence, body_crc)), None
    )


# Producers in memory, about a megabyte per replica; the batches of older ones are searched for on disk.
PRODUCERS_MAX: Final = 4_096


class ProducerSequences:
    """What one replica knows of its producers. `known_from`: a producer that is missing here has no committed batch from this LLSN
    on. `resets` counts how often everything was forgotten: a search that was running then is outdated."""

    def __init__(self, committed_end: LLSN) -> None:
        self.known_from = committed_end
        self.resets = 0
        self._epoch = NO_EPOCH
        self._ordered_end = committed_end
        self._noted_end = committed_end
        self._pending: deque[ProducedBatch] = deque()
        self._pending_of: dict[ProducerID, deque[ProducedBatch]] = {}
        self._committed: dict[ProducerID, ProducedBatch] = {}
        # Results of searches on disk below `known_from`: a producer's newest batch, and the LLSN above which it was searched for.
        self._searched: dict[ProducerID, tuple[ProducedBatch | None, LLSN]] = {}

    # --- what happens to the replica -------------------------------------------------------------------------------------

    def open(self, epoch: Epoch, end: LLSN) -> None:
        """An epoch begins, at `end`: what was pending before is committed, or nowhere (law 6)."""
        self._pending.clear()
        self._pending_of.clear()
        if self._ordered_end != end:
            self._forget(end)
        self._epoch, self._ordered_end, self._noted_end = epoch, end, end

    def note(self, header: BatchHeader, llsn: LLSN, attempt: int = 0) -> None:
        """Record a batch that was received after everything else of this epoch."""
        batch = ProducedBatch(header.producer, header.sequence, llsn, header.body_crc, attempt)
        self._pending.append(batch)
        batches = self._pending_of.get(batch.producer)
        if batches is None:
            self._pending_of[batch.producer] = deque((batch,))
        else:
            batches.append(batch)
        self._noted_end = LLSN(llsn + header.count)

    def ordered(self, row: CommitRow) -> None:
        """The entries of `row` are committed."""
        noted = (
            row.epoch == self._epoch
            and row.llsn_begin == self._ordered_end
            and row.llsn_end <= self._noted_end
        )
        if not noted:
            self._forget(row.llsn_end)
        self._ordered_end = row.llsn_end
        pending, pending_of = self._pending, self._pending_of
        while pending and pending[0].llsn < row.llsn_end:
            batch = pending.popleft()
            batches = pending_of[batch.producer]
            batches.popleft()
            if not batches:
                del pending_of[batch.producer]
            if noted:
                self._remember(batch)

    def _remember(self, batch: ProducedBatch) -> None:
        committed = self._committed
        committed.pop(batch.producer, None)
        committed[batch.producer] = batch
        if len(committed) > PRODUCERS_MAX:
            oldest = committed.pop(next(iter(committed)))
            self.known_from = LLSN(oldest.llsn + 1)
            self._searched.pop(oldest.producer, None)

    def _forget(self, known_from: LLSN) -> None:
        self._committed.clear()
        self._searched.clear()
        self.known_from = known_from
        self.resets += 1

    # --- what is known of a producer -------------------------------------------------------------------------------------

    def newest(self, producer: ProducerID, floor: LLSN) -> tuple[bool, ProducedBatch | None]:
        """Whether the producer's newest batch above `floor` is known here, and that batch, if there is one."""
        pending = self._pending_of.get(producer)
        batch = pending[-1] if pending else self._committed.get(producer)
        if batch is None and floor + 1 < self.known_from:
            batch, searched_floor = self._searched.get(producer, (None, self.known_from))
            if floor < searched_floor:
                return False, None
        return True, batch if batch is not None and batch.llsn > floor else None

    def pending(self, producer: ProducerID) -> Sequence[ProducedBatch]:
        """The producer's batches that are not committed yet, in order."""
        return self._pending_of.get(producer, ())

    def is_committed(self, batch: ProducedBatch) -> bool:
        return batch.llsn < self._ordered_end

    def searched(self, producer: ProducerID, floor: LLSN, batch: ProducedBatch | None) -> None:
        """The disk was searched from `known_from` back to `floor`: this is the producer's newest batch there."""
        self._searched.pop(producer, None)
        self._searched[producer] = batch, floor
        if len(self._searched) > PRODUCERS_MAX:
            del self._searched[next(iter(self._searched))]
