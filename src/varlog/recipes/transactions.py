"""Transactions: begins and runs transactions over a KeyValue, at one of three levels of isolation (R-USE-2).

async def transfer(bank: Transaction) -> None: ...
await Transactions(kv).run(transfer)                   # again, if another one changed what it had read
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

from varlog.model.errors import InvalidRequest
from varlog.recipes.conflict_queue import ConflictQueue, ConflictTurn
from varlog.recipes.errors import Conflict
from varlog.recipes.kv import KeyValue
from varlog.recipes.transaction import Transaction
from varlog.recipes.transaction_rules import Isolation

T = TypeVar("T")

RETRIES = 32
# Before a try that follows others: up to this, doubled with each, so that processes that fight for a key get out of step.
BACKOFF_S, BACKOFF_S_MAX = 0.001, 0.1


class Transactions:
    """Transactions over one map. `isolation` is the level of those that name no other."""

    def __init__(self, kv: KeyValue, *, isolation: Isolation | str = Isolation.SERIALIZABLE) -> None:
        self.kv = kv
        self.isolation = _level(isolation)
        self._turns = ConflictQueue()

    async def begin(
        self,
        isolation: Isolation | str | None = None,
        *,
        stale: bool = False,
        timeout_s: float | None = None,
    ) -> Transaction:
        """It sees everything that anybody was told is committed before; with `stale` it asks nobody, and sees what is applied here.
        What it commits is judged alike in both cases."""
        level = self.isolation if isolation is None else _level(isolation)
        await self.kv.wait_fresh(stale, timeout_s)
        return Transaction(self.kv, level)

    @overload
    async def run(
        self,
        function: Callable[[Transaction], Coroutine[Any, Any, T]],
        *,
        isolation: Isolation | str | None = None,
        retries: int = RETRIES,
        timeout_s: float | None = None,
    ) -> T: ...

    @overload
    async def run(
        self,
        function: Callable[[Transaction], T],
        *,
        isolation: Isolation | str | None = None,
        retries: int = RETRIES,
        timeout_s: float | None = None,
    ) -> T: ...

    async def run(
        self,
        function: Callable[[Transaction], Any],
        *,
        isolation: Isolation | str | None = None,
        retries: int = RETRIES,
        timeout_s: float | None = None,
    ) -> Any:
        """Call `function` with a transaction, and commit that; after a Conflict, again: so it must do nothing but read and write in
        the transaction. Returns what it returned; the last Conflict, if there were more than `retries`. OutcomeUnknown is not
        tried again: only the caller knows whether twice is harmless.

        `timeout_s` is for each question to the log. Whatever `function` raises drops the transaction, and is raised."""
        if retries < 0:
            raise InvalidRequest(f"{retries} retries: name 0 or more")
        async with ConflictTurn(self._turns) as turn:
            for tried in range(retries):
                try:
                    return await self._try(function, isolation, tried > 0, timeout_s)
                except Conflict as conflict:
                    await turn.wait_for(conflict.key)
                if tried:
                    await self._back_off(tried)
            return await self._try(function, isolation, retries > 0, timeout_s)

    @property
    def waiting(self) -> int:
        """Over how many keys somebody has clashed here, and is not done yet."""
        return len(self._turns)

    async def _try(
        self,
        function: Callable[[Transaction], Any],
        isolation: Isolation | str | None,
        again: bool,
        timeout_s: float | None,
    ) -> Any:
        # Again is fresh enough without asking: what it clashed with is applied here, and so is all that was before the first time.
        transaction = await self.begin(isolation, stale=again, timeout_s=timeout_s)
        try:
            result = function(transaction)
            if inspect.isawaitable(result):
                result = await result
            await transaction.commit(timeout_s=timeout_s)
            return result
        finally:
            transaction.abort()

    async def _back_off(self, tried: int) -> None:
        most_s = min(BACKOFF_S_MAX, BACKOFF_S * 2**tried)
        await asyncio.sleep(self.kv.entropy.uniform(0, most_s))


def _level(isolation: Isolation | str) -> Isolation:
    try:
        return Isolation(isolation)
    except ValueError:
        known = ", ".join(Isolation)
        raise InvalidRequest(f"there is no level of isolation {isolation!r}: name one of {known}") from None
