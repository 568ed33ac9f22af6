"""[A4] PURE. ReplicaMachine: assigns LLSNs, decides commits, seals and unseals.

    (created, or restored from disk) --> SEALING                                                R-SN-8
    SEALING --seal, nothing missing--> SEALED --unseal--> RUNNING
    RUNNING --seal--> SEALED, or SEALING while it lacks commits;  RUNNING --broken--> SEALING     R-SEAL-1, R-SEAL-6
    any --a law broke--> FROZEN

Events in, decisions out; no I/O. It keeps laws 1 (only what is durable is reportable), 6 (a sealed tail is cut before the seal is
acknowledged) and 7 (epochs fence). A replica enters an epoch with a seal and *opens* it with an unseal. Once it is open, only a
newer epoch can seal it: a seal that was delayed on the network would otherwise cut entries that were acknowledged since.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from varlog.model.commit import CommitRow
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import NotPrimary, PreconditionFailed, Sealed, StaleEpoch, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.invariant import InvariantBroken, invariant
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.model.status import ReplicaState


@dataclass(frozen=True, slots=True)
class EnterEpoch:
    """Persist epoch and sealed end; the replica still lacks commits below `sealed_end`."""

    epoch: Epoch
    sealed_end: LLSN


@dataclass(frozen=True, slots=True)
class CutTail:
    """Persist the epoch and cut every entry at or above `end`, durably; then call `tail_cut`."""

    epoch: Epoch
    end: LLSN


SealEffect = EnterEpoch | CutTail | None


class CommitGap(Exception):
    """Commit rows are missing between what is committed here and this row: the repository must send them again."""


class CommitAhead(Exception):
    """The row orders entries that this replica does not have: it needs a sync before it can continue."""


@dataclass(slots=True)
class ReplicaMachine:
    """The state of one replica. Ends are exclusive: `durable_end` is one past the newest durable LLSN.

    Nothing outside this class assigns to its fields; `validate` checks how they relate. Each comment says what a field is, which
    events move it, and what holds between it and the others:

        FIRST_LLSN <= committed_end <= durable_end <= assigned_end;  committed_end <= sealed_end until the epoch is opened
    """

    # The stream of this replica. Never changes.
    log_stream: LogStreamID
    # The newest epoch that was entered (law 7). Moved by `seal` alone, and never back.
    epoch: Epoch
    # One past the last LLSN ordered before `epoch` (law 6). Moved by `seal` together with `epoch`: an epoch has one sealed end.
    sealed_end: LLSN
    # True from the unseal of `epoch` on: set by `opened_as`, cleared by `seal`. While it is False, nothing at or above `sealed_end`
    # is committed or reported.
    opened: bool
    # One past the last entry on disk. Raised by `written` (of this epoch) and `copied`; lowered only to cut a tail that was never
    # ordered (`tail_cut`, `abandon_tail`); set by `reloaded` and `reopened` to what the disk has. Never below `committed_end`.
    durable_end: LLSN
    # One past the last entry whose order is known here. Raised by `commit`, `reloaded` and `reopened`, never lowered below a commit
    # that the store has; `commit_failed` takes back a row that the store refused. At most `durable_end` (law 1).
    committed_end: LLSN
    # See the diagram above. RUNNING only while `opened`; SEALED only with `committed_end` == `durable_end` == `sealed_end`.
    state: ReplicaState = ReplicaState.SEALING
    # Assigns the LLSNs of this epoch. Set by `opened_as`, cleared by `seal` and `freeze`; implies `opened`. A primary that is
    # `broken` stays primary, and accepts nothing, until it is sealed.
    primary: bool = False
    # The LLSN of the next batch. Raised by `accept` (primary) and `receive` (backup), and set to `durable_end` by every event that
    # sets that one from the disk. What is between `durable_end` and this is being written, or was given up with its epoch.
    assigned_end: LLSN = FIRST_LLSN
    # Why the replica does not run or serve as it should, for status and errors; "" if it does. Set by `broken`, `freeze` and
    # `set_trouble`; cleared by `clear_trouble`, and by a `seal` that unfreezes it.
    trouble: str = ""
    # The epoch in which everything in [committed_end, durable_end) was written, at most `epoch`, and `epoch` itself while RUNNING.
    # A disk that lost synced commit rows leaves a tail of several epochs: it is then that of the first batch, and rows of others
    # are refused until a sync replaces them. Moved by `opened_as`, `copied`, `reloaded`, `reopened`; NO_EPOCH where there is none.
    tail_epoch: Epoch = NO_EPOCH
    # Not empty: the repository sent an order that contradicts the one known here, and the replica froze. Its data are evidence
    # until a seal that contradicts nothing unfreezes it. Set by `freeze`, cleared by `seal`; implies FROZEN.
    evidence: str = ""

    def __post_init__(self) -> None:
        self.assigned_end = self.durable_end

    def validate(self) -> None:
        """Check every relation between the fields that holds between two events; tests call it after each event."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        running, sealed = self.state is ReplicaState.RUNNING, self.state is ReplicaState.SEALED
        frozen = self.state is ReplicaState.FROZEN
        in_order = FIRST_LLSN <= self.committed_end <= self.durable_end <= self.assigned_end
        invariant(in_order, "committed is durable, and durable was assigned (laws 1, 4)", **facts)
        within_seal = self.opened or self.committed_end <= self.sealed_end
        invariant(
            within_seal, "nothing is committed beyond a seal until the epoch is opened (law 6)", **facts
        )
        invariant(
            self.opened or not (running or self.primary), "only an opened epoch runs (R-UNSEAL-1)", **facts
        )
        cut = self.committed_end == self.durable_end == self.assigned_end == self.sealed_end
        invariant(
            not sealed or (cut and not self.opened), "a sealed replica ends at its seal (law 6)", **facts
        )
        invariant(
            self.tail_epoch <= self.epoch, "no tail is of an epoch that was not entered (law 7)", **facts
        )
        own_tail = self.durable_end == self.committed_end or self.tail_epoch == self.epoch
        invariant(not running or own_tail, "the tail of a running replica is of its epoch (law 6)", **facts)
        invariant(frozen or not self.evidence, "evidence is frozen", **facts)
        invariant(not frozen or not self.primary, "a frozen replica is no primary", **facts)

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
        """A batch from the primary: it must be of this epoch and begin exactly where the last one ended (laws 4, 7)."""
        self.check_upstream(epoch, first)
        self.assigned_end = LLSN(first + count)

    def check_upstream(self, epoch: Epoch, first: LLSN) -> None:
        """Refuse a primary of another epoch, or one that would leave a gap."""
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
        """Everything below `end` is durable now. False if a seal came first: those entries must not be reported any more."""
        if epoch != self.epoch or self.state is ReplicaState.FROZEN:
            return False
        invariant(self.durable_end <= end <= self.assigned_end, "only what was assigned becomes durable (law 1)",
                  durable=self.durable_end, end=end, assigned=self.assigned_end)  # fmt: skip
        self.durable_end = end
        return True

    @property
    def reportable_end(self) -> LLSN:
        """How far this replica is durable *in its epoch*. A tail of an older epoch that waits to be cut does not count: the
        repository could order entries that the cut then removes (laws 2, 6)."""
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
        # A replica that left its stream and came back may have batches of another epoch where this row's entries belong (law 3).
        # One that was just rebuilt has not even entered the row's epoch.
        if row.epoch != self.tail_epoch:
            raise CommitAhead(
                f"row of epoch {row.epoch} up to {row.llsn_end}, this replica has batches of {self.tail_epoch}"
            )
        known = self.committed_end - row.llsn_begin
        if known:
            row = row.rest(known)
        self.committed_end = row.llsn_end
        return row

    def commit_failed(self, committed_end: LLSN) -> None:
        """The store refused a row that `commit` returned: what is committed is what the store says."""
        self.committed_end = committed_end

    # --- sync: R-SYNC-1 to R-SYNC-3 --------------------------------------------------------------------------------------

    @property
    def lacks_entries(self) -> bool:
        """Entries below the seal are ordered and not committed here: no answer may claim that they do not exist."""
        return not self.opened and self.committed_end < self.sealed_end

    def check_sync(self, epoch: Epoch) -> bool:
        """True if a sync in this epoch is needed, False if nothing is missing."""
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
        """R-SYNC-2: only a SEALED replica is copied, because it neither grows nor is cut meanwhile."""
        if self.state is not ReplicaState.SEALED or epoch != self.epoch:
            raise PreconditionFailed(
                f"log stream {self.log_stream} is {self.state.value} in epoch {self.epoch} here: only a replica that is sealed "
                f"in epoch {epoch} can be copied"
            )

    def reloaded(self, committed_end: LLSN, durable_end: LLSN, tail_epoch: Epoch) -> None:
        """What is on disk, read while nothing is being written: a write may have outlived the seal or sync it belonged to."""
        invariant(self.committed_end <= committed_end <= durable_end and not self.opened, "a sync finds what was committed (law 4)",
                  committed_end=self.committed_end, found=committed_end, durable_end=durable_end)  # fmt: skip
        self.committed_end, self.tail_epoch = committed_end, tail_epoch
        self.assigned_end = self.durable_end = durable_end

    def abandon_tail(self) -> None:
        """A sync is about to remove everything behind the committed end: no row that arrives meanwhile may order it."""
        self.assigned_end = self.durable_end = self.committed_end
        self.tail_epoch = NO_EPOCH

    def copied(self, epoch: Epoch, end: LLSN) -> None:
        """Batches of `epoch` up to `end`, copied from another replica, are durable."""
        filled = self.state is ReplicaState.SEALING and not self.opened
        one_epoch = epoch == self.tail_epoch or self.durable_end == self.committed_end
        invariant(filled and one_epoch and self.durable_end < end <= self.sealed_end,
                  "a sync fills a sealing replica up to the seal, one epoch at a time", state=self.state, epoch=epoch, end=end,
                  tail_epoch=self.tail_epoch, durable_end=self.durable_end, sealed_end=self.sealed_end)  # fmt: skip
        self.tail_epoch = epoch
        self.assigned_end = self.durable_end = end

    # --- seal, unseal ------------------------------------------------------------------------------------------------

    def seal(self, epoch: Epoch, committed_end: LLSN) -> SealEffect:
        """R-SEAL-4. Appends stop immediately; SEALED is reported only after the tail is cut. A replica that was frozen as evidence
        is unfrozen by a seal that does not contradict it."""
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
        # Also when it is repeated: the disk may have refused the first time, and twice is harmless.
        return EnterEpoch(epoch, committed_end)

    def tail_cut(self, epoch: Epoch, end: LLSN) -> bool:
        """The cut is durable: SEALED, unless a newer seal came first."""
        if epoch != self.epoch or self.state is not ReplicaState.SEALING:
            return False
        self.state = ReplicaState.SEALED
        self.assigned_end = self.durable_end = end
        return True

    def can_resolve(self, epoch: Epoch) -> bool:
        """Whether everything of that epoch that will ever be ordered is committed here: it is over, and was SEALED here since."""
        complete = self.state is ReplicaState.SEALED or self.opened
        return (
            epoch < self.epoch
            and complete
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
        """R-SEAL-6: it cannot continue by itself. Waiting appends stay undecided until a seal decides them."""
        if self.state is ReplicaState.RUNNING:
            self.state = ReplicaState.SEALING
        self.trouble = trouble

    def reopened(self, durable_end: LLSN, tail_epoch: Epoch = NO_EPOCH, begin: LLSN = FIRST_LLSN) -> None:
        """The disk failed and was read again: its content is verified up to `durable_end`. Everything else stays: epochs never go
        back, and what was reported durable must still exist (law 1)."""
        invariant(durable_end >= self.reportable_end, "what was reported durable stays durable (law 1)",
                  found=durable_end, reported=self.reportable_end)  # fmt: skip
        self.assigned_end = self.durable_end = durable_end
        self.committed_end = max(self.committed_end, begin)
        self.tail_epoch = tail_epoch or self.tail_epoch

    def freeze(self, trouble: str, evidence: str = "") -> None:
        """A law broke here: change nothing any more, so that the disk can be examined. `evidence`: what this replica knows, if it
        froze because the repository contradicts it."""
        self.state, self.primary, self.trouble = ReplicaState.FROZEN, False, trouble
        self.evidence = evidence or self.evidence

    def set_trouble(self, trouble: str) -> None:
        """Something is wrong that changes no other state: shown in status and errors."""
        self.trouble = trouble

    def clear_trouble(self) -> None:
        self.trouble = ""
