"""[A4] PURE. RUNNING / SEALING / SEALED: gives LLSNs, judges commits, seals and unseals. Events in, decisions out; no I/O.

    (made, or restored from disk) --> SEALING                                                   R-SN-8
    SEALING --seal, everything held--> SEALED --unseal--> RUNNING
    RUNNING --seal--> SEALED, or SEALING while it lacks commits;  RUNNING --broken--> SEALING     R-SEAL-1, R-SEAL-6
    any --a law broke--> FROZEN

It keeps laws 1 (only what is durable is reportable), 6 (a sealed tail is cut before the seal is told) and 7 (epochs fence).
An epoch is entered by a seal and *opened* by an unseal. Once opened, only a newer epoch can seal it: a seal that was delayed
on the way would otherwise cut entries that were acknowledged since.
"""

from __future__ import annotations

from dataclasses import dataclass

from varlog.model.commit import CommitRow
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import NotPrimary, PreconditionFailed, Sealed, StaleEpoch, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.invariant import InvariantBroken, invariant
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.model.status import ReplicaState


@dataclass(frozen=True, slots=True)
class EnterEpoch:
    """Keep epoch and sealed end durably; the replica still lacks commits below `sealed_end`."""

    epoch: Epoch
    sealed_end: LLSN


@dataclass(frozen=True, slots=True)
class CutTail:
    """Keep the epoch and cut every entry at or above `end`, durably; then tell the machine `tail_cut`."""

    epoch: Epoch
    end: LLSN


SealEffect = EnterEpoch | CutTail | None


class CommitGap(Exception):
    """Commit rows between what is committed here and this row are missing: the repository must send them again."""


class CommitAhead(Exception):
    """The row orders entries that this replica does not hold: it needs a sync before it can go on."""


