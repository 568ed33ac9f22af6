"""Jobs of maps: KeyValue with watches, and transactions at each isolation level."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from typing import Any

import msgspec

from varlog.model.errors import OutcomeUnknown, Rejected, VarlogError
from varlog.recipes.core.replicated import ReplicatedStateMachine
from varlog.recipes.errors import Conflict
from varlog.recipes.kv.key_value import KeyValue
from varlog.recipes.kv.transactions import Transaction, Transactions
from varlog.testing.sim.recipes.job import Job
from varlog.testing.sim.recipes.plan import Work
from varlog.verify import transaction_history
from varlog.verify.recipe_history import Changed, Watching
from varlog.verify.transaction_history import ListRead, ListTransaction


class MapJob(Job):
    """Has a map, under a name of its own."""

    async def open(self, timeout_s: float) -> None:
        site = self.site
        self.kv = await KeyValue.open(site.log, name=f"map-{self.work}", **site.options(timeout_s))

    def replicas(self) -> list[ReplicatedStateMachine[Any]]:
        return [self.kv.replica]


class KeyValueJob(MapJob):
    """Puts, gets, deletes, compare-and-sets of few keys, old reads, and watches."""

    work = Work.KV

    def __init__(self, site: Any) -> None:
        super().__init__(site)
        self._known: dict[str, int] = {}  # revisions from replies

    async def step(self, client: str) -> None:
        kv, rng = self.kv, self.rng
        key = f"k{rng.randrange(self.site.plan.keys)}"
        value = self.unique(client).encode()
        what = rng.choices(("put", "get", "cas", "delete", "stale"), (4, 6, 5, 1, 2))[0]
        match what:
            case "put":
                call = await self.do(client, "kv", "put", kv.put(key, value), key=key, given=value)
            case "cas":
                expected = self._known.get(key, 0)
                work = kv.compare_and_set(key, value, expected)
                call = await self.do(client, "kv", "cas", work, key=key, given=(value, expected))
            case "delete":
                call = await self.do(client, "kv", "delete", kv.delete(key), key=key)
            case _:
                call = await self.do(client, "kv", what, self._get(key, what == "stale"), key=key)
        if call.done and what in ("put", "get", "cas"):
            found = call.got[1] if what == "get" and call.got else call.got
            self._known[key] = found or 0

    async def _get(self, key: str, stale: bool) -> tuple[bytes, int] | None:
        found = await self.kv.get(key, stale=stale)
        return None if found is None or found.value is None else (found.value, found.revision)

    def besides(self) -> list[Awaitable[None]]:
        return [self._watch("k"), self._watch("k0")]

    async def _watch(self, prefix: str) -> None:
        """Forever; sometimes it starts again where it was."""
        after = 0 if self.rng.random() < 0.5 else self.kv.revision
        while True:
            watching = Watching(self.site.name, prefix, after)
            self.site.recipes.watches.append(watching)
            left = self.rng.randint(1, 20)
            try:
                async with aclosing(self.kv.watch(prefix, after=after)) as changes:
                    async for key, value, revision in changes:
                        watching.changes.append(Changed(key, value, revision))
                        # Not behind a part of one revision: a watch resumes after whole ones. Here each has one change.
                        after = watching.until = revision
                        left -= 1
                        if left == 0:
                            break
            except VarlogError as error:
                self.site.trace(f"{self.site.name} watches no more: {error}")
                return

    async def audit(self) -> None:
        await self.kv.catch_up()
        machine = self.kv.replica.machine
        self.site.recipes.changes = [Changed(*change) for change in machine.changes_after(machine.horizon)]
        for number in range(self.site.plan.keys):
            key = f"k{number}"
            await self.do(self.site.name, "kv", "get", self._get(key, False), key=key, deadline=False)


class RegistersJob(MapJob):
    """Transactions that read and write whole registers, each value once in a run. Read committed promises little: no cycle of
    writes and reads, nothing of what was not committed."""

    work = Work.READ_COMMITTED

    async def step(self, client: str) -> None:
        site, rng = self.site, self.rng
        keys = [f"r{rng.randrange(site.plan.keys + 1)}" for _ in range(rng.randint(1, 4))]
        made = transaction_history.RecordedTransaction(
            self.unique(client), began=site.history.event(), committed=None
        )
        site.recipes.registers.setdefault(self.work, []).append(made)
        try:
            transaction = await Transactions(self.kv).begin(self.work)
            for number, key in enumerate(keys):
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.uniform(0, 0.1))
                if rng.random() < 0.5:
                    value = f"{made.name}.{number}"
                    transaction.put(key, value.encode())
                    made.ops.append(transaction_history.write_op(key, value))
                else:
                    self._read(transaction, key, made)
            if rng.random() < 0.1:
                transaction.abort()
                made.committed = False
            else:
                revision = await transaction.commit()
                made.committed = True
                site.recipes.revisions += [
                    (key, revision, value) for key, value in made.last_writes().items()
                ]
        except (Conflict, Rejected) as error:
            made.committed = False
            site.trace(f"{made} is not committed: {error}")
        except OutcomeUnknown as error:
            site.trace(f"{made}, perhaps: {error}")
        except VarlogError as error:
            made.committed = False  # it could not begin
            site.trace(f"{made} did not begin: {error}")
        made.ended = site.history.event() if made.committed is not None else None
        site.trace(f"{made} committed: {made.committed}")

    def _read(
        self, transaction: Transaction, key: str, made: transaction_history.RecordedTransaction
    ) -> None:
        """The revision is only looked at: it says in which order versions came."""
        value = transaction.get(key)
        made.ops.append(transaction_history.read_op(key, None if value is None else value.decode()))
        found = self.kv.replica.machine.get(key)
        if found is not None and found.value is not None:
            self.site.recipes.revisions.append((key, found.revision, found.value.decode()))

    async def audit(self) -> None:
        await self.kv.catch_up()
        machine = self.kv.replica.machine
        for key, value, revision in machine.changes_after(machine.horizon):
            if value is not None:
                self.site.recipes.revisions.append((key, revision, value.decode()))


class ListsJob(MapJob):
    """Transactions that append to lists and read them, by key and by range. The lists show in which order they came."""

    def __init__(self, site: Any) -> None:
        super().__init__(site)
        self._transactions: Transactions

    async def open(self, timeout_s: float) -> None:
        await super().open(timeout_s)
        self._transactions = Transactions(self.kv)
        if self.site.plan.history_changes is not None:
            await self.kv.retain(self.site.plan.history_changes)

    async def step(self, client: str) -> None:
        site, rng = self.site, self.rng
        keys = [f"l{number}" for number in range(max(2, site.plan.keys))]
        made = ListTransaction(self.unique(client), began=site.history.event(), committed=None)
        site.recipes.lists.setdefault(self.work, []).append(made)
        try:
            transaction = await self._transactions.begin(self.work)
            for _ in range(rng.randint(1, 4)):
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.uniform(0, 0.1))
                self._act(transaction, keys, made)
            await transaction.commit()
            made.committed = True
        except (Conflict, Rejected) as error:
            made.committed = False
            site.trace(f"{made.name} is not committed: {error}")
        except OutcomeUnknown as error:
            site.trace(f"{made.name}, perhaps: {error}")
        except VarlogError as error:
            made.committed = False  # it could not begin
            site.trace(f"{made.name} did not begin: {error}")
        made.ended = site.history.event() if made.committed is not None else None
        site.trace(f"{made}")

    def _act(self, transaction: Transaction, keys: list[str], made: ListTransaction) -> None:
        rng = self.rng
        key = rng.choice(keys)
        chosen = rng.random()
        if chosen < 0.2:
            found = dict(transaction.range("l"))
            made.ops += [ListRead(one, _elements(found.get(one))) for one in keys]
        elif chosen < 0.6:
            made.ops.append(ListRead(key, _elements(transaction.get(key))))
        else:
            elements = _elements(transaction.get(key))
            element = self._element()
            made.ops += [ListRead(key, elements), (key, element)]
            transaction.put(key, msgspec.json.encode([*elements, element]))

    def _element(self) -> int:
        """Of the whole run: events are counted for all."""
        return self.site.history.event()

    async def audit(self) -> None:
        """One last read of everything: it has the order of all that was ever appended."""
        made = ListTransaction("the last read", began=self.site.history.event())
        transaction = await self._transactions.begin(self.work)
        for number in range(max(2, self.site.plan.keys)):
            made.ops.append(ListRead(f"l{number}", _elements(transaction.get(f"l{number}"))))
        await transaction.commit()
        made.ended = self.site.history.event()
        self.site.recipes.lists.setdefault(self.work, []).append(made)


class SnapshotJob(ListsJob):
    work = Work.SNAPSHOT


class SerializableJob(ListsJob):
    work = Work.SERIALIZABLE


def _elements(value: bytes | None) -> tuple[int, ...]:
    return () if value is None else msgspec.json.decode(value, type=tuple[int, ...])
