"""Turns of transactions that clashed over a key: one after the other, in order of arrival, and none waits forever."""

from __future__ import annotations

import asyncio

import pytest

from varlog.recipes.kv import transactions
from varlog.recipes.kv.transactions import ConflictQueue, ConflictTurn

DEADLINE_S = 60.0


def test_the_turn_passes_on_in_order_of_arrival_and_nothing_is_left() -> None:
    async def body() -> None:
        order: list[int] = []
        all_turns, begin = ConflictQueue(), asyncio.Event()

        async def clash(number: int) -> None:
            async with ConflictTurn(all_turns) as turn:
                await turn.wait_for("key")
                order.append(number)
                await begin.wait()

        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            for number in range(5):
                tasks.create_task(clash(number), name=f"clash/{number}")
            await asyncio.sleep(0)
            assert order == [0] and len(all_turns) == 1, "the others wait"
            begin.set()
        assert order == [0, 1, 2, 3, 4] and len(all_turns) == 0

    asyncio.run(body())


def test_none_has_two_turns_so_two_never_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than the deadline: a waiter whose turn does not come never proceeds without it.
    monkeypatch.setattr(transactions, "TURN_S", 2 * DEADLINE_S)

    async def body() -> None:
        all_turns = ConflictQueue()
        async with (
            asyncio.timeout(DEADLINE_S),
            ConflictTurn(all_turns) as one,
            ConflictTurn(all_turns) as other,
        ):
            await one.wait_for("a")
            await one.wait_for("a")
            await other.wait_for("b")
            waits = asyncio.create_task(
                one.wait_for("b")
            )  # gives "a" back, and so does not hold up the other
            await asyncio.sleep(0)
            await other.wait_for("a")
            await waits
            assert len(all_turns) == 2
        assert len(all_turns) == 0

    asyncio.run(body())


def test_a_waiter_proceeds_without_its_turn_after_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction inside a transaction would wait for itself."""
    monkeypatch.setattr(transactions, "TURN_S", 0.001)

    async def body() -> None:
        all_turns = ConflictQueue()
        async with asyncio.timeout(DEADLINE_S), ConflictTurn(all_turns) as outer:
            await outer.wait_for("key")
            async with ConflictTurn(all_turns) as inner:
                await inner.wait_for("key")
            assert len(all_turns) == 1, "it is still the outer one's"
        assert len(all_turns) == 0

    asyncio.run(body())


def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    async def body() -> None:
        all_turns = ConflictQueue()
        async with asyncio.timeout(DEADLINE_S), ConflictTurn(all_turns) as first:
            await first.wait_for("key")
            second = asyncio.create_task(ConflictTurn(all_turns).wait_for("key"))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
        assert len(all_turns) == 0

    asyncio.run(body())
