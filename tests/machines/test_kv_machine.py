"""The key/value store against a plain history of all its states, and its replicas against each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines.kv_history import COMMANDS, RANGES, KvHistory, placed, play
from varlog.model.invariant import InvariantBroken
from varlog.model.lsn import GLSN
from varlog.recipes.kv import kv_machine
from varlog.recipes.kv.key_order import KeyRange
from varlog.recipes.kv.kv_codec import CodedKvMachine, Commit, KvCommand, encode_kv_command
from varlog.recipes.kv.kv_machine import KvMachine, Retention
from varlog.recipes.kv.transaction_rules import Isolation


def check(machine: KvMachine, history: KvHistory, ranges: list[KeyRange]) -> None:
    """Everything that it can be asked, at every position that it remembers."""
    assert machine.revision == max((at for at, _, _ in history.changes), default=0)
    for at in range(machine.horizon, len(history.states)):
        state = history.states[at]
        for key in ("", "a", "a/1", "a/2", "b", "b/1", "c", "other"):
            found = machine.get_at(key, GLSN(at))
            assert (found and (found.value, found.revision)) == state.get(key), (at, key)
        for keys in ranges:
            held = [(key, value, revision) for key, (value, revision) in sorted(state.items()) if key in keys]
            assert [tuple(change) for change in machine.within_at(keys, GLSN(at))] == held
        later = [(key, value, then) for then, key, value in history.changes if then > at]
        assert [tuple(change) for change in machine.changes_after(GLSN(at))] == later
    for key, (value, revision) in history.now.items():
        assert machine.get(key) == (key, value, revision)
    assert [change.key for change in machine.within(KeyRange())] == sorted(history.now)
    remembered = machine.changes_after(machine.horizon)
    assert len(remembered) <= machine.retention.changes
    assert sum(change.size for change in remembered) <= machine.retention.bytes
    assert len(machine) <= len(history.now) + sum(change.value is None for change in remembered)


@given(st.lists(COMMANDS, max_size=25), st.lists(RANGES, max_size=2), st.booleans())
def test_every_state_from_the_horizon_on_can_be_read_as_it_was(
    commands: list[KvCommand], ranges: list[tuple[str, str | None]], short: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_machine, "SHORT_RANGE_KEYS", 64 if short else 0)
        machine, history = CodedKvMachine(), KvHistory()
        for drawn in commands:
            command = placed(drawn, history)
            play(history, command, machine.apply(history.next, encode_kv_command(command)))
            check(machine, history, [KeyRange(*keys) for keys in ranges])


@given(st.lists(st.tuples(COMMANDS, st.booleans()), max_size=30))
def test_a_replica_that_is_restored_again_and_again_stays_the_same(
    commands: list[tuple[KvCommand, bool]],
) -> None:
    """R-USE-2: results, history and the bytes of the snapshot are equal: nothing that a replica knows is
    outside of its snapshot."""
    steady, restored, history = CodedKvMachine(), CodedKvMachine(), KvHistory()
    for drawn, again in commands:
        command = placed(drawn, history)
        result = steady.apply(history.next, encode_kv_command(command))
        assert restored.apply(history.next, encode_kv_command(command)) == result
        play(history, command, result)
        snapshot = steady.snapshot()
        assert restored.snapshot() == snapshot
        assert restored.changes_after(restored.horizon) == steady.changes_after(steady.horizon)
        if again:
            restored = CodedKvMachine()
            restored.restore(snapshot)


def test_a_tombstone_is_forgotten_with_its_history_and_nothing_else_is() -> None:
    machine = KvMachine()
    machine.retain(Retention(changes=2))
    machine.put(GLSN(1), "kept", b"1")
    machine.put(GLSN(2), "gone", b"2")
    machine.delete(GLSN(3), "gone")
    assert len(machine) == 2 and machine.get("gone") is None and machine.changed("gone") == 3
    machine.put(GLSN(4), "other", b"4")
    machine.put(GLSN(5), "other", b"5")
    assert len(machine) == 2 and machine.horizon == 3
    assert machine.get("kept") == ("kept", b"1", 1) and machine.changed("gone") == 0


def test_a_revision_is_forgotten_as_a_whole() -> None:
    """Half of a transaction's changes would show a watcher a state that never existed."""
    machine = CodedKvMachine()
    machine.retain(Retention(changes=3))
    writes: dict[str, bytes | None] = {"a": b"", "b": b"", "c": b""}
    machine.apply(GLSN(1), encode_kv_command(Commit(Isolation.SNAPSHOT, GLSN(0), [], [], writes)))
    machine.put(GLSN(2), "d", b"")
    assert machine.horizon == 1 and [change.key for change in machine.changes_after(GLSN(1))] == ["d"]


def test_without_any_history_it_is_still_a_map() -> None:
    machine = KvMachine()
    machine.retain(Retention(changes=0))
    for at in range(1, 5):
        machine.put(GLSN(at), "a", b"%d" % at)
        assert machine.get("a") == ("a", b"%d" % at, at) and machine.horizon == at
    machine.delete(GLSN(5), "a")
    assert machine.get("a") is None and len(machine) == 0


@pytest.mark.parametrize("read", [lambda m: m.get_at("a", GLSN(1)), lambda m: m.changes_after(GLSN(1))])
def test_nothing_is_returned_from_before_the_horizon(read: object) -> None:
    machine = KvMachine()
    machine.retain(Retention(bytes=3))
    for at in range(1, 5):
        machine.put(GLSN(at), "a", b"xx")
    assert machine.horizon == 3 and callable(read)
    with pytest.raises(InvariantBroken, match="forgotten"):
        read(machine)
