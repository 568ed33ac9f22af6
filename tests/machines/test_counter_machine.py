"""The counter against a plain integer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import MalformedCommand, UnknownCommand
from varlog.recipes.core.counter_machine import CounterMachine, add_command, set_command, swap_command

NUMBERS = st.integers(-(2**70), 2**70)
STEPS = st.one_of(
    st.tuples(st.just("add"), NUMBERS, NUMBERS),
    st.tuples(st.just("set"), NUMBERS, NUMBERS),
    st.tuples(st.just("swap"), NUMBERS | st.none(), NUMBERS),
)


@given(st.lists(STEPS))
def test_the_counter_is_as_an_integer_on_every_replica(steps: list[tuple[str, int | None, int]]) -> None:
    machine, value = CounterMachine(), 0
    for at, (step, amount, new) in enumerate(steps, 1):
        other = CounterMachine()
        other.restore(machine.snapshot())
        match step:
            case "add":
                command, value = add_command(new), value + new
            case "set":
                command, value = set_command(new), new
            case _:
                expected = value if amount is None else amount
                command = swap_command(expected, new)
                value, result = (new, new) if expected == value else (value, None)
                assert machine.apply(GLSN(at), command) == other.apply(GLSN(at), command) == result
                assert machine.value == other.value == value
                continue
        assert machine.apply(GLSN(at), command) == other.apply(GLSN(at), command) == value


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b'[2,"add",1]', UnknownCommand),
        (b'[1,"multiply",2]', MalformedCommand),
        (b"{", MalformedCommand),
        (b"[" * 100_000, MalformedCommand),
        (b'["2","add",1]', MalformedCommand),
        (b'[1,"add",1' + b"0" * 4200 + b"]", MalformedCommand),
    ],
)
def test_a_command_that_is_not_understood_changes_nothing(command: bytes, error: type[Exception]) -> None:
    machine = CounterMachine()
    with pytest.raises(error):
        machine.apply(GLSN(1), command)
    assert machine.value == 0
