"""What a key/value store must be, the plain way: every state that it ever had, remembered in full."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from varlog.model.lsn import GLSN
from varlog.recipes.kv.key_order import KeyRange
from varlog.recipes.kv.kv_codec import Commit, CompareAndSet, Delete, KvCommand, Put, Retain
from varlog.recipes.kv.transaction_rules import Clash, Isolation

KEYS = st.sampled_from(["", "a", "a/1", "a/2", "b", "b/1", "c"])
VALUES = st.binary(max_size=3)
RANGES = st.tuples(KEYS, st.none() | KEYS)
# Far enough back to be before the horizon at times; made a position when its turn comes.
AGO = st.integers(0, 12)

COMMANDS: st.SearchStrategy[KvCommand] = st.one_of(
    st.builds(Put, KEYS, VALUES),
    st.builds(Delete, KEYS),
    st.builds(CompareAndSet, KEYS, st.none() | VALUES, AGO.map(GLSN)),
    st.builds(
        Commit,
        st.sampled_from(Isolation),
        AGO.map(GLSN),
        st.lists(KEYS, max_size=2),
        st.lists(RANGES, max_size=2),
        st.dictionaries(KEYS, st.none() | VALUES, max_size=3),
    ),
    st.builds(Retain, st.integers(0, 6), st.integers(0, 30)),
)

State = dict[str, tuple[bytes, GLSN]]


@dataclass
class KvHistory:
    """`states[n]` is the state after position n; `changes` are all changes ever: (revision, key, value)."""

    states: list[State] = field(default_factory=lambda: [{}])
    changes: list[tuple[GLSN, str, bytes | None]] = field(default_factory=list)

    @property
    def now(self) -> State:
        return self.states[-1]

    @property
    def next(self) -> GLSN:
        return GLSN(len(self.states))

    def write(self, writes: dict[str, bytes | None]) -> None:
        """What the command at the next position changes; nothing, if it is empty."""
        state, at = dict(self.now), self.next
        for key, value in sorted(writes.items()):
            if value is not None:
                state[key] = (value, at)
            elif key in state:
                del state[key]
            else:
                continue  # nothing was there, so nothing changes
            self.changes.append((at, key, value))
        self.states.append(state)

    def changed(self, key: str, after: int) -> bool:
        return any(at > after and changed == key for at, changed, _ in self.changes)

    def changed_within(self, keys: KeyRange, after: int) -> bool:
        return any(at > after and changed in keys for at, changed, _ in self.changes)


def placed(command: KvCommand, history: KvHistory) -> KvCommand:
    """With positions instead of distances: a snapshot of so long ago, the revision that a key had lately."""
    if isinstance(command, Commit):
        snapshot = GLSN(max(history.next - 1 - command.snapshot, 0))
        return Commit(command.isolation, snapshot, command.reads, command.ranges, command.writes)
    if isinstance(command, CompareAndSet):
        then = history.states[max(len(history.states) - 1 - command.expected // 4, 0)]
        return CompareAndSet(command.key, command.value, then.get(command.key, (b"", GLSN(0)))[1])
    return command


def play(history: KvHistory, command: KvCommand, result: object) -> None:
    """What the command should have done; of a commit only that it did all or nothing (the rule has a test of its own)."""
    at = history.next
    match command:
        case Put(key, value):
            assert result == at
            history.write({key: value})
        case Delete(key):
            assert result == (at if key in history.now else None)
            history.write({key: None})
        case CompareAndSet(key, value, expected):
            matches = history.now.get(key, (b"", 0))[1] == expected
            assert result == (at if matches else None)
            history.write({key: value} if matches else {})
        case Commit():
            assert result == at or isinstance(result, Clash)
            history.write(command.writes if result == at else {})
        case Retain():
            history.write({})
