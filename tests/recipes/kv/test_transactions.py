"""Transactions over a KeyValue: what each level of isolation shows, and what it lets happen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.recipes.stores import Stores, run_stores
from varlog.model.errors import InvalidRequest, PreconditionFailed
from varlog.recipes.errors import Conflict, SnapshotTooOld
from varlog.recipes.kv.key_order import KeyRange, prefix_range
from varlog.recipes.kv.key_value import KeyValue
from varlog.recipes.kv.transaction_rules import Isolation
from varlog.recipes.kv.transactions import Transaction, Transactions

ALL = pytest.mark.parametrize("isolation", list(Isolation))


async def value_of(kv: KeyValue, key: str) -> bytes | None:
    found = await kv.get(key)
    return None if found is None else found.value


@ALL
def test_a_transaction_sees_its_own_writes_and_others_see_them_together(
    tmp_path: Path, isolation: Isolation
) -> None:
    """R-USE-2: transactions over a key/value store."""

    async def body(stores: Stores) -> None:
        one, other = await stores.open(), await stores.open()
        await one.write({"a/1": b"1", "a/2": b"2", "a/4": b"4"})
        async with await Transactions(one).begin(isolation) as transaction:
            transaction.put("a/3", b"3")
            transaction.put("a/1", b"new")
            transaction.delete("a/2")
            assert (transaction.get("a/1"), transaction.get("a/2"), transaction.get("a/3")) == (
                b"new",
                None,
                b"3",
            )
            assert transaction.range("a/") == [("a/1", b"new"), ("a/3", b"3"), ("a/4", b"4")]
            assert transaction.range(keys=KeyRange("a/2"), limit=1) == [("a/3", b"3")]
            assert transaction.range(limit=0) == []
            assert [change.value for change in await other.range("a/")] == [b"1", b"2", b"4"]
        changes = await other.range("a/")
        assert [(change.key, change.value) for change in changes] == [
            ("a/1", b"new"),
            ("a/3", b"3"),
            ("a/4", b"4"),
        ]
        assert changes[0].revision == changes[1].revision

    run_stores(tmp_path, body)


@ALL
def test_reads_are_of_the_moment_it_began_unless_read_committed_was_chosen(
    tmp_path: Path, isolation: Isolation
) -> None:
    async def body(stores: Stores) -> None:
        kv = await stores.open()
        await kv.write({"x": b"old", "y": b"old"})
        transaction = await Transactions(kv).begin(isolation)
        assert transaction.get("x") == b"old"
        await kv.write({"x": b"new", "y": None, "z": b"new"})
        again = (transaction.get("x"), transaction.get("y"), transaction.range())
        if isolation is Isolation.READ_COMMITTED:
            assert again == (b"new", None, [("x", b"new"), ("z", b"new")])
        else:
            assert again == (b"old", b"old", [("x", b"old"), ("y", b"old")])
        assert await transaction.commit() == transaction.snapshot, "who only reads always commits"

    run_stores(tmp_path, body)


@ALL
def test_a_transaction_sees_every_acknowledged_commit(tmp_path: Path, isolation: Isolation) -> None:
    async def body(stores: Stores) -> None:
        one, other = await stores.open(), await stores.open()
        for number in range(10):
            await one.put("key", b"%d" % number)
            transaction = await Transactions(other).begin(isolation)
            assert transaction.get("key") == b"%d" % number

    run_stores(tmp_path, body)


@ALL
def test_an_update_of_what_changed_meanwhile(tmp_path: Path, isolation: Isolation) -> None:
    """R-USE-2: first committer wins; only read_committed loses an update."""

    async def body(stores: Stores) -> None:
        one, other = await stores.open(), await stores.open()
        await one.put("count", b"0")
        first, second = await Transactions(one).begin(isolation), await Transactions(other).begin(isolation)
        for transaction in (first, second):
            transaction.put("count", b"%d" % (int(transaction.get("count") or b"0") + 1))
        revision = await first.commit()
        if isolation is Isolation.READ_COMMITTED:
            assert await second.commit() > revision
        else:
            with pytest.raises(Conflict, match=r"'count'.* Run it again") as conflict:
                await second.commit()
            assert (conflict.value.key, conflict.value.revision) == ("count", revision)
            assert conflict.value.snapshot == second.snapshot
        assert await value_of(one, "count") == b"1"

    run_stores(tmp_path, body)


@ALL
def test_write_skew_is_possible_below_serializable_only(tmp_path: Path, isolation: Isolation) -> None:
    """R-USE-2: two on call, each leaves because the other one stays."""

    async def body(stores: Stores) -> None:
        one, other = await stores.open(), await stores.open()
        await one.write({"oncall/ann": b"yes", "oncall/bob": b"yes"})
        ann, bob = await Transactions(one).begin(isolation), await Transactions(other).begin(isolation)
        for transaction, who in ((ann, "ann"), (bob, "bob")):
            assert len(transaction.range("oncall/")) == 2
            transaction.delete(f"oncall/{who}")
        await ann.commit()
        if isolation is Isolation.SERIALIZABLE:
            with pytest.raises(Conflict) as conflict:
                await bob.commit()
            assert conflict.value.key == "oncall/ann" and conflict.value.keys == str(prefix_range("oncall/"))
        else:
            await bob.commit()
        assert len(await one.range("oncall/")) == (1 if isolation is Isolation.SERIALIZABLE else 0)

    run_stores(tmp_path, body)


def test_what_was_not_read_of_a_limited_range_may_change(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        kv = await stores.open()
        await kv.write({f"q/{number}": b"" for number in range(5)})
        fine, last, before = [await Transactions(kv).begin() for _ in range(3)]
        for transaction in (fine, last, before):
            assert [key for key, _ in transaction.range("q/", limit=2)] == ["q/0", "q/1"]
            transaction.put("done", b"")
        await kv.put("q/2", b"changed")
        await fine.commit()
        await kv.put("q/1", b"changed")
        with pytest.raises(Conflict, match="'q/1' in the range"):
            await last.commit()
        await kv.put("q/00", b"new")
        with pytest.raises(Conflict, match="'q/00' in the range"):
            await before.commit()

    run_stores(tmp_path, body)


def test_concurrent_increments_lose_nothing(tmp_path: Path) -> None:
    """Across processes, so to speak, and within each; with single writes and deletes in between."""

    async def body(stores: Stores) -> None:
        replicas = [await stores.open() for _ in range(2)]

        def count(transaction: Transaction) -> int:
            value = int(transaction.get("count") or b"0") + 1
            transaction.put("count", b"%d" % value)
            return value

        async def work(transactions: Transactions, isolation: Isolation) -> list[int]:
            return [await transactions.run(count, isolation=isolation, retries=1000) for _ in range(5)]

        runs = []
        for transactions in map(Transactions, replicas):
            runs += [work(transactions, Isolation.SNAPSHOT), work(transactions, Isolation.SERIALIZABLE)] * 1
            runs += [work(transactions, Isolation.SERIALIZABLE) for _ in range(6)]
        counted = sorted(value for values in await asyncio.gather(*runs) for value in values)
        assert counted == list(range(1, len(runs) * 5 + 1))
        await asyncio.gather(*(kv.catch_up() for kv in replicas))
        assert replicas[0].replica.machine.snapshot() == replicas[1].replica.machine.snapshot()

    run_stores(tmp_path, body)


def test_a_run_gives_up_after_its_retries_and_leaves_nothing(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        kv, tries = await stores.open(), 0
        transactions = Transactions(kv)

        async def always_late(transaction: Transaction) -> None:
            nonlocal tries
            tries += 1
            transaction.get("key")
            await kv.put("key", b"%d" % tries)
            transaction.put("key", b"never")

        with pytest.raises(Conflict):
            await transactions.run(always_late, retries=3)
        assert tries == 4 and await value_of(kv, "key") == b"4"
        assert not transactions.waiting

    run_stores(tmp_path, body)


def test_what_the_function_raises_drops_the_transaction(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        kv = await stores.open()

        def fails(transaction: Transaction) -> None:
            transaction.put("key", b"never")
            raise LookupError("no such account")

        with pytest.raises(LookupError):
            await Transactions(kv).run(fails)
        with pytest.raises(LookupError):
            async with await Transactions(kv).begin() as transaction:
                fails(transaction)
        assert await kv.get("key") is None
        with pytest.raises(PreconditionFailed, match="is over"):
            transaction.get("key")
        with pytest.raises(PreconditionFailed, match="is over"):
            await transaction.commit()

    run_stores(tmp_path, body)


def test_a_transaction_that_outlives_the_history_fails_with_that_reason(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        kv = await stores.open()
        await kv.retain(changes=3)
        await kv.write({"x": b"", "gone": b""})
        old, reader = await Transactions(kv).begin(), await Transactions(kv).begin("snapshot")
        old.get("gone")
        old.put("y", b"")
        await kv.delete("gone")
        for _ in range(5):
            await kv.put("x", b"")
        with pytest.raises(SnapshotTooOld, match=r"'gone'.*retain"):
            await old.commit()
        with pytest.raises(SnapshotTooOld):
            reader.get("x")
        with pytest.raises(SnapshotTooOld, match="range"):
            reader.range("x")
        newest = await Transactions(kv).begin("read_committed")
        assert newest.get("x") == b"" and await kv.get("y") is None

    run_stores(tmp_path, body)


def test_a_level_that_does_not_exist_is_named(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        kv = await stores.open()
        with pytest.raises(InvalidRequest, match=r"'repeatable'.*read_committed, snapshot, serializable"):
            Transactions(kv, isolation="repeatable")
        with pytest.raises(InvalidRequest, match="-1 retries"):
            await Transactions(kv).run(lambda transaction: None, retries=-1)

    run_stores(tmp_path, body)
