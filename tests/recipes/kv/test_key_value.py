"""KeyValue over a log: every process sees the same map, and what was acknowledged is applied."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.stores import Stores, run_stores
from varlog.model.errors import InvalidRequest, Unavailable
from varlog.model.lsn import GLSN
from varlog.recipes.core.directory_snapshots import DirectorySnapshots
from varlog.recipes.errors import HistoryGone
from varlog.recipes.kv.key_order import KeyRange
from varlog.recipes.kv.kv_codec import encode_commit
from varlog.recipes.kv.kv_machine import Change
from varlog.recipes.kv.transaction_rules import Clash, Footprint, Isolation
from varlog.recipes.kv.transactions import Transactions


def test_what_one_has_written_the_other_reads(tmp_path: Path) -> None:
    """R-USE-2: a consistent metadata store."""

    async def body(stores: Stores) -> None:
        one, other = await stores.open(), await stores.open()
        revision = GLSN(0)
        for number in range(20):
            revision = await one.put("key", b"%d" % number)
            assert await other.get("key") == Change("key", b"%d" % number, revision)
        assert await other.get("missing") is None
        deleted = await other.delete("key")
        assert deleted is not None and deleted > revision
        assert await one.get("key") is None
        assert await one.delete("key") is None

    run_stores(tmp_path, body)


def test_of_concurrent_compare_and_sets_one_wins_each_round(tmp_path: Path) -> None:
    """R-USE-2: a consistent metadata store."""

    async def body(stores: Stores) -> None:
        replicas = [await stores.open() for _ in range(3)]
        revision = 0
        for number in range(10):
            swaps = [kv.compare_and_set("key", b"%d" % number, revision) for kv in replicas * 3]
            won = [swapped for swapped in await asyncio.gather(*swaps) if swapped is not None]
            assert len(won) == 1
            revision = won[0]
        assert await replicas[0].compare_and_set("key", None, revision) is not None
        assert await replicas[1].get("key") is None
        assert await replicas[1].compare_and_set("key", b"", revision) is None
        assert await replicas[1].compare_and_set("key", b"", 0) is not None

    run_stores(tmp_path, body)


def test_a_range_is_of_one_moment_and_in_order(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        one, other = await stores.open(), await stores.open()
        written = await one.write({"a/2": b"2", "a/1": b"1", "b": b"b", "a": b"a"})
        keys = [change.key for change in await other.range()]
        assert keys == ["a", "a/1", "a/2", "b"]
        assert await other.range("a/") == [Change("a/1", b"1", written), Change("a/2", b"2", written)]
        assert [change.key for change in await other.range(keys=KeyRange("a/2", "b"))] == ["a/2"]
        assert [change.key for change in await other.range(limit=2)] == ["a", "a/1"]
        again = await other.write({"a/1": None, "a/3": b"3", "never there": None})
        assert await one.range("a/") == [Change("a/2", b"2", written), Change("a/3", b"3", again)]

    run_stores(tmp_path, body)


def test_a_stale_read_sends_no_request_and_sees_its_own_writes(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        kv = await stores.open()
        await kv.put("key", b"mine")
        asked: list[Any] = []

        async def no_tail(**_: Any) -> GLSN:
            asked.append(1)
            raise Unavailable("nobody is there to ask")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kv.replica.log, "tail", no_tail)
            found = await kv.get("key", stale=True)
            assert found is not None and found.value == b"mine"
            assert [change.key for change in await kv.range(stale=True)] == ["key"]
            assert not asked
            with pytest.raises(Unavailable):
                await kv.get("key", timeout_s=0.05)
            assert asked

    run_stores(tmp_path, body)


def test_a_closed_store_answers_nothing(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        kv = await stores.open()
        await kv.close()
        for stale in (True, False):
            with pytest.raises(Unavailable):
                await kv.get("key", stale=stale)

    run_stores(tmp_path, body)


def test_two_names_in_one_topic_are_two_maps(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        one, other = await stores.open("one"), await stores.open("other")
        await one.put("key", b"1")
        assert await other.get("key") is None
        await other.put("key", b"2")
        assert (found := await one.get("key")) and found.value == b"1"

    run_stores(tmp_path, body)


def test_a_watch_yields_every_change_once_in_order(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        writer, watcher = await stores.open(), await stores.open()
        watch = watcher.watch("a/")
        expected: list[tuple[str, bytes | None]] = []
        for number in range(50):
            await writer.put("b", b"not watched")
            await writer.write({"a/1": b"%d" % number, "a/2": b"%d" % number})
            await writer.delete("a/1")
            expected += [("a/1", b"%d" % number), ("a/2", b"%d" % number), ("a/1", None)]
        async with aclosing(watch):
            seen = [await anext(watch) for _ in expected]
        assert [(change.key, change.value) for change in seen] == expected
        assert [change.revision for change in seen] == sorted(change.revision for change in seen)
        # From a revision on: what was seen up to there does not come again.
        async with aclosing(writer.watch("a/", after=seen[99].revision)) as later:
            assert await anext(later) == next(
                change for change in seen if change.revision > seen[99].revision
            )

    run_stores(tmp_path, body)


def test_a_watch_from_before_the_retained_history_is_refused(tmp_path: Path) -> None:
    async def body(stores: Stores) -> None:
        one, other = await stores.open(), await stores.open()
        first = await one.put("key", b"")
        await other.retain(changes=2)
        last = first
        for number in range(5):
            last = await one.put("key", b"%d" % number)
        with pytest.raises(HistoryGone, match="range\\(\\)") as gone:
            await anext(one.watch(after=first))
        assert gone.value.after == first and gone.value.oldest == last - 2
        assert (await anext(one.watch(after=last - 1))).value == b"4"

    run_stores(tmp_path, body)


def test_a_store_begins_with_what_was_saved_and_judges_as_those_that_were_there(tmp_path: Path) -> None:
    """A transaction from before the checkpoint, judged after it by a replica that has never seen what is trimmed."""

    async def body(stores: Stores) -> None:
        saved = DirectorySnapshots(tmp_path / "saved")
        kv = await stores.open(snapshots=saved)
        await kv.write({"x": b"1", "gone": b"1"})
        old = await Transactions(kv).begin()
        assert old.get("gone") == b"1"
        await kv.delete("gone")
        last = GLSN(0)
        for number in range(20):
            last = await kv.put("y", b"%d" % number)
        assert await kv.checkpoint(trim=True) == await kv.replica.log.trimmed()
        new = await stores.open(snapshots=saved)
        assert new.replica.machine.snapshot() == kv.replica.machine.snapshot()
        assert await new.get("y") == Change("y", b"19", last)
        assert (await anext(new.watch("gone", after=old.snapshot))).value is None
        footprint = Footprint(Isolation.SERIALIZABLE, old.snapshot, ["gone"], (), {"x": b"2"})
        refused = await new.replica.execute(encode_commit(footprint))
        assert isinstance(refused, Clash) and refused.key == "gone" and not refused.too_old
        await kv.catch_up()
        assert new.replica.machine.snapshot() == kv.replica.machine.snapshot()

    run_stores(tmp_path / "data", body)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (7, b"", "a key is a str, not int"),
        (b"key", b"", "a key is a str, not bytes"),
        ("\ud800", b"", "cannot be written as UTF-8"),
        ("key", "text", "a value is bytes, not str: encode it first"),
        ("key", 7, "a value is bytes, not int"),
    ],
)
def test_what_no_replica_could_read_is_refused_before_it_is_in_the_log(
    tmp_path: Path, key: Any, value: Any, message: str
) -> None:
    async def body(stores: Stores) -> None:
        kv = await stores.open()
        with pytest.raises(InvalidRequest, match=message):
            await kv.put(key, value)
        with pytest.raises(InvalidRequest, match=message):
            await kv.write({"fine": b"", key: value})
        assert await kv.put("key", bytearray(b"still works"))
        assert await kv.replica.log.tail() == 1

    run_stores(tmp_path, body)
