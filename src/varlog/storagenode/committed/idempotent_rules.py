"""[A4] PURE. Idempotent appends: accept, duplicate or conflict, by producer

Each batch of a chain names its predecessor by sequence and body checksum. So whoever sends the same chain, however often and from
wherever, can only extend it, or be told that what he sends is there already, or that the chain goes on in another way. What he
sends before he knows the answers must follow his own batches: two orders of the same rows may have one of them in the same place.
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
    """A batch as one link of its producer's chain. `attempt`: who sent it; 0 where that is not remembered."""

    producer: ProducerID
    sequence: int
    llsn: LLSN
    body_crc: int
    attempt: int = 0


class Sent(NamedTuple):
    """A batch that is to extend a chain, and what its sender says of the chain: see Append."""

    sequence: int
    body_crc: int
    previous_crc: int
    attempt: int = 0
    known: int = 0


class SequenceDecision(Enum):
    """What becomes of a batch that was sent as part of a chain."""

    ACCEPT = "it goes on where the chain ends"
    DUPLICATE = "the chain has this very batch"
    CONFLICT = "the chain goes on in another way, or is not so long yet"


def decide(newest: ProducedBatch | None, sent: Sent) -> SequenceDecision:
    """What becomes of a batch, where `newest` is the last one of its chain (None: there is none yet)."""
    last = newest if newest is not None else ProducedBatch(ProducerID(0), 0, NO_LLSN, 0)
    if sent.sequence == last.sequence + 1 and sent.previous_crc == last.body_crc:
        follows = sent.attempt in (0, last.attempt) or sent.known == last.sequence
        return SequenceDecision.ACCEPT if follows else SequenceDecision.CONFLICT
    if newest is not None and (sent.sequence, sent.body_crc) == (last.sequence, last.body_crc):
        return SequenceDecision.DUPLICATE
    return SequenceDecision.CONFLICT


def find_batch(links: Sequence[ProducedBatch], sequence: int, body_crc: int) -> ProducedBatch | None:
    """That batch among those of its chain that are under way: whoever sends the chain again joins them one by one."""
    return next((link for link in links if (link.sequence, link.body_crc) == (sequence, body_crc)), None)


# [A4] ProducerSequences: the newest batch of each producer in one replica, in memory; what it has forgotten is on disk.
#
# Every replica notes every batch that it takes in, so that a backup that becomes the primary knows as much as the old one did. A
# note
# is *pending* until a commit row covers it. An epoch gives each LLSN to one batch, so a pending note is true exactly if the row
# that covers it is of the same epoch. Whatever else happens to a tail (a cut, a sync, a restart), the rows that follow find no
# such
# notes, and the table then knows less, and nothing wrong. Links leave it in the order of their LLSNs: from `known_from` on it
# knows
# every producer's newest batch.

# So many producers are remembered: a megabyte for a replica, and whoever wrote before them is looked for on disk.
PRODUCERS_MAX: Final = 4_096


class ProducerSequences:
    """What one replica knows of its producers. `known_from`: a producer that is not in here has no committed batch from this LLSN
    on. `resets` counts how often all was forgotten: what is being searched meanwhile is then outdated."""

    def __init__(self, committed_end: LLSN) -> None:
        self.known_from = committed_end
        self.resets = 0
        self._epoch = NO_EPOCH
        self._ordered_end = committed_end
        self._noted_end = committed_end
        self._pending: deque[ProducedBatch] = deque()
        self._pending_of: dict[ProducerID, deque[ProducedBatch]] = {}
        self._committed: dict[ProducerID, ProducedBatch] = {}
        # What the disk said of producers below `known_from`: their newest batch, and above which LLSN it was looked for.
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
        """A batch was taken in, behind all that came before it in this epoch."""
        link = ProducedBatch(header.producer, header.sequence, llsn, header.body_crc, attempt)
        self._pending.append(link)
        links = self._pending_of.get(link.producer)
        if links is None:
            self._pending_of[link.producer] = deque((link,))
        else:
            links.append(link)
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
            link = pending.popleft()
            links = pending_of[link.producer]
            links.popleft()
            if not links:
                del pending_of[link.producer]
            if noted:
                self._remember(link)

    def _remember(self, link: ProducedBatch) -> None:
        committed = self._committed
        committed.pop(link.producer, None)
        committed[link.producer] = link
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
        """Whether the producer's newest batch above `floor` is known here, and it, if there is one."""
        pending = self._pending_of.get(producer)
        link = pending[-1] if pending else self._committed.get(producer)
        if link is None and floor + 1 < self.known_from:
            link, searched_floor = self._searched.get(producer, (None, self.known_from))
            if floor < searched_floor:
                return False, None
        return True, link if link is not None and link.llsn > floor else None

    def pending(self, producer: ProducerID) -> Sequence[ProducedBatch]:
        """The producer's batches that are not committed yet, in order."""
        return self._pending_of.get(producer, ())

    def is_committed(self, link: ProducedBatch) -> bool:
        return link.llsn < self._ordered_end

    def found(self, producer: ProducerID, floor: LLSN, link: ProducedBatch | None) -> None:
        """The disk was looked through, from `known_from` back to `floor`: this is the producer's newest batch there."""
        self._searched.pop(producer, None)
        self._searched[producer] = link, floor
        if len(self._searched) > PRODUCERS_MAX:
            del self._searched[next(iter(self._searched))]
