"""The stores of snapshots: whole or absent, the newest of each name, damage found, nothing needed ever removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from varlog.client.log import Log
from varlog.embedded import EmbeddedCluster
from varlog.model.lsn import GLSN
from varlog.recipes.core import topic_snapshots
from varlog.recipes.core.directory_snapshots import DirectorySnapshots
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.core.topic_snapshots import SnapshotChunk, TopicSnapshots, encode_chunk
from varlog.runtime.environment import system_environment

DEADLINE_S = 60
Store = Callable[[], Snapshots]


@asynccontextmanager
async def topics(path: Path) -> AsyncIterator[Callable[[str], Awaitable[Log]]]:
    cluster = EmbeddedCluster(path / "cluster", system_environment(synced=False), sync=False)
    await cluster.start()
    opened: list[Log] = []

    async def connect(topic: str) -> Log:
        opened.append(await cluster.connect(topic, streams=2))
        return opened[-1]

    try:
        yield connect
    finally:
        for log in opened:
            await log.close()
        await cluster.stop()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await body()

    asyncio.run(within())


# --- What both keep -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def store_of(kind: str, path: Path) -> AsyncIterator[Store]:
    """Makes stores that share what is kept, as several processes would."""
    if kind == "directory":
        yield lambda: DirectorySnapshots(path / "deep" / "er")
    else:
        async with topics(path) as connect:
            log = await connect("snapshots")
            yield lambda: TopicSnapshots(log)


@pytest.mark.parametrize("kind", ["directory", "topic"])
def test_the_newest_of_each_name_is_found_by_every_process(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with store_of(kind, tmp_path) as store:
            one, two = store(), store()
            assert await one.newest("a") is None
            await one.save("a", GLSN(5), b"five")
            await two.save("a", GLSN(7), b"seven")
            await one.save("a", GLSN(6), b"six")  # one that is slower than the other
            await two.save("b~" + "ü" * 60, GLSN(1), b"")
            await one.save("a~b", GLSN(9), bytes(3_000_000))
            assert await store().newest("a") == (7, b"seven")
            assert await store().newest("b~" + "ü" * 60) == (1, b"")
            assert await store().newest("a~b") == (9, bytes(3_000_000))
            assert await store().newest("b") is None

    run(body)


@pytest.mark.parametrize("kind", ["directory", "topic"])
def test_of_concurrent_saves_the_newest_wins(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with store_of(kind, tmp_path) as store:
            saves = [store().save("a", GLSN(position), b"%d" % position) for position in [3, 9, 1, 9, 7]]
            await asyncio.gather(*saves)
            assert await store().newest("a") == (9, b"9")

    run(body)


# --- Directory ------------------------------------------------------------------------------------------------------------


def test_a_directory_keeps_two_of_each_name_and_nothing_half_written(tmp_path: Path) -> None:
    async def body() -> None:
        store = DirectorySnapshots(tmp_path)
        for position in range(1, 6):
            await store.save("a", GLSN(position), b"x")
            await store.save("b", GLSN(position), b"y")
        names = sorted(path.name.split("~")[:2] for path in tmp_path.iterdir())
        newest = [f"{position:020d}" for position in (4, 5)]
        assert names == [[name, position] for name in "ab" for position in newest]

    run(body)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "version"])
def test_a_damaged_file_is_passed_over_for_the_one_before(damage: str, tmp_path: Path) -> None:
    async def body() -> None:
        store = DirectorySnapshots(tmp_path)
        await store.save("a", GLSN(1), b"the one before")
        await store.save("a", GLSN(2), b"the newest")
        newest = max(tmp_path.iterdir())
        content = newest.read_bytes()
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        changed = content[:4] + b"\x02" + content[5:]
        wrong = {"flip": flipped, "cut": content[:-3], "empty": b"", "version": changed}[damage]
        newest.write_bytes(wrong)
        assert await store.newest("a") == (1, b"the one before")

    run(body)


def test_files_of_others_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    async def body() -> None:
        others = ["notes.txt", "a~x~y.snapshot", "a.snapshot", f"a~{7:020d}~00.snapshot.new"]
        for name in others:
            (tmp_path / name).write_bytes(b"?")
        store = DirectorySnapshots(tmp_path)
        await store.save("a", GLSN(3), b"three")
        assert await store.newest("a") == (3, b"three")
        assert set(others) < {path.name for path in tmp_path.iterdir()}

    run(body)


# --- Topic ----------------------------------------------------------------------------------------------------------------


def test_a_topic_is_trimmed_up_to_the_oldest_that_is_still_the_newest_of_its_name(tmp_path: Path) -> None:
    async def body() -> None:
        async with topics(tmp_path) as connect:
            log = await connect("snapshots")
            store = TopicSnapshots(log)
            await store.save("rare", GLSN(1), b"r")
            for position in range(1, 5):
                await store.save("often", GLSN(position), b"o")
            assert await log.trimmed() == 0
            await store.save("rare", GLSN(2), b"s")
            assert (await log.trimmed(), await log.tail()) == (4, 6)
            assert await store.newest("often") == (4, b"o")
            assert await store.newest("rare") == (2, b"s")

    run(body)


def test_a_topic_that_is_trimmed_up_to_a_newer_one_while_it_is_read_still_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulator: the reader knew an old tail, then all up to it was trimmed, and it found nothing at all."""

    async def body() -> None:
        async with topics(tmp_path) as connect:
            mine, others = await connect("snapshots"), await connect("snapshots")
            await TopicSnapshots(others).save("m", GLSN(10), b"old")
            meanwhile = [b"new"]

            def then_save(ask: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
                async def asked() -> object:
                    answer = await ask()
                    while meanwhile:
                        await TopicSnapshots(others).save("m", GLSN(20), meanwhile.pop())
                    return answer

                return asked

            monkeypatch.setattr(mine.connector, "mark", then_save(mine.connector.mark))
            monkeypatch.setattr(mine, "tail", then_save(mine.tail))
            assert await TopicSnapshots(mine).newest("m") == (20, b"new")

    run(body)


def test_a_large_snapshot_is_written_in_several_batches_and_counts_when_all_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_snapshots, "CHUNK_BYTES", 10)
    monkeypatch.setattr(topic_snapshots, "BATCH_CHUNKS_MAX", 2)

    async def body() -> None:
        async with topics(tmp_path) as connect:
            log = await connect("snapshots")
            store = TopicSnapshots(log)
            await store.save("a", GLSN(1), b"small")
            content = bytes(range(55))
            parts = list(store._cut("a", GLSN(2), content))
            assert len(parts) == 6
            await log.append_batch(parts[:4])  # its saver continues later
            await store.save("b", GLSN(1), b"other")
            assert await store.newest("a") == (1, b"small")
            await store.save("a", GLSN(1), b"small again")
            assert await log.trimmed() == 1, "what is on its way is not trimmed: its saver will rely on it"
            await log.append_batch(parts[4:])
            assert await store.newest("a") == (2, content)
            await store.save("a", GLSN(3), content)
            await store.save("b", GLSN(2), b"other")
            assert await log.trimmed() == await log.tail() - 7
            assert await store.newest("a") == (3, content)

    run(body)


