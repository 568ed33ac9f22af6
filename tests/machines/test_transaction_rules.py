"""Which transactions are committed, at each level of isolation, against a full memory of who changed what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines.kv_history import COMMANDS, KvHistory, placed, play
from varlog.model.lsn import GLSN
from varlog.recipes.kv import kv_machine
from varlog.recipes.kv.key_order import KeyRange, prefix_range
from varlog.recipes.kv.kv_codec import CodedKvMachine, Commit, KvCommand, encode_kv_command
from varlog.recipes.kv.kv_machine import KvMachine, Retention
from varlog.recipes.kv.transaction_rules import Clash, Footprint, Isolation, find_clash

RC, SI, SER = Isolation.READ_COMMITTED, Isolation.SNAPSHOT, Isolation.SERIALIZABLE


def really_clashes(command: Commit, history: KvHistory) -> bool:
    """By definition, with nothing forgotten."""
    since = command.snapshot
    if command.isolation is RC:
        return False
    if command.isolation is SI:
        return any(history.changed(key, since) for key in command.writes)
    return any(history.changed(key, since) for key in command.reads) or any(
        history.changed_within(KeyRange(*keys), since) for keys in command.ranges
    )


@given(st.lists(COMMANDS, max_size=30), st.booleans())
def test_none_that_clashes_is_committed_and_none_is_refused_that_does_not(
    commands: list[KvCommand], short: bool
) -> None:
    """R-USE-2, at each level. Only a transaction whose snapshot is older than the horizon may be refused
    without a clash, and the error names that reason."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_machine, "SHORT_RANGE_KEYS", 64 if short else 0)
        machine, history = CodedKvMachine(), KvHistory()
        for drawn in commands:
            command = placed(drawn, history)
            horizon, before = machine.horizon, machine.snapshot()
            result = machine.apply(history.next, encode_kv_command(command))
            if isinstance(command, Commit):
                clashes = really_clashes(command, history)
                assert not (clashes and result == history.next), "a clash was committed"
                if isinstance(result, Clash):
                    assert clashes or (result.too_old and command.snapshot < horizon)
                    assert machine.snapshot() == before, "a refused transaction changed something"
                    if not result.too_old:
                        assert history.changed(result.key, command.snapshot)
            play(history, command, result)


def machine_with(*keys: str) -> KvMachine:
    machine = KvMachine()
    for at, key in enumerate(keys, 1):
        machine.put(GLSN(at), key, b"old")
    return machine


def test_write_skew_is_committed_under_snapshot_and_refused_under_serializable() -> None:
    """R-USE-2: the levels differ. Both read both, and each writes one: neither could have seen the other."""
    for isolation, expected in ((SI, GLSN(4)), (SER, Clash("x", GLSN(3), GLSN(2)))):
        machine = machine_with("x", "y")
        first = Footprint(isolation, GLSN(2), ("x", "y"), (), {"x": b"new"})
        second = Footprint(isolation, GLSN(2), ("x", "y"), (), {"y": b"new"})
        assert machine.commit(GLSN(3), first) == 3
        assert machine.commit(GLSN(4), second) == expected


def test_a_lost_update_is_possible_under_read_committed_alone() -> None:
    for isolation in Isolation:
        machine = machine_with("x")
        update = Footprint(isolation, GLSN(1), ("x",), (), {"x": b"+1"})
        assert machine.commit(GLSN(2), update) == 2
        again = machine.commit(GLSN(3), update)
        assert again == (3 if isolation is RC else Clash("x", GLSN(2), GLSN(1)))


@pytest.mark.parametrize("inserts", [True, False])
def test_a_phantom_is_a_clash_under_serializable(inserts: bool) -> None:
    """A key that came into the range that was read, or left it."""
    machine = machine_with("seat/1", "z")
    if inserts:
        machine.put(GLSN(3), "seat/2", b"taken")
    else:
        machine.delete(GLSN(3), "seat/1")
    read = Footprint(SER, GLSN(2), (), (prefix_range("seat/"),), {"count": b"1"})
    clash = machine.commit(GLSN(4), read)
    assert clash == Clash("seat/2" if inserts else "seat/1", GLSN(3), GLSN(2), prefix_range("seat/"))
    assert machine.get("count") is None


def test_a_key_read_as_missing_that_came_and_went_is_a_clash() -> None:
    machine = machine_with("x")
    machine.put(GLSN(2), "y", b"")
    machine.delete(GLSN(3), "y")
    assert find_clash(machine, Footprint(SER, GLSN(1), ("y",))) == Clash("y", GLSN(3), GLSN(1))
    assert find_clash(machine, Footprint(SER, GLSN(3), ("y",))) is None


def test_blind_writes_never_clash_under_serializable() -> None:
    machine = machine_with("x")
    machine.put(GLSN(2), "x", b"")
    assert machine.commit(GLSN(3), Footprint(SER, GLSN(1), (), (), {"x": b"3"})) == 3


def test_two_inserts_of_a_key_clash_under_snapshot() -> None:
    machine = machine_with("other")
    insert = Footprint(SI, GLSN(1), (), (), {"x": b""})
    assert machine.commit(GLSN(2), insert) == 2
    assert machine.commit(GLSN(3), insert) == Clash("x", GLSN(2), GLSN(1))


@pytest.mark.parametrize(
    "footprint",
    [
        Footprint(SI, GLSN(1), (), (), {"gone": b"back"}),
        Footprint(SER, GLSN(1), ("gone",), (), {"y": b""}),
        Footprint(SER, GLSN(1), (), (prefix_range("g"),), {"y": b""}),
    ],
)
def test_a_delete_whose_tombstone_is_forgotten_is_still_a_clash(footprint: Footprint) -> None:
    """What cannot be decided is refused: the key existed at the snapshot, and no record of its delete is left."""
    machine = machine_with("gone")
    machine.delete(GLSN(2), "gone")
    machine.retain(Retention(changes=0))
    clash = machine.commit(GLSN(3), footprint)
    assert isinstance(clash, Clash) and clash.too_old
    later = Footprint(footprint.isolation, GLSN(2), footprint.reads, footprint.ranges, footprint.writes)
    assert machine.commit(GLSN(4), later) == 4


def test_an_existing_key_is_checked_exactly_however_old_the_snapshot_is() -> None:
    machine = machine_with("x", "y", "y", "y")
    machine.retain(Retention(changes=0))
    assert find_clash(machine, Footprint(SER, GLSN(1), ("x",))) is None
    assert find_clash(machine, Footprint(SI, GLSN(1), (), (), {"x": b""})) is None
    assert find_clash(machine, Footprint(SER, GLSN(1), ("y",))) == Clash("y", GLSN(4), GLSN(1))


@given(st.lists(COMMANDS, min_size=1, max_size=20))
def test_once_refused_always_refused(commands: list[KvCommand]) -> None:
    """So a replica that finds a clash in what it has applied so far need not consult the log."""
    machine, history = CodedKvMachine(), KvHistory()
    refused: list[Footprint] = []
    for drawn in commands:
        command = placed(drawn, history)
        if isinstance(command, Commit):
            ranges = [KeyRange(*keys) for keys in command.ranges]
            asked = Footprint(command.isolation, command.snapshot, command.reads, ranges, command.writes)
            if find_clash(machine, asked):
                refused.append(asked)
        machine.apply(history.next, encode_kv_command(command))
        history.write({})
        assert all(find_clash(machine, asked) for asked in refused)
