"""The log unit's machine against its laws: each drawn transition, then random histories against a model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from varlog.model.epoch import Epoch
from varlog.model.errors import AlreadyWritten, PreconditionFailed, StaleEpoch, Trimmed, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.invariant import InvariantBroken
from varlog.model.lsn import LLSN
from varlog.storagenode.sequenced.unit_machine import Pending, UnitMachine, WriteDecision


def fresh() -> UnitMachine:
    return UnitMachine(LogStreamID(1), Epoch(0), LLSN(1))


def serving(epoch: int = 1) -> UnitMachine:
    return UnitMachine(LogStreamID(1), Epoch(epoch), LLSN(1))


def batch(first: int, count: int = 1, value: bytes = b"a") -> Pending:
    return Pending(LLSN(first), count, b"%d %d " % (first, count) + value)


def test_a_new_unit_takes_the_first_seal_or_is_filled_before_any_other() -> None:
    """R-SEQ-12."""
    machine = fresh()
    with pytest.raises(PreconditionFailed):
        machine.seal(Epoch(2))
    machine.seal(Epoch(1))
    machine.entered(Epoch(1))
    machine.check(Epoch(1))
    remade = fresh()
    assert not remade.order(Epoch(5), LLSN(1)), "it has nothing to answer in that epoch with"
    with pytest.raises(PreconditionFailed):
        remade.seal(Epoch(1))  # that of the new stream, which comes late
    filled = fresh()
    filled.mark_filled()
    assert not filled.order(Epoch(5), LLSN(1)), "it joins by a seal alone"
    filled.seal(Epoch(5))
    filled.entered(Epoch(5))
    assert filled.epoch == 5


def test_an_epoch_counts_against_the_old_one_at_once_and_for_itself_when_it_is_durable() -> None:
    """R-SEQ-9, law 7."""
    machine = serving()
    machine.seal(Epoch(2))
    with pytest.raises(StaleEpoch):
        machine.check(Epoch(1))
    with pytest.raises(Unavailable):
        machine.check(Epoch(2))
    machine.seal(Epoch(2))
    machine.entered(Epoch(2))
    machine.check(Epoch(2))
    with pytest.raises(StaleEpoch):
        machine.seal(Epoch(1))


def test_a_newer_seal_while_one_is_kept_is_not_forgotten() -> None:
    machine = serving()
    machine.seal(Epoch(2))
    machine.seal(Epoch(4))
    machine.entered(Epoch(2))
    assert (machine.epoch, machine.entering) == (2, 4)
    with pytest.raises(StaleEpoch):
        machine.check(Epoch(2))
    with pytest.raises(StaleEpoch):
        machine.seal(Epoch(3))


def test_a_frozen_unit_answers_nobody() -> None:
    machine = serving()
    machine.freeze("a law broke")
    with pytest.raises(Unavailable):
        machine.check(Epoch(1))
    with pytest.raises(Unavailable):
        machine.seal(Epoch(2))
    assert not machine.order(Epoch(2), LLSN(5))
    assert machine.check_rebuild(Epoch(1), empty=False, trouble="")


def test_only_a_unit_that_cannot_continue_is_rebuilt() -> None:
    assert not fresh().check_rebuild(Epoch(3), empty=True, trouble="")
    assert serving().check_rebuild(Epoch(1), empty=False, trouble="it is damaged")
    with pytest.raises(PreconditionFailed):
        serving().check_rebuild(Epoch(1), empty=True, trouble="")
    with pytest.raises(StaleEpoch):
        serving(3).check_rebuild(Epoch(2), empty=False, trouble="it is damaged")


def test_a_batch_is_settled_once() -> None:
    machine = serving()
    one = batch(1)
    assert machine.write(one, None) is WriteDecision.WRITE
    machine.settled(one)
    with pytest.raises(InvariantBroken):
        machine.settled(one)


class AnyHistory(RuleBasedStateMachine):
    """Writes, ends of writes, seals, orders and trims in any order. The model is a dict: LLSN -> what was taken there, forever."""

    @initialize()
    def begin(self) -> None:
        self.machine = serving()
        self.pending: list[Pending] = []
        self.stored: list[Pending] = []
        self.values: dict[int, tuple[int, int, bytes]] = {}
        self.epochs = [1]

    @rule(first=st.integers(1, 12), count=st.integers(1, 4), value=st.sampled_from([b"a", b"b"]))
    def write(self, first: int, count: int, value: bytes) -> None:
        key = (first, count, value)
        there = {self.values.get(llsn) for llsn in range(first, first + count)}
        new = batch(first, count, value)
        overlap = min(
            (found for found in self.stored if found.first_llsn < first + count and first < found.end_llsn),
            key=lambda found: found.first_llsn,
            default=None,
        )
        try:
            decision = self.machine.write(new, overlap)
        except Trimmed:
            assert first + count <= self.machine.low
            return
        except AlreadyWritten:
            assert there != {None}
            assert there != {key}
            return
        assert first + count > self.machine.low
        if decision is WriteDecision.WRITE:
            assert there == {None}, "law 8"
            self.values.update(dict.fromkeys(range(first, first + count), key))
            self.pending.append(new)
        elif decision is WriteDecision.WAIT:
            assert there == {key}
            assert self.machine.pending_at(new.first_llsn, new.end_llsn) in self.pending
        else:
            assert overlap is not None
            assert (overlap.first_llsn, overlap.count) == (first, count), "the headers decide"

    @rule(data=st.data())
    def written(self, data: st.DataObject) -> None:
        if self.pending:
            done = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
            self.machine.settled(done)
            self.stored.append(done)

    @rule(data=st.data())
    def given_up(self, data: st.DataObject) -> None:
        """A seal cancels what is not begun: nothing of it is anywhere."""
        if self.pending:
            gone = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
            self.machine.settled(gone)
            for llsn in range(gone.first_llsn, gone.end_llsn):
                del self.values[llsn]

    @rule(epoch=st.integers(1, 6))
    def seal(self, epoch: int) -> None:
        before = self.machine.newest_epoch
        try:
            self.machine.seal(Epoch(epoch))
        except StaleEpoch:
            assert epoch < before
        else:
            assert self.machine.newest_epoch == epoch >= before

    @rule(epoch=st.integers(1, 6), low=st.integers(1, 14))
    def order(self, epoch: int, low: int) -> None:
        before = self.machine.newest_epoch, self.machine.low
        new = self.machine.order(Epoch(epoch), LLSN(low))
        now = self.machine.newest_epoch, self.machine.low
        assert now == (max(before[0], epoch), max(before[1], low))
        assert new is (now != before)

    @rule()
    def entered(self) -> None:
        if self.machine.entering:
            self.machine.entered(self.machine.entering)

    @invariant()
    def only_its_own_epoch_is_served(self) -> None:
        machine = self.machine
        for epoch in range(8):
            try:
                machine.check(Epoch(epoch))
            except (StaleEpoch, Unavailable):
                assert epoch != machine.epoch or machine.entering
            else:
                assert epoch == machine.epoch
                assert not machine.entering
        self.epochs.append(machine.epoch)
        assert self.epochs[-2] <= self.epochs[-1], "law 7"


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_state_that_no_event_leads_to_is_refused() -> None:
    """`validate` is what the other tests call after every event: it must notice."""
    one, other = batch(1, 3), batch(2)
    wrong = [
        UnitMachine(LogStreamID(1), Epoch(3), LLSN(1), entering=Epoch(3)),
        UnitMachine(LogStreamID(1), Epoch(3), LLSN(0)),
        UnitMachine(LogStreamID(1), Epoch(3), LLSN(1), _pending={LLSN(1): one}),
        UnitMachine(
            LogStreamID(1),
            Epoch(3),
            LLSN(1),
            _pending={LLSN(1): one, LLSN(2): other},
            _firsts=[LLSN(1), LLSN(2)],
        ),
    ]
    for machine in wrong:
        with pytest.raises(InvariantBroken):
            machine.validate()
