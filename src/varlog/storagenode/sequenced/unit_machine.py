"""[Q5] PURE. One log unit's law: a position is written once (law 8), in the unit's own epoch (law 7), and not below its low end.

    made (epoch 0) --seal(1): a new stream--> epoch 1 --seal(e), order(e)--> epoch e        R-SEQ-9, R-SEQ-12
    made (epoch 0) --filled from its chain, seal(e)--> epoch e                              R-SEQ-14

A unit that was made in place of a lost one knows nothing of what its chain had acknowledged: until it has been filled it takes no
other seal than that of a new stream, and no order moves it. Counted as an answer, it would make a chain forget.

A newer epoch is *entered* from the moment it is heard of: from then on nothing of the older one is taken or answered. It is the
unit's epoch once it is durable.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import AlreadyWritten, PreconditionFailed, StaleEpoch, Trimmed, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.invariant import invariant
from varlog.model.lsn import LLSN

# The seal that makes a new stream's units ready (R-SEQ-12).
FIRST_EPOCH = Epoch(1)


class WrittenSpan(Protocol):
    """A written batch, as far as its place goes."""

    @property
    def first_llsn(self) -> LLSN: ...

    @property
    def count(self) -> int: ...


@dataclass(slots=True, eq=False)
class Pending:
    """A batch on its way to the disk. `header`: its 64 bytes, by which it is known."""

    first_llsn: LLSN
    count: int
    header: bytes

    @property
    def end_llsn(self) -> LLSN:
        return LLSN(self.first_llsn + self.count)


class WriteDecision(Enum):
    """What becomes of a batch. WRITE: its positions are its own now. WAIT: the very same one is on its way to the disk already.
    COMPARE: a batch of the same place and size is stored; if its header is the same, it is done."""

    WRITE = auto()
    WAIT = auto()
    COMPARE = auto()


@dataclass(slots=True)
class UnitMachine:
    """The state of one unit. `low`: nothing below it is there any more. `entering`: a newer epoch that is not durable yet."""

    log_stream: LogStreamID
    epoch: Epoch
    low: LLSN
    entering: Epoch = NO_EPOCH
    filled: bool = False
    announced: Epoch = NO_EPOCH  # the newest epoch that the repository told of
    frozen: str = ""
    _pending: dict[LLSN, Pending] = field(default_factory=dict)
    _firsts: list[LLSN] = field(default_factory=list)  # those of `_pending`, in order

    # --- epochs ------------------------------------------------------------------------------------------------------

    @property
    def newest_epoch(self) -> Epoch:
        return max(self.epoch, self.entering)

    def check(self, epoch: Epoch) -> None:
        """Refuse a client that speaks for another epoch than the unit's (R-SEQ-5)."""
        self.check_alive()
        if epoch != self.newest_epoch:
            raise StaleEpoch(self.log_stream, epoch, self.newest_epoch)
        if self.entering:
            raise Unavailable(f"log stream {self.log_stream} is just being sealed in epoch {epoch} here")

    def check_alive(self) -> None:
        if self.frozen:
            raise Unavailable(f"log stream {self.log_stream} is frozen on this node: {self.frozen}")

    def seal(self, epoch: Epoch) -> None:
        """R-SEQ-9: enter a newer epoch; in the same one there is nothing to do."""
        self.check_alive()
        if epoch < self.newest_epoch:
            raise StaleEpoch(self.log_stream, epoch, self.newest_epoch)
        # A new stream's seal may come late, when the stream has long gone on and this unit was made in place of a lost one.
        late = epoch > FIRST_EPOCH or epoch < self.announced
        if self.epoch == NO_EPOCH and late and not self.filled:
            raise PreconditionFailed(
                f"log stream {self.log_stream} was just made here and lacks what its chain holds: have it synced before it is "
                f"sealed in epoch {epoch}"
            )
        if epoch > self.epoch:
            self.entering = epoch

    def order(self, epoch: Epoch, low: LLSN) -> bool:
        """The repository's word (R-SEQ-13): no older epoch, nothing below `low`. True if that is new here."""
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
        """Nothing below `low` is served or taken from now on. True if that is new here."""
        if low <= self.low:
            return False
        self.low = low
        return True

    def check_rebuild(self, epoch: Epoch, *, empty: bool, trouble: str) -> bool:
        """True if the unit cannot go on (`trouble`) and may be made anew, False if it is empty and new already."""
        if self.newest_epoch > epoch:
            raise StaleEpoch(self.log_stream, epoch, self.newest_epoch)
        if self.frozen:
            return True
        if self.epoch == NO_EPOCH and empty:
            return False
        if trouble:
            return True
        raise PreconditionFailed(
            f"log stream {self.log_stream} is in epoch {self.epoch} here and can go on: it is not made anew"
        )

    def freeze(self, why: str) -> None:
        self.frozen = why

    # --- writes ------------------------------------------------------------------------------------------------------

    def write(self, batch: Pending, stored: WrittenSpan | None) -> WriteDecision:
        """What becomes of a batch; `stored` is the first written one that has some of its positions.

        A batch that reaches above `low` is taken whole, also if it begins below: its chain may have it, and needs it here.
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
        """The first batch on its way to the disk that has a position in [first, end)."""
        at = bisect_right(self._firsts, first)
        if at and (before := self._pending[self._firsts[at - 1]]).end_llsn > first:
            return before
        if at < len(self._firsts) and self._firsts[at] < end:
            return self._pending[self._firsts[at]]
        return None

    def settled(self, batch: Pending) -> None:
        """It is stored, or was given up before it was begun, or the disk refused it: its positions are what the store says."""
        invariant(self._pending.pop(batch.first_llsn, None) is batch, "a position is taken once at a time (law 8)",
                  llsn=batch.first_llsn, log_stream=self.log_stream)  # fmt: skip
        del self._firsts[bisect_left(self._firsts, batch.first_llsn)]
