"""Transactions, Transaction: atomic reads and writes of a KeyValue (R-USE-2).

async def transfer(bank: Transaction) -> None: ...
await Transactions(kv).run(transfer)                   # again, if another one changed what it had read
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from heapq import merge
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from varlog.model.batch import Buffer
from varlog.model.errors import InvalidRequest, PreconditionFailed
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.errors import Conflict, SnapshotTooOld
from varlog.recipes.kv.key_order import KeyRange, prefix_range, up_to
from varlog.recipes.kv.key_value import KeyValue
from varlog.recipes.kv.kv_codec import checked_key, checked_range, checked_value, encode_commit
from varlog.recipes.kv.transaction_rules import Clash, Footprint, Isolation, find_clash

T = TypeVar("T")

RETRIES = 32
# Before a retry: a random pause up to this, doubled with each, so that processes that compete for a key get out of step.
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
        """It sees every commit that was acknowledged before; with `stale` it does not ask, and sees what is applied here. Its
        commit is checked in the same way in both cases."""
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
        retried: only the caller knows whether twice is harmless.

        `timeout_s` is for each request to the log. What `function` raises drops the transaction, and is raised."""
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
        """Over how many keys transactions have clashed here that are not done yet."""
        return len(self._turns)

    async def _try(
        self,
        function: Callable[[Transaction], Any],
        isolation: Isolation | str | None,
        again: bool,
        timeout_s: float | None,
    ) -> Any:
        # A retry is fresh enough without asking: what it clashed with is applied here, and all that was before the first try.
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


class Transaction:
    """One transaction. Reads are of one moment (read_committed: of the newest state that is applied here), with its own writes.

    It reads the state at one position (`snapshot`) in memory, keeps its writes to itself, and becomes one command, which every
    replica checks alike, by transaction_rules.py. Nothing is locked, no transaction waits for one that has stopped, and one
    that only reads asks the log only for its tail.

    `async with` commits it at the end, or drops it if the block raises. Conflict says which key another one has changed.
    """

    def __init__(self, kv: KeyValue, isolation: Isolation) -> None:
        self.isolation = isolation
        self.snapshot = kv.revision
        self._replica = kv.replica
        self._reads: set[str] = set()
        self._ranges: dict[KeyRange, None] = {}  # a set that stays in order
        self._writes: dict[str, bytes | None] = {}
        self._over = False

    def get(self, key: str) -> bytes | None:
        """The key's value; None if it does not exist."""
        self._check_open()
        if key in self._writes:
            return self._writes[key]
        self._check_remembered(checked_key(key), None)
        machine = self._replica.machine
        if self.isolation is Isolation.READ_COMMITTED:
            found = machine.get(key)
        else:
            found = machine.get_at(key, self.snapshot)
            self._reads.add(key)
        return None if found is None else found.value

    def range(
        self, prefix: str = "", *, keys: KeyRange | None = None, limit: int | None = None
    ) -> list[tuple[str, bytes]]:
        """All keys that begin with `prefix`, or those of a range, with their values, in their order, at most `limit`."""
        self._check_open()
        wanted = prefix_range(checked_key(prefix)) if keys is None else checked_range(keys)
        self._check_remembered(wanted.begin, wanted)
        found = list(islice(merge(self._committed(wanted), self._own(wanted)), limit))
        if limit is not None and len(found) >= limit:
            # Nothing was read of what comes after: changing it does no harm.
            if not found:
                return []
            wanted = up_to(wanted.begin, found[-1][0])
        self._ranges[wanted] = None
        return found

    def put(self, key: str, value: Buffer) -> None:
        """Seen by others when it is committed."""
        self._check_open()
        self._writes[checked_key(key)] = checked_value(value)

    def delete(self, key: str) -> None:
        """Deleting a key that does not exist does nothing."""
        self._check_open()
        self._writes[checked_key(key)] = None

    async def commit(self, *, timeout_s: float | None = None) -> GLSN:
        """Returns the revision of everything it wrote; its snapshot if it wrote nothing. Conflict: nothing was written. After
        OutcomeUnknown all of it is written, or nothing."""
        self._check_open()
        self._over = True
        if not self._writes:
            return self.snapshot  # all its reads are of that moment, so it could have run there
        footprint = Footprint(self.isolation, self.snapshot, self._reads, self._ranges, self._writes)
        # What clashes with what is applied here will clash in the log too: it need not be appended.
        clash = find_clash(self._replica.machine, footprint)
        if clash is None:
            done: GLSN | Clash = await self._replica.execute(encode_commit(footprint), timeout_s=timeout_s)
            if not isinstance(done, Clash):
                return done
            clash = done
        raise _conflict(clash)

    def abort(self) -> None:
        """Drop it. Repeated, or after a commit, it does nothing."""
        self._over = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._over:
            await self.commit()

    def _committed(self, keys: KeyRange) -> Iterator[tuple[str, bytes]]:
        """What others have written; where it has written itself, that counts."""
        machine = self._replica.machine
        if self.isolation is Isolation.READ_COMMITTED:
            found = machine.within(keys)
        else:
            found = machine.within_at(keys, self.snapshot)
        for key, value, _ in found:
            if value is not None and key not in self._writes:
                yield key, value

    def _own(self, keys: KeyRange) -> list[tuple[str, bytes]]:
        return sorted(
            (key, value) for key, value in self._writes.items() if value is not None and key in keys
        )

    def _check_open(self) -> None:
        if self._over:
            raise PreconditionFailed("this transaction is over, committed or dropped: begin another one")

    def _check_remembered(self, key: str, keys: KeyRange | None) -> None:
        if self.snapshot < self._replica.machine.horizon and self.isolation is not Isolation.READ_COMMITTED:
            raise _conflict(Clash(key, NO_GLSN, self.snapshot, keys))


def _conflict(clash: Clash) -> Conflict:
    keys = "" if clash.keys is None else str(clash.keys)
    if clash.too_old:
        return SnapshotTooOld(clash.key, clash.snapshot, keys)
    return Conflict(clash.key, clash.revision, clash.snapshot, keys)


# ConflictQueue: transactions that clash over a key are retried one after another.
#
# In one process, in the order in which they clashed: all at once they would clash again, all but one of them, round after round.
# No
# transaction has more than one turn at a time, so there is no deadlock. It is no lock: the log decides which transaction commits.

TURN_S = 1.0


class ConflictQueue:
    """The turns of all keys over which transactions clashed that are not done yet."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def lock(self, key: str) -> asyncio.Lock:
        """The key's lock, kept until `drop`."""
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        return lock

    def drop(self, key: str) -> None:
        lock, users = self._locks[key]
        if users > 1:
            self._locks[key] = (lock, users - 1)
        else:
            del self._locks[key]

    def __len__(self) -> int:
        return len(self._locks)


class ConflictTurn:
    """The turn of one transaction: `async with` releases it at the end."""

    def __init__(self, turns: ConflictQueue) -> None:
        self._turns = turns
        self._held: tuple[str, asyncio.Lock] | None = None

    async def wait_for(self, key: str) -> None:
        """Release the last turn, and wait for that of another key, but not for long; a turn for the same key is kept."""
        if self._held is not None and self._held[0] == key:
            return
        self._release()
        lock = self._turns.lock(key)
        try:
            async with asyncio.timeout(TURN_S):
                await lock.acquire()
            self._held = key, lock
        except TimeoutError:
            pass  # its owner is busy; out of turn is slower, and as correct
        finally:
            if self._held is None:
                self._turns.drop(key)

    def _release(self) -> None:
        if self._held is not None:
            (key, lock), self._held = self._held, None
            lock.release()
            self._turns.drop(key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