def test_one_that_was_never_finished_goes_with_the_next(tmp_path: Path) -> None:
    async def body() -> None:
        async with topics(tmp_path) as connect:
            log = await connect("snapshots")
            store = TopicSnapshots(log)
            await log.append(encode_chunk(SnapshotChunk("a", GLSN(5), b"s" * 16, 0, 2, 0, b"half")))
            assert await store.newest("a") is None
            await store.save("a", GLSN(6), b"whole")
            assert (await log.trimmed(), await store.newest("a")) == (1, (6, b"whole"))

    run(body)


def test_a_damaged_snapshot_is_ignored(tmp_path: Path) -> None:
    async def body() -> None:
        async with topics(tmp_path) as connect:
            log = await connect("snapshots")
            await log.append(encode_chunk(SnapshotChunk("a", GLSN(5), b"s" * 16, 0, 1, 1234, b"wrong")))
            assert await TopicSnapshots(log).newest("a") is None

    run(body)


def test_what_was_in_the_topic_before_the_first_snapshot_is_never_trimmed(tmp_path: Path) -> None:
    """It may be the machine's own topic: trimming there would be the end of it. What comes later is passed over, and trimmed."""

    async def body() -> None:
        async with topics(tmp_path) as connect:
            log = await connect("commands")
            await log.append(b"something else")
            store = TopicSnapshots(log)
            for position in (1, 2):
                await store.save("a", GLSN(position), b"x")
            assert (await store.newest("a"), store.skipped_entries) == ((2, b"x"), 1)
            assert (await log.tail(), await log.trimmed()) == (3, 0)
            await log.trim(1)
            await log.append(b"\xc1vlt\x01noise")
            await store.save("a", GLSN(3), b"y")
            assert (await store.newest("a"), await log.trimmed()) == ((3, b"y"), 4)
            await log.append(b"\xc1vlt\x02a newer one")
            await store.save("a", GLSN(4), b"z")
            assert (await store.newest("a"), await log.trimmed()) == ((4, b"z"), 5)

    run(body)
