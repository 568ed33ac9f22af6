"""The replica's state machine against its laws: each drawn transition, then random histories."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import NotPrimary, PreconditionFailed, Sealed, StaleEpoch, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.invariant import InvariantBroken
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState
from varlog.storagenode.committed.replica_machine import (
    CommitAhead,
    CommitGap,
    CutTail,
    EnterEpoch,
    ReplicaMachine,
)


def fresh() -> ReplicaMachine:
    """A replica that was just made."""
    return ReplicaMachine(LogStreamID(1), Epoch(0), LLSN(1), False, LLSN(1), LLSN(1))


def running(*, epoch: int = 1, primary: bool = True) -> ReplicaMachine:
    """An empty replica that runs in `epoch`."""
    machine = fresh()
    assert machine.seal(Epoch(epoch), LLSN(1)) == CutTail(Epoch(epoch), LLSN(1))
    assert machine.tail_cut(Epoch(epoch), LLSN(1))
    assert machine.check_unseal(Epoch(epoch))
    machine.opened_as(Epoch(epoch), primary=primary)
    return machine


def row(begin: int, end: int, *, epoch: int = 1) -> CommitRow:
    """Entries [begin, end) ordered at the same GLSNs."""
    return CommitRow(
        begin, GLSN(end - 1), GLSN(begin - 1), GLSN(begin), LLSN(begin), end - begin, Epoch(epoch)
    )


def written(machine: ReplicaMachine, count: int) -> None:
    """`count` entries taken in and durable."""
    machine.accept(count)
    assert machine.written(machine.epoch, machine.assigned_end)


def test_a_new_replica_is_sealing_and_takes_nothing() -> None:
    """R-SN-8, R-SEAL-1."""
    machine = fresh()
    assert machine.state is ReplicaState.SEALING
    with pytest.raises(Sealed):
        machine.accept(1)


def test_a_replica_restored_from_disk_is_sealing_whatever_it_was() -> None:
    """R-SN-8: also when its epoch was opened before the crash."""
    machine = ReplicaMachine(LogStreamID(1), Epoch(3), LLSN(5), True, LLSN(9), LLSN(7), tail_epoch=Epoch(3))
    assert machine.state is ReplicaState.SEALING
    with pytest.raises(Sealed):
        machine.accept(1)


def test_appends_get_consecutive_llsns() -> None:
    """R-ORD-1, R-ORD-5, law 4."""
    machine = running()
    assert [machine.accept(3), machine.accept(1), machine.accept(2)] == [1, 4, 5]


def test_a_backup_takes_no_appends_and_a_primary_no_replication() -> None:
    with pytest.raises(NotPrimary):
        running(primary=False).accept(1)
    with pytest.raises(PreconditionFailed):
        running(primary=True).receive(Epoch(1), LLSN(1), 1)


def test_a_backup_refuses_gaps_repeats_and_other_epochs() -> None:
    """Laws 4 and 7."""
    machine = running(primary=False)
    machine.receive(Epoch(1), LLSN(1), 4)
    for first in (4, 6):
        with pytest.raises(PreconditionFailed):
            machine.receive(Epoch(1), LLSN(first), 1)
    for epoch in (0, 2):
        with pytest.raises(StaleEpoch):
            machine.receive(Epoch(epoch), LLSN(5), 1)


def test_a_commit_is_applied_once_and_only_in_order() -> None:
    """R-CTX-4: again is harmless. A gap is noticed."""
    machine = running()
    written(machine, 10)
    assert machine.commit(row(1, 5)) == row(1, 5)
    assert machine.commit(row(1, 5)) is None
    assert machine.commit(row(2, 4)) is None
    with pytest.raises(CommitGap):
        machine.commit(row(6, 8))
    rest = machine.commit(row(1, 8))  # rows that were merged on the way overlap what is known
    assert rest is not None
    assert (rest.llsn_begin, rest.glsn_begin, rest.count) == (5, 5, 3)


def test_a_commit_of_entries_that_are_not_here_is_not_applied() -> None:
    """Law 1: nothing is committed before it is durable here."""
    machine = running()
    machine.accept(4)
    with pytest.raises(CommitAhead):
        machine.commit(row(1, 3))
    assert machine.committed_end == 1


def test_seal_at_what_is_committed_cuts_the_tail_before_it_is_sealed() -> None:
    """R-SEAL-4, R-SEAL-5, law 6."""
    machine = running()
    written(machine, 10)
    machine.commit(row(1, 5))
    assert machine.seal(Epoch(2), LLSN(5)) == CutTail(Epoch(2), LLSN(5))
    assert str(machine.state) == "sealing", "not sealed until the cut is durable"
    assert machine.reportable_end == 5, "a tail that waits to be cut is not reported"
    assert machine.tail_cut(Epoch(2), LLSN(5))
    assert machine.state is ReplicaState.SEALED
    assert (machine.assigned_end, machine.durable_end) == (5, 5)


def test_seal_above_what_is_committed_waits_for_the_missing_commits() -> None:
    """R-SEAL-4: SEALING until it has everything."""
    machine = running()
    written(machine, 10)
    machine.commit(row(1, 5))
    assert machine.seal(Epoch(2), LLSN(8)) == EnterEpoch(Epoch(2), LLSN(8))
    assert machine.state is ReplicaState.SEALING
    assert machine.reportable_end == 8
    assert machine.commit(row(5, 8)) == row(5, 8)
    assert machine.seal(Epoch(2), LLSN(8)) == CutTail(Epoch(2), LLSN(8))


def test_seal_below_what_is_committed_is_an_inconsistency() -> None:
    """R-SEAL-4: refused loudly; the owner freezes."""
    machine = running()
    written(machine, 10)
    machine.commit(row(1, 5))
    with pytest.raises(InvariantBroken):
        machine.seal(Epoch(2), LLSN(4))


def test_an_older_epoch_cannot_seal() -> None:
    """Law 7."""
    with pytest.raises(StaleEpoch):
        running(epoch=5).seal(Epoch(4), LLSN(1))


def test_a_seal_delayed_on_the_way_cannot_cut_what_was_acknowledged_since() -> None:
    """Once an epoch is opened only a newer one seals it: running, self-sealed, or restarted."""
    machine = running(epoch=2)
    written(machine, 3)
    with pytest.raises(StaleEpoch):
        machine.seal(Epoch(2), LLSN(1))
    machine.broken("a backup left")
    with pytest.raises(StaleEpoch):
        machine.seal(Epoch(2), LLSN(1))
    restarted = ReplicaMachine(LogStreamID(1), Epoch(2), LLSN(1), True, LLSN(4), LLSN(1), tail_epoch=Epoch(2))
    with pytest.raises(StaleEpoch):
        restarted.seal(Epoch(2), LLSN(1))


def test_one_epoch_is_sealed_at_one_position() -> None:
    machine = running()
    written(machine, 4)
    machine.seal(Epoch(2), LLSN(3))
    with pytest.raises(InvariantBroken):
        machine.seal(Epoch(2), LLSN(2))


def test_sealing_again_is_harmless() -> None:
    machine = running()
    machine.seal(Epoch(2), LLSN(1))
    machine.tail_cut(Epoch(2), LLSN(1))
    assert machine.seal(Epoch(2), LLSN(1)) is None
    assert machine.state is ReplicaState.SEALED


def test_a_commit_beyond_the_seal_is_an_inconsistency() -> None:
    """R-SEAL-7."""
    machine = running()
    written(machine, 10)
    machine.seal(Epoch(2), LLSN(5))
    with pytest.raises(InvariantBroken):
        machine.commit(row(1, 7))


def test_unseal_needs_a_sealed_replica_of_that_epoch() -> None:
    """R-UNSEAL-1."""
    machine = running(epoch=2)
    assert machine.check_unseal(Epoch(2)) is False, "again is harmless"
    machine.broken("disk full")
    with pytest.raises(PreconditionFailed):
        machine.check_unseal(Epoch(2))
    machine.seal(Epoch(3), LLSN(1))
    machine.tail_cut(Epoch(3), LLSN(1))
    for epoch in (2, 4):
        with pytest.raises(StaleEpoch):
            machine.check_unseal(Epoch(epoch))
    assert machine.check_unseal(Epoch(3))


def test_a_write_that_ends_after_a_seal_moves_nothing() -> None:
    """Law 7: those entries belong to an epoch that is over."""
    machine = running()
    machine.accept(5)
    machine.seal(Epoch(2), LLSN(1))
    assert machine.written(Epoch(1), LLSN(6)) is False
    assert machine.durable_end == 1


def test_a_replica_that_cannot_continue_seals_itself_and_keeps_what_it_has() -> None:
    """R-SEAL-6."""
    machine = running()
    written(machine, 5)
    machine.broken("a backup left")
    assert machine.state is ReplicaState.SEALING
    with pytest.raises(Sealed):
        machine.accept(1)
    assert machine.commit(row(1, 6)) == row(1, 6), "what was ordered meanwhile is still committed"


def test_a_frozen_replica_does_nothing_more() -> None:
    machine = running()
    machine.freeze("a law broke")
    with pytest.raises(Sealed):
        machine.accept(1)
    with pytest.raises(Unavailable):
        machine.commit(row(1, 2))
    with pytest.raises(PreconditionFailed):
        machine.seal(Epoch(9), LLSN(1))


# --- sync ------------------------------------------------------------------------------------------------


def sealing(
    *, committed: int = 1, sealed_end: int = 20, tail: int = 0, tail_epoch: int = 1
) -> ReplicaMachine:
    """A replica in epoch 5 that lacks commits below the seal."""
    machine = ReplicaMachine(
        LogStreamID(1),
        Epoch(4),
        LLSN(1),
        False,
        LLSN(committed + tail),
        LLSN(committed),
        tail_epoch=Epoch(tail_epoch),
    )
    assert isinstance(machine.seal(Epoch(5), LLSN(sealed_end)), EnterEpoch)
    return machine


def test_a_row_of_one_epoch_is_never_committed_over_batches_of_another() -> None:
    """Law 3: the replica left the stream and came back with what was never ordered."""
    machine = sealing(tail=9, tail_epoch=1)
    with pytest.raises(CommitAhead):
        machine.commit(row(1, 5, epoch=2))
    assert machine.committed_end == 1
    assert machine.commit(row(1, 5, epoch=1)) == row(1, 5, epoch=1), "its own are"
    with pytest.raises(CommitAhead):
        machine.commit(row(1, 7, epoch=2))


def test_a_replica_that_was_just_rebuilt_lacks_only_what_was_ordered() -> None:
    """Its stream is older than it is: rows of epochs that it never entered are no inconsistency."""
    machine = fresh()
    with pytest.raises(CommitAhead):
        machine.commit(row(1, 4, epoch=3))
    assert machine.state is ReplicaState.SEALING


def test_what_is_written_in_an_opened_epoch_is_of_that_epoch() -> None:
    machine = running(epoch=3)
    written(machine, 4)
    assert machine.tail_epoch == 3
    assert machine.commit(row(1, 3, epoch=3)) is not None
    machine.seal(Epoch(4), LLSN(5))
    assert machine.commit(row(3, 5, epoch=3)) is not None, "also after the seal that waits for it"


def test_a_sync_fills_up_to_the_seal_and_then_the_replica_can_be_sealed() -> None:
    """R-SYNC-1."""
    machine = sealing()
    assert machine.check_sync(Epoch(5))
    assert machine.lacks_entries
    machine.copied(Epoch(2), LLSN(12))
    assert machine.reportable_end == 12
    assert machine.commit(row(1, 12, epoch=2)) is not None
    machine.copied(Epoch(4), LLSN(20))
    assert machine.commit(row(12, 20, epoch=4)) is not None
    assert not machine.check_sync(Epoch(5))
    assert machine.seal(Epoch(5), LLSN(20)) == CutTail(Epoch(5), LLSN(20))


def test_a_sync_brings_one_epoch_at_a_time_and_nothing_beyond_the_seal() -> None:
    machine = sealing()
    machine.copied(Epoch(2), LLSN(12))
    with pytest.raises(InvariantBroken):
        machine.copied(Epoch(3), LLSN(15))
    with pytest.raises(InvariantBroken):
        machine.copied(Epoch(2), LLSN(21))
    with pytest.raises(InvariantBroken):
        running().copied(Epoch(1), LLSN(5))


def test_a_sync_is_refused_in_other_states_and_epochs() -> None:
    with pytest.raises(StaleEpoch):
        sealing().check_sync(Epoch(4))
    with pytest.raises(PreconditionFailed):
        sealing().check_sync(Epoch(6))
    with pytest.raises(PreconditionFailed):
        running(epoch=5).check_sync(Epoch(5))
    frozen = sealing()
    frozen.freeze("a law broke")
    with pytest.raises(PreconditionFailed):
        frozen.check_sync(Epoch(5))


def test_only_a_sealed_replica_of_that_epoch_is_a_source() -> None:
    """R-SYNC-2."""
    machine = running(epoch=2)
    for other in (machine, sealing()):
        with pytest.raises(PreconditionFailed):
            other.check_source(other.epoch)
    machine.seal(Epoch(3), LLSN(1))
    with pytest.raises(PreconditionFailed):
        machine.check_source(Epoch(3))
    machine.tail_cut(Epoch(3), LLSN(1))
    machine.check_source(Epoch(3))
    for epoch in (2, 4):
        with pytest.raises(PreconditionFailed):
            machine.check_source(Epoch(epoch))


def test_a_sync_finds_what_a_write_left_that_outlived_its_seal() -> None:
    machine = sealing(committed=3)
    machine.reloaded(LLSN(3), LLSN(9), Epoch(2))
    assert machine.commit(row(3, 9, epoch=2)) is not None
    machine.reloaded(LLSN(15), LLSN(15), Epoch(0))  # it restarted behind what was trimmed
    assert machine.committed_end == 15
    with pytest.raises(InvariantBroken):
        machine.reloaded(LLSN(14), LLSN(15), Epoch(0))


class Histories(RuleBasedStateMachine):
    """A replica with a well-behaved repository and manager around it, in any order, with restarts."""

    @initialize()
    def begin(self) -> None:
        self.machine = fresh()
        self.epoch = 1
        self.sealed_end = 1
        self.repository_runs = False
        self.ordered = 1  # the repository's committed end
        self.orders: list[tuple[int, int, int]] = []  # begin, end and epoch of what it ordered
        self.cut: CutTail | None = None

    def held(self) -> int:
        return self.machine.durable_end

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        if self.machine.state is ReplicaState.RUNNING:
            before = self.machine.assigned_end
            assert self.machine.accept(count) == before

    @rule(share=st.floats(0, 1))
    def write(self, share: float) -> None:
        machine = self.machine
        if machine.state is ReplicaState.RUNNING:
            end = machine.durable_end + round((machine.assigned_end - machine.durable_end) * share)
            assert machine.written(machine.epoch, LLSN(end))

    @precondition(lambda self: self.repository_runs)
    @rule(share=st.floats(0, 1))
    def order(self, share: float) -> None:
        if self.machine.epoch == self.epoch:
            begin = self.ordered
            self.ordered += round(max(0, self.machine.reportable_end - self.ordered) * share)
            if self.ordered > begin:
                self.orders.append((begin, self.ordered, self.epoch))

    @rule()
    def commit(self) -> None:
        for begin, end, epoch in self.orders:
            known = end <= self.machine.committed_end
            assert (self.machine.commit(row(begin, end, epoch=epoch)) is None) == known

    @precondition(lambda self: self.repository_runs)
    @rule()
    def seal_stream(self) -> None:
        self.epoch, self.sealed_end, self.repository_runs = self.epoch + 1, self.ordered, False

    @precondition(lambda self: not self.repository_runs)
    @rule()
    def seal_replica(self) -> None:
        if self.machine.epoch == self.epoch and self.machine.opened:
            with pytest.raises(StaleEpoch):
                self.machine.seal(Epoch(self.epoch), LLSN(self.sealed_end))
            return
        effect = self.machine.seal(Epoch(self.epoch), LLSN(self.sealed_end))
        self.cut = effect if isinstance(effect, CutTail) else self.cut

    @rule()
    def finish_cut(self) -> None:
        if self.cut is not None:
            self.machine.tail_cut(self.cut.epoch, self.cut.end)
            self.cut = None

    @rule(primary=st.booleans())
    def unseal(self, primary: bool) -> None:
        machine = self.machine
        if machine.state is ReplicaState.SEALED and machine.epoch == self.epoch:
            assert machine.check_unseal(Epoch(self.epoch))
            machine.opened_as(Epoch(self.epoch), primary=True)
            self.repository_runs = True

    @rule()
    def restart(self) -> None:
        """What was not durable is gone; commits may be behind."""
        old = self.machine
        self.machine = ReplicaMachine(
            LogStreamID(1),
            old.epoch,
            old.sealed_end,
            old.opened,
            old.durable_end,
            old.committed_end,
            tail_epoch=old.tail_epoch,
        )
        self.cut = None

    @invariant()
    def what_is_ordered_is_held(self) -> None:
        """Laws 1, 2, 6: no cut ever takes away what the repository ordered."""
        if hasattr(self, "machine"):
            self.machine.validate()
            assert self.machine.durable_end >= self.ordered
            assert self.machine.committed_end <= self.ordered


Histories.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
TestAnyHistory = Histories.TestCase


def test_a_state_that_no_event_leads_to_is_refused() -> None:
    """`validate` is what the other tests call after every event: it must notice."""
    wrong = [
        ReplicaMachine(LogStreamID(1), Epoch(1), LLSN(1), True, LLSN(4), LLSN(5)),
        ReplicaMachine(LogStreamID(1), Epoch(1), LLSN(3), False, LLSN(9), LLSN(5)),
        ReplicaMachine(LogStreamID(1), Epoch(1), LLSN(1), False, LLSN(1), LLSN(1), ReplicaState.RUNNING),
        ReplicaMachine(LogStreamID(1), Epoch(1), LLSN(1), False, LLSN(4), LLSN(1), ReplicaState.SEALED),
        ReplicaMachine(LogStreamID(1), Epoch(1), LLSN(1), True, LLSN(4), LLSN(1), tail_epoch=Epoch(2)),
        ReplicaMachine(LogStreamID(1), Epoch(1), LLSN(1), False, LLSN(1), LLSN(1), evidence="a row"),
    ]
    for machine in wrong:
        with pytest.raises(InvariantBroken):
            machine.validate()


def test_a_replica_that_lost_commit_rows_is_restored_with_a_tail_of_older_epochs() -> None:
    """Law 6: it is not RUNNING, and rows of another epoch than its tail's are refused (seed 3715)."""
    machine = ReplicaMachine(LogStreamID(1), Epoch(4), LLSN(20), True, LLSN(21), LLSN(4), tail_epoch=Epoch(1))
    machine.validate()
    with pytest.raises(CommitAhead):
        machine.commit(CommitRow(9, GLSN(40), GLSN(30), GLSN(31), LLSN(4), 3, Epoch(2)))
    machine.seal(Epoch(5), LLSN(21))
    machine.validate()
