"""The queue against a plain model: first in, first out, each item with one holder at most, nothing lost, nothing done twice."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from varlog.model.lsn import GLSN
from varlog.recipes.queue.queue_codec import (
    CodedQueueMachine,
    CompleteItem,
    ExpireClaim,
    PutItems,
    QueueCommand,
    RenewClaim,
    ReturnItem,
    TakeItem,
    encode_queue_command,
)
from varlog.recipes.queue.queue_machine import Taken

TTL_US = 1_000_000


class QueueAgainstAModel(RuleBasedStateMachine):
    """`ready` in order and `held` by token are the model. A replica that begins from a snapshot now and then must be the same."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = CodedQueueMachine()
        self.other = CodedQueueMachine()
        self.at = GLSN(0)
        self.put_before = 0
        self.ready: list[int] = []
        self.held: dict[GLSN, int] = {}
        self.sign: dict[GLSN, GLSN] = {}
        self.over: list[GLSN] = []
        self.deliveries: dict[int, int] = {}

    def apply(self, command: QueueCommand) -> object:
        self.at = GLSN(self.at + 1)
        result = self.machine.apply(self.at, encode_queue_command(command))
        assert self.other.apply(self.at, encode_queue_command(command)) == result
        return result

    def draw_token(self, data: st.DataObject) -> GLSN:
        """One that holds, one that is over, or one that never was."""
        return data.draw(st.sampled_from([*self.held, *self.over, GLSN(10**6)]))

    def end(self, token: GLSN, *, back: bool) -> None:
        number = self.held.pop(token)
        self.over.append(token)
        if back:
            self.ready = sorted([*self.ready, number])

    @rule(count=st.integers(0, 3))
    def put(self, count: int) -> None:
        bodies = [b"%d" % (self.put_before + index + 1) for index in range(count)]
        numbers = list(range(self.put_before + 1, self.put_before + count + 1))
        assert self.apply(PutItems(bodies)) == numbers
        self.put_before += count
        self.ready += numbers

    @rule()
    def take(self) -> None:
        result = self.apply(TakeItem("me", TTL_US))
        if not self.ready:
            assert result is None
            return
        assert isinstance(result, Taken)
        number = self.ready.pop(0)
        self.deliveries[number] = self.deliveries.get(number, 0) + 1
        assert (result.item.number, result.item.body) == (number, b"%d" % number)
        assert result.item.deliveries == self.deliveries[number]
        assert all(result.token > token for token in [*self.held, *self.over])
        self.held[result.token] = number
        self.sign[result.token] = self.at

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        token = self.draw_token(data)
        assert self.apply(RenewClaim(token, 1)) is (token in self.held)
        self.sign[token] = self.at

    @rule(data=st.data(), back=st.booleans())
    def end_by_its_holder(self, data: st.DataObject, back: bool) -> None:
        token = self.draw_token(data)
        assert self.apply(ReturnItem(token) if back else CompleteItem(token)) is (token in self.held)
        if token in self.held:
            self.end(token, back=back)

    @rule(data=st.data(), late=st.booleans())
    def expire(self, data: st.DataObject, late: bool) -> None:
        """The sender may not have seen the last heartbeat yet: then nothing happens."""
        token = self.draw_token(data)
        sign = GLSN(self.sign.get(token, GLSN(0)) - late)
        ends = token in self.held and not late
        assert self.apply(ExpireClaim(token, sign)) is ends
        if ends:
            self.end(token, back=True)

    @rule()
    def begin_from_a_snapshot(self) -> None:
        self.other = CodedQueueMachine()
        self.other.restore(self.machine.snapshot())

    @invariant()
    def both_are_the_model(self) -> None:
        for machine in (self.machine, self.other):
            assert machine.ready == len(self.ready)
            assert {claim.token: claim.number for claim in machine.claims()} == self.held
            assert [item.number for item in machine.items()] == sorted([*self.ready, *self.held.values()])
        assert self.machine.snapshot() == self.other.snapshot()


def test_the_queue_is_as_its_model_whatever_is_done_with_it() -> None:
    run_state_machine_as_test(QueueAgainstAModel, settings=settings(max_examples=200, stateful_step_count=50))
