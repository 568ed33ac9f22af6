"""[Q5] PURE. UnitMachine: each position is written once, in the unit's own epoch.

    created (epoch 0) --seal(1): a new stream--> epoch 1 --seal(e), order(e)--> epoch e     R-SEQ-9, R-SEQ-12
    created (epoch 0) --filled from its chain, seal(e)--> epoch e                           R-SEQ-14

It keeps laws 7 (only the unit's own epoch), 8 (write once) and 9 (nothing below its low end). A unit that was created in place of a
lost one knows nothing of what its chain had acknowledged: until it has been filled, it accepts no seal but that of a new stream,
and no order moves it. If it counted as an answer, a chain would forget entries.

A newer epoch is *entered* as soon as it is known: from then on nothing of the older one is accepted or answered. It becomes the
unit's epoch once it is durable.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Protocol

from varlog.model.epoch import FIRST_EPOCH, NO_EPOCH, Epoch
from varlog.model.errors import AlreadyWritten, PreconditionFailed, StaleEpoch, Trimmed, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.invariant import invariant
from varlog.model.lsn import FIRST_LLSN, LLSN


class WrittenSpan(Protocol):
    """The positions of a written batch."""

    @property
    def first_llsn(self) -> LLSN: ...

    @property
    def count(self) -> int: ...


@dataclass(slots=True, eq=False)
class Pending:
    """A batch that is being written. `header`: its 64 bytes, which identify it."""

    first_llsn: LLSN
    count: int
    header: bytes

    @property
    def end_llsn(self) -> LLSN:
        return LLSN(self.first_llsn + self.count)


class WriteDecision(Enum):
    """What to do with a batch. WRITE: its positions are reserved for it. WAIT: the same batch is being written already. COMPARE: a
    batch at the same positions is stored; if its header is the same, the write is a duplicate and done."""

    WRITE = auto()
    WAIT = auto()
    COMPARE = auto()


@dataclass(slots=True)
class UnitMachine:
    """The state of one log unit. Nothing outside this class assigns to its fields; `validate` checks how they relate.

    Each comment says what a field is, which events move it, and what holds between it and the others.
    """

    # The stream of this unit. Never changes.
    log_stream: LogStreamID
    # The newest epoch that is durable here (law 7); NO_EPOCH until the first seal. Raised by `entered` alone.
    epoch: Epoch
    # Nothing below it exists any more (law 9). Raised by `trim` and `order`; the store follows.
    low: LLSN
    # A newer epoch that is not durable yet, NO_EPOCH if there is none. Set by `seal` and `order`, cleared by `entered`. Above
    # `epoch` whenever it is set: from then on the older epoch is over.
    entering: Epoch = NO_EPOCH
    # The unit has everything that its chain acknowledged. Set by `mark_filled`; it matters only while `epoch` is NO_EPOCH, where a
    # seal of a running stream needs it.
    filled: bool = False
    # The newest epoch that the repository announced, raised by `order`. May be above `epoch`: a unit that was just created is not
    # moved by orders, but must not take the seal of a new stream when the stream has long left epoch 1.
    announced: Epoch = NO_EPOCH
    # Why the unit does nothing any more; "" while it works. Set by `freeze`, never cleared.
    frozen: str = ""
    # Batches that are being written, by first LLSN: added by `write`, removed by `settled`. No two overlap (law 8).
    _pending: dict[LLSN, Pending] = field(default_factory=dict)
    # The keys of `_pending` in order, for bisection; always moved together with it.
    _firsts: list[LLSN] = field(default_factory=list)

    def validate(self) -> None:
        """Check every relation between the fields that holds between two events; tests call it after each event."""
        facts = {"epoch": self.epoch, "entering": self.entering, "low": self.low, "firsts": self._firsts}
        newer = self.entering == NO_EPOCH or self.entering > self.epoch
        invariant(newer, "an epoch that is being entered is newer than the durable one (law 7)", **facts)
        invariant(self.low >= FIRST_LLSN, "positions start at 1", **facts)
        invariant(self._firsts == sorted(self._pending), "pending batches are indexed in order", **facts)
        batches = [self._pending[first] for first in self._firsts]
        apart = all(one.end_llsn <= other.first_llsn for one, other in pairwise(batches))
        invariant(apart, "no two pending batches overlap (law 8)", **facts)

    # --- epochs ------------------------------------------------------------------------------------------------------

    @property
    def newest_epoch(self) -> Epoch:
        return max(self.epoch, self.entering)

    def check(self, epoch: Epoch) -> None:
        """Refuse a client of another epoch than the unit's (R-SEQ-5)."""
        self.check_alive()
        if epoch != self.newest_epoch:
            raise StaleEpoch(self.log_stream, epoch, self.newest_epoch)
        if self.entering:
            raise Unavailable(f"log stream {self.log_stream} is being sealed in epoch {epoch} here")

    def check_alive(self) -> None:
        if self.frozen:
            raise Unavailable(f"log stream {self.log_stream} is frozen on this node: {self.frozen}")

    def seal(self, epoch: Epoch) -> None:
        """R-SEQ-9: enter a newer epoch. A seal of the present one changes nothing."""
        self.check_alive()
        if epoch < self.newest_epoch:
            raise StaleEpoch(self.log_stream, epoch, self.newest_epoch)
        # A delayed seal of a new stream may arrive when the stream is in a later epoch and this unit replaces a lost one.
        late = epoch > FIRST_EPOCH or epoch < self.announced
        if self.epoch == NO_EPOCH and late and not self.filled:
            raise PreconditionFailed(
                f"log stream {self.log_stream} was just created here and lacks what its chain has: sync it before it is sealed in "
                f"epoch {epoch}"
            )
        if epoch > self.epoch:
            self.entering = epoch

    def order(self, epoch: Epoch, low: LLSN) -> bool:
        """The repository's order (R-SEQ-13): no older epoch, nothing below `low`. True if that changes something here."""
        if self.frozen:
            return False
        self.announced = max(self.announced, epoch)
        newer = epoch > self.newest_epoch and self.epoch != NO_EPOCH
        if newer:
            self.entering = epoch
        return self.trim(low) or newer

    def entered(self, epoch: Epoch) -> None:
        """The epoch is durable."""
        invariant(epoch >= self.epoch, "an epoch never goes back (law 7)", epoch=epoch, here=self.epoch)
        self.epoch = epoch
        if self.entering <= epoch:
            self.entering = NO_EPOCH

    def trim(self, low: LLSN) -> bool:
        """Serve and write nothing below `low` from now on. Returns True if that changes something here."""
        if low <= self.low:
            return False
        self.low = low
        return True

    def check_rebuild(self, epoch: Epoch, *, empty: bool, trouble: str) -> bool:
        """True if the unit cannot continue (`trouble`) and may be rebuilt, False if it is empty and new already."""
        if self.newest_epoch > epoch:
            raise StaleEpoch(self.log_stream, epoch, self.newest_epoch)
        if self.frozen:
            return True
        if self.epoch == NO_EPOCH and empty:
            return False
        if trouble:
            return True
        raise PreconditionFailed(
            f"log stream {self.log_stream} is in epoch {self.epoch} here and can continue: it is not rebuilt"
        )

    def mark_filled(self) -> None:
        """The unit was filled from its chain (R-SEQ-14)."""
        self.filled = True

    def freeze(self, why: str) -> None:
        """A law was violated here: answer and change nothing any more."""
        self.frozen = why

    # --- writes ------------------------------------------------------------------------------------------------------

    def write(self, batch: Pending, stored: WrittenSpan | None) -> WriteDecision:
        """Decide about a batch; `stored` is the first stored one that overlaps it.

        A batch that reaches above `low` is accepted whole, even if it begins below: its chain may have it, and needs it here.
        """
        first, end = batch.first_llsn, batch.end_llsn
        if end <= self.low:
            raise Trimmed(first, self.low)
        other = self.pending_at(first, end)
        if other is not None and other.header == batch.header:
            return WriteDecision.WAIT
        if other is not None:
            raise AlreadyWritten(self.log_stream, max(first, other.first_llsn))
        if stored is None:
            self._firsts.insert(bisect_left(self._firsts, first), first)
            self._pending[first] = batch
            return WriteDecision.WRITE
        if (stored.first_llsn, stored.count) != (first, batch.count):
            raise AlreadyWritten(self.log_stream, max(first, stored.first_llsn))
        return WriteDecision.COMPARE

    def pending_at(self, first: LLSN, end: LLSN) -> Pending | None:
        """The first batch that is being written and has a position in [first, end)."""
        at = bisect_right(self._firsts, first)
        if at and (before := self._pending[self._firsts[at - 1]]).end_llsn > first:
            return before
        if at < len(self._firsts) and self._firsts[at] < end:
            return self._pending[self._firsts[at]]
        return None

    def settled(self, batch: Pending) -> None:
        """The batch is stored, was dropped before it was written, or was refused by the disk: the store knows its positions."""
        invariant(self._pending.pop(batch.first_llsn, None) is batch, "a position is written once at a time (law 8)",
                  llsn=batch.first_llsn, log_stream=self.log_stream)  # fmt: skip
        del self._firsts[bisect_left(self._firsts, batch.first_llsn)]