@dataclass(slots=True)
class ReplicaMachine:
    """The state of one replica. Ends are exclusive: `durable_end` is one past the newest durable LLSN."""

    log_stream: LogStreamID
    epoch: Epoch
    sealed_end: LLSN
    opened: bool
    durable_end: LLSN
    committed_end: LLSN
    state: ReplicaState = ReplicaState.SEALING
    primary: bool = False
    assigned_end: LLSN = FIRST_LLSN
    trouble: str = ""
    # Of everything held in [committed_end, durable_end): it was all written in one epoch.
    tail_epoch: Epoch = NO_EPOCH
    # Not empty: it was told an order that contradicts the one it knows, and is frozen. What it holds is evidence, until a seal that
    # contradicts nothing takes it in again.
    evidence: str = ""

    def __post_init__(self) -> None:
        self.assigned_end = self.durable_end

    # --- appends -----------------------------------------------------------------------------------------------------

    def accept(self, count: int) -> LLSN:
        """The first LLSN of a batch that a client appends; the replica must be the running primary."""
        if self.state is not ReplicaState.RUNNING:
            raise Sealed(self.log_stream, self.trouble)
        if not self.primary:
            raise NotPrimary(self.log_stream)
        first = self.assigned_end
        self.assigned_end = LLSN(first + count)
        return first

    def receive(self, epoch: Epoch, first: LLSN, count: int) -> None:
        """A batch from the primary: it must be of this epoch and go on exactly where the last one ended (law 4, 7)."""
        self.check_upstream(epoch, first)
        self.assigned_end = LLSN(first + count)

    def check_upstream(self, epoch: Epoch, first: LLSN) -> None:
        """Refuse a primary that speaks for another epoch or would leave a gap."""
        if epoch != self.epoch:
            raise StaleEpoch(self.log_stream, epoch, self.epoch)
        if self.state is not ReplicaState.RUNNING:
            raise Sealed(self.log_stream, self.trouble)
        if self.primary:
            raise PreconditionFailed(f"log stream {self.log_stream}: this replica is the primary itself")
        if first != self.assigned_end:
            raise PreconditionFailed(
                f"log stream {self.log_stream}: expected LLSN {self.assigned_end}, not {first}"
            )

    def written(self, epoch: Epoch, end: LLSN) -> bool:
        """Everything below `end` is durable now. False if a seal came between: those entries are no longer ours to report."""
        if epoch != self.epoch or self.state is ReplicaState.FROZEN:
            return False
        invariant(self.durable_end <= end <= self.assigned_end, "only what was taken in becomes durable (law 1)",
                  durable=self.durable_end, end=end, assigned=self.assigned_end)  # fmt: skip
        self.durable_end = end
        return True

    @property
    def reportable_end(self) -> LLSN:
        """How far this replica is durable *in its epoch*. A tail of an older epoch that waits to be cut does not count: counted,
        it would let the repository order what the cut then takes away (law 2, 6)."""
        return self.durable_end if self.opened else min(self.durable_end, self.sealed_end)

    # --- commits -----------------------------------------------------------------------------------------------------

    def commit(self, row: CommitRow) -> CommitRow | None:
        """The row, or the part of it, that is new here; None if all of it is committed already (R-CTX-4)."""
        if self.state is ReplicaState.FROZEN:
            raise Unavailable(f"log stream {self.log_stream} is frozen here")
        if row.llsn_end <= self.committed_end:
            return None
        if row.llsn_begin > self.committed_end:
            raise CommitGap(f"row from {row.llsn_begin} on, committed up to {self.committed_end}")
        fenced = row.epoch < self.epoch and row.llsn_end > self.sealed_end
        invariant(not fenced, "nothing beyond a seal is ordered (law 6, R-SEAL-7)",
                  row=row, epoch=self.epoch, sealed_end=self.sealed_end)  # fmt: skip
        if row.llsn_end > self.durable_end:
            raise CommitAhead(f"row up to {row.llsn_end}, durable up to {self.durable_end}")
        # A replica that left its stream and came back may hold what another epoch put where this row's entries belong (law 3). One
        # that was just made anew has not even entered the row's epoch.
        if row.epoch != self.tail_epoch:
            raise CommitAhead(
                f"row of epoch {row.epoch} up to {row.llsn_end}, held are batches of {self.tail_epoch}"
            )
        known = self.committed_end - row.llsn_begin
        if known:
            row = row.rest(known)
        self.committed_end = row.llsn_end
        return row

    # --- sync: R-SYNC-1 to R-SYNC-3 --------------------------------------------------------------------------------------

    @property
    def lacks_entries(self) -> bool:
        """Entries are ordered, below the seal, that are not committed here: nobody may be told that they do not exist."""
        return not self.opened and self.committed_end < self.sealed_end

    def check_sync(self, epoch: Epoch) -> bool:
        """True if a sync in this epoch is needed, False if everything is here already."""
        if self.state is ReplicaState.FROZEN:
            raise PreconditionFailed(f"log stream {self.log_stream} is frozen: {self.trouble}")
        if epoch < self.epoch:
            raise StaleEpoch(self.log_stream, epoch, self.epoch)
        if epoch > self.epoch or self.opened:
            raise PreconditionFailed(
                f"log stream {self.log_stream} is not sealed in epoch {epoch} here: seal it first"
            )
        return self.lacks_entries

    def check_source(self, epoch: Epoch) -> None:
        """R-SYNC-2: what is SEALED neither grows nor is cut while it is copied."""
        if self.state is not ReplicaState.SEALED or epoch != self.epoch:
            raise PreconditionFailed(
                f"log stream {self.log_stream} is {self.state.value} in epoch {self.epoch} here: only a replica that is sealed "
                f"in epoch {epoch} can be copied"
            )

    def found(self, committed_end: LLSN, durable_end: LLSN, tail_epoch: Epoch) -> None:
        """What is on disk, looked at when nothing is being written: a write may have outlived the seal or sync it belonged to."""
        invariant(self.committed_end <= committed_end <= durable_end and not self.opened, "a sync finds what was committed (law 4)",
                  committed_end=self.committed_end, found=committed_end, durable_end=durable_end)  # fmt: skip
        self.committed_end, self.tail_epoch = committed_end, tail_epoch
        self.assigned_end = self.durable_end = durable_end

    def abandon_tail(self) -> None:
        """A sync is about to remove what is held behind the committed end: no row that comes meanwhile may order it."""
        self.assigned_end = self.durable_end = self.committed_end
        self.tail_epoch = NO_EPOCH

    def copied(self, epoch: Epoch, end: LLSN) -> None:
        """Batches of `epoch` up to `end`, copied from another replica, are durable."""
        filled = self.state is ReplicaState.SEALING and not self.opened
        one_epoch = epoch == self.tail_epoch or self.durable_end == self.committed_end
        invariant(filled and one_epoch and self.durable_end < end <= self.sealed_end,
                  "a sync fills a sealing replica up to the seal, an epoch at a time", state=self.state, epoch=epoch, end=end,
                  tail_epoch=self.tail_epoch, durable_end=self.durable_end, sealed_end=self.sealed_end)  # fmt: skip
        self.tail_epoch = epoch
        self.assigned_end = self.durable_end = end

    # --- seal, unseal ------------------------------------------------------------------------------------------------

    def seal(self, epoch: Epoch, committed_end: LLSN) -> SealEffect:
        """R-SEAL-4. Appends stop at once; SEALED is told only after the tail is cut. One that was frozen for what it knows, and is
        not asked to give it up any more, goes on."""
        if self.state is ReplicaState.FROZEN and not self.evidence:
            raise PreconditionFailed(f"log stream {self.log_stream} is frozen: {self.trouble}")
        if epoch < self.epoch or (epoch == self.epoch and self.opened):
            raise StaleEpoch(self.log_stream, epoch, self.epoch)
        if committed_end < self.committed_end:
            raise InvariantBroken(
                "a seal never undoes a commit (law 6, R-SEAL-4)",
                {"sealed_end": committed_end, "committed_end": self.committed_end, "epoch": epoch},
            )
        if epoch == self.epoch and committed_end != self.sealed_end:
            raise InvariantBroken(
                "an epoch is sealed at one position (law 6)",
                {"sealed_end": committed_end, "before": self.sealed_end, "epoch": epoch},
            )
        if self.state is ReplicaState.SEALED and epoch == self.epoch:
            return None
        if self.evidence:
            self.evidence = self.trouble = ""
        self.state, self.primary, self.opened = ReplicaState.SEALING, False, False
        self.epoch, self.sealed_end = epoch, committed_end
        if self.committed_end == committed_end:
            return CutTail(epoch, committed_end)
        # Also when it is asked again: the disk may have refused the first time, and twice is harmless.
        return EnterEpoch(epoch, committed_end)

    def tail_cut(self, epoch: Epoch, end: LLSN) -> bool:
        """The cut is durable: SEALED, unless a newer seal came between."""
        if epoch != self.epoch or self.state is not ReplicaState.SEALING:
            return False
        self.state = ReplicaState.SEALED
        self.assigned_end = self.durable_end = end
        return True

    def can_resolve(self, epoch: Epoch) -> bool:
        """Everything of that epoch that will ever be ordered is committed here: it is over, and this replica was SEALED since."""
        held = self.state is ReplicaState.SEALED or self.opened
        return (
            epoch < self.epoch
            and held
            and self.committed_end >= self.sealed_end
            and self.state is not ReplicaState.FROZEN
        )

    def check_unseal(self, epoch: Epoch) -> bool:
        """True if the replica must be opened, False if it runs in this epoch already (R-UNSEAL-1)."""
        if self.state is ReplicaState.RUNNING and epoch == self.epoch:
            return False
        if epoch != self.epoch:
            raise StaleEpoch(self.log_stream, epoch, self.epoch)
        if self.state is not ReplicaState.SEALED:
            raise PreconditionFailed(
                f"log stream {self.log_stream} is {self.state.value}, not sealed: seal it, then unseal it"
            )
        return True

    def opened_as(self, epoch: Epoch, *, primary: bool) -> None:
        """The opened epoch is durable: run in it."""
        invariant(self.state is ReplicaState.SEALED and epoch == self.epoch, "only a sealed replica is opened (R-UNSEAL-1)",
                  state=self.state, epoch=self.epoch, asked=epoch)  # fmt: skip
        self.state, self.primary, self.opened = ReplicaState.RUNNING, primary, True
        self.tail_epoch = epoch

    def broken(self, trouble: str) -> None:
        """R-SEAL-6: it cannot go on by itself. Waiting appends stay undecided until a seal decides them."""
        if self.state is ReplicaState.RUNNING:
            self.state = ReplicaState.SEALING
        self.trouble = trouble

    def reopened(self, durable_end: LLSN, tail_epoch: Epoch = NO_EPOCH, begin: LLSN = FIRST_LLSN) -> None:
        """The disk failed, and was looked at anew: what lies there is proven up to `durable_end`. The rest stands: epochs never go
        back, and what was reported durable must still be there (law 1)."""
        invariant(durable_end >= self.reportable_end, "what was reported durable stays durable (law 1)",
                  found=durable_end, reported=self.reportable_end)  # fmt: skip
        self.assigned_end = self.durable_end = durable_end
        self.committed_end = max(self.committed_end, begin)
        self.tail_epoch = tail_epoch or self.tail_epoch

    def freeze(self, trouble: str) -> None:
        """A law broke here: touch nothing any more, so that what is on disk can be looked at."""
        self.state, self.primary, self.trouble = ReplicaState.FROZEN, False, trouble
