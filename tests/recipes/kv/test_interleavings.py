"""Concurrent transactions, interleaved in any order, against a plain dictionary and a serial replay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varlog.model.lsn import GLSN
from varlog.recipes.errors import Conflict, SnapshotTooOld
from varlog.recipes.kv import kv_machine
from varlog.recipes.kv.key_order import prefix_range
from varlog.recipes.kv.key_value import KeyValue
from varlog.recipes.kv.kv_codec import CodedKvMachine
from varlog.recipes.kv.kv_machine import Retention
from varlog.recipes.kv.transaction_rules import Isolation
from varlog.recipes.kv.transactions import Transaction

KEYS = ["a", "a/1", "a/2", "b"]
PREFIXES = ["", "a", "a/", "b"]

Action = tuple[str, Any]
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("get"), st.sampled_from(KEYS)),
    st.tuples(st.just("range"), st.tuples(st.sampled_from(PREFIXES), st.none() | st.integers(0, 2))),
    st.tuples(st.just("put"), st.sampled_from(KEYS)),
    st.tuples(st.just("delete"), st.sampled_from(KEYS)),
    st.tuples(st.just("commit"), st.none()),
)
# Which of the open transactions does what next; two that overlap, again and again, find most of what can be found.
STEPS = st.lists(st.tuples(st.integers(0, 1), ACTIONS), min_size=12, max_size=40)
# Something to read and to change.
FIRST: list[tuple[int, Action]] = [*((0, ("put", key)) for key in KEYS), (0, ("commit", None))]


class LocalReplica:
    """A log that nobody else writes to: each command is applied at the next position, at once."""

    def __init__(self) -> None:
        self.machine = CodedKvMachine()
        self.applied = GLSN(0)

    async def execute(self, command: bytes, timeout_s: float | None = None) -> Any:
        self.applied = GLSN(self.applied + 1)
        return self.machine.apply(self.applied, command)


@dataclass
class Followed:
    """One transaction, what it did and what it saw."""

    transaction: Transaction
    base: dict[str, bytes]  # the state when it began
    seen: list[tuple[Action, Any]] = field(default_factory=list)  # of a write: what it wrote
    writes: dict[str, bytes | None] = field(default_factory=dict)


def answer(action: Action, state: dict[str, bytes]) -> Any:
    """What a read gives in a state."""
    kind, argument = action
    if kind == "get":
        return state.get(argument)
    prefix, limit = argument
    return sorted(item for item in state.items() if item[0] in prefix_range(prefix))[:limit]


def over(state: dict[str, bytes], writes: dict[str, bytes | None]) -> dict[str, bytes]:
    merged = {**state, **writes}
    return {key: value for key, value in merged.items() if value is not None}


class World:
    """Open transactions, and the truth: the state after every commit."""

    def __init__(self, isolation: Isolation, retention: Retention) -> None:
        self.isolation = isolation
        self.replica = LocalReplica()
        self.replica.machine.retain(retention)
        self.kv = KeyValue(cast("Any", self.replica), cast("Any", None))
        self.state: dict[str, bytes] = {}
        self.open: dict[int, Followed] = {}
        self.committed: list[Followed] = []
        self.refused: list[tuple[Conflict, Transaction]] = []
        self._number = 0

    async def step(self, who: int, action: Action) -> None:
        followed = self.open.get(who)
        if followed is None:
            followed = self.open[who] = Followed(Transaction(self.kv, self.isolation), dict(self.state))
        try:
            await self._do(followed, action)
        except Conflict as conflict:
            self.refused.append((conflict, followed.transaction))
            del self.open[who]
        if action[0] == "commit":
            self.open.pop(who, None)

    async def _do(self, followed: Followed, action: Action) -> None:
        transaction, (kind, argument) = followed.transaction, action
        if kind == "put":
            self._number += 1
            followed.writes[argument] = b"%d" % self._number
            transaction.put(argument, b"%d" % self._number)
        elif kind == "delete":
            followed.writes[argument] = None
            transaction.delete(argument)
        elif kind == "commit":
            await transaction.commit()
            self.state = over(self.state, followed.writes)
            self.committed.append(followed)
        else:
            seen = (
                transaction.get(argument)
                if kind == "get"
                else transaction.range(argument[0], limit=argument[1])
            )
            base = self.state if self.isolation is Isolation.READ_COMMITTED else followed.base
            assert seen == answer(action, over(base, followed.writes))
            followed.seen.append((action, seen))
            return
        followed.seen.append((action, followed.writes.get(argument)))


async def play(steps: list[tuple[int, Action]], isolation: Isolation, retention: Retention) -> World:
    world = World(isolation, retention)
    for who, action in FIRST + steps:
        await world.step(who, action)
    held = {change.key: change.value for change in world.replica.machine.within(prefix_range(""))}
    assert held == world.state
    for conflict, transaction in world.refused:
        assert isolation is not Isolation.READ_COMMITTED
        assert isinstance(conflict, SnapshotTooOld) or conflict.revision > transaction.snapshot
    return world


RETENTIONS = st.sampled_from([Retention(), Retention(changes=3), Retention(changes=0)])


@pytest.mark.parametrize("isolation", list(Isolation))
@given(steps=STEPS, retention=RETENTIONS)
def test_every_read_is_of_the_right_state_with_own_writes(
    isolation: Isolation, steps: list[tuple[int, Action]], retention: Retention
) -> None:
    asyncio.run(play(steps, isolation, retention))


@settings(max_examples=300)
@given(steps=STEPS, retention=RETENTIONS, short=st.booleans())
def test_serializable_ones_see_what_they_would_have_seen_one_after_the_other(
    steps: list[tuple[int, Action]], retention: Retention, short: bool
) -> None:
    """R-USE-2. Those that write, in the order of their commits: everything that each of them read is replayed
    there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_machine, "SHORT_RANGE_KEYS", 64 if short else 0)
        world = asyncio.run(play(steps, Isolation.SERIALIZABLE, retention))
    state: dict[str, bytes] = {}
    for followed in world.committed:
        if not followed.writes:
            continue  # as of when it began: tested above
        own: dict[str, bytes | None] = {}
        for action, seen in followed.seen:
            if action[0] in ("get", "range"):
                assert seen == answer(action, over(state, own)), "another order would have been seen"
            elif action[0] in ("put", "delete"):
                own[action[1]] = seen
        state = over(state, followed.writes)


def test_the_same_steps_show_write_skew_under_snapshot_and_not_under_serializable() -> None:
    """R-USE-2: the levels of isolation differ."""
    get_a, get_b = ("get", "a"), ("get", "b")
    steps: list[tuple[int, Action]] = [(0, get_a), (0, get_b), (1, get_a), (1, get_b)]
    steps += [(0, ("put", "a")), (1, ("put", "b")), (0, ("commit", None)), (1, ("commit", None))]
    skewed = asyncio.run(play(steps, Isolation.SNAPSHOT, Retention()))
    assert (len(skewed.committed), len(skewed.refused)) == (3, 0)
    serial = asyncio.run(play(steps, Isolation.SERIALIZABLE, Retention()))
    assert (len(serial.committed), len(serial.refused)) == (2, 1)
