"""MetadataStore: one suite, every backend. Commits are atomic and durable, terms grow, and a later opening fences (law 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from varlog.metarepo.store.base import Change, Delete, DeleteRange, Fenced, MetadataStore, Put
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.errors import StartError, Unavailable
from varlog.runtime.doors import system_doors


class Backend:
    """One place where metadata lie, and a way to open it again, also over the head of whoever has it open."""

    def __init__(
        self, make: Callable[[], MetadataStore], break_lock: Callable[[], None] = lambda: None
    ) -> None:
        self.make = make
        self.break_lock = break_lock


@pytest.fixture(params=["sqlite", "sqlite, not synced", "memory"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "memory":
        metadata = MemoryMetadata()
        return Backend(lambda: MemoryStore(metadata))
    path = tmp_path / "metadata.sqlite"
    synced = request.param == "sqlite"

    def break_lock() -> None:
        path.with_name(path.name + ".lock").unlink()

    return Backend(lambda: SqliteStore(path, system_doors(), synced=synced), break_lock)


async def _items(backend: Backend) -> dict[str, bytes]:
    store = backend.make()
    opened = await store.open()
    await store.close()
    return opened.items


def test_a_new_store_is_empty(backend: Backend) -> None:
    assert asyncio.run(_items(backend)) == {}


def test_what_was_committed_is_there_after_reopening(backend: Backend) -> None:
    async def body() -> None:
        store = backend.make()
        await store.open()
        await store.commit([Put("b", b"2"), Put("a", b"1"), Put("a", b"one")])
        await store.commit([Delete("b"), Delete("never there"), Put("c", b"")])
        await store.close()
        assert await _items(backend) == {"a": b"one", "c": b""}

    asyncio.run(body())


def test_items_come_sorted_by_key(backend: Backend) -> None:
    async def body() -> None:
        store = backend.make()
        await store.open()
        await store.commit([Put(key, b"") for key in ("cut/2", "base", "cut/10", "a")])
        await store.close()
        assert list(await _items(backend)) == ["a", "base", "cut/10", "cut/2"]

    asyncio.run(body())


def test_a_range_delete_takes_its_begin_and_leaves_its_end(backend: Backend) -> None:
    async def body() -> None:
        store = backend.make()
        await store.open()
        await store.commit([Put(key, b"") for key in ("cut/1", "cut/2", "cut/3", "cuu", "base")])
        await store.commit([DeleteRange("cut/", "cut/3"), Put("cut/4", b"")])
        await store.close()
        assert list(await _items(backend)) == ["base", "cut/3", "cut/4", "cuu"]

    asyncio.run(body())


def test_every_opening_takes_a_larger_term(backend: Backend) -> None:
    async def body() -> list[int]:
        terms = []
        for _ in range(3):
            store = backend.make()
            terms.append((await store.open()).term)
            await store.close()
        return terms

    terms = asyncio.run(body())
    assert terms[0] >= 1 and terms == sorted(dict.fromkeys(terms))


def test_a_later_opening_fences_the_earlier_one(backend: Backend) -> None:
    """Law 7: whoever opened later owns the store; not one change of the earlier one arrives."""

    async def body() -> None:
        first, second = backend.make(), backend.make()
        old = await first.open()
        await first.commit([Put("x", b"first")])
        backend.break_lock()
        new = await second.open()
        assert new.term > old.term and new.items == {"x": b"first"}
        with pytest.raises(Fenced):
            await first.commit([Put("x", b"late"), Put("y", b"late")])
        await second.commit([Put("z", b"second")])
        await first.close()
        await second.close()
        assert await _items(backend) == {"x": b"first", "z": b"second"}

    asyncio.run(body())


def test_a_store_that_is_not_open_takes_nothing(backend: Backend) -> None:
    async def body() -> None:
        store = backend.make()
        with pytest.raises(Unavailable):
            await store.commit([Put("x", b"")])
        await store.close()
        await store.open()
        await store.close()
        await store.close()
        with pytest.raises(Unavailable):
            await store.commit([Put("x", b"")])

    asyncio.run(body())


KEYS = st.sampled_from(["a", "b", "cut/1", "cut/2", "cut/3", "d"])
CHANGES = st.one_of(
    st.builds(Put, KEYS, st.binary(max_size=3)),
    st.builds(Delete, KEYS),
    st.builds(DeleteRange, KEYS, KEYS),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(commits=st.lists(st.lists(CHANGES, max_size=5), max_size=4))
def test_a_store_is_a_map_whose_changes_apply_in_order(backend: Backend, commits: list[list[Change]]) -> None:
    async def body() -> None:
        store = backend.make()
        expected = dict((await store.open()).items)  # examples share the store: go on from what is there
        for changes in commits:
            await store.commit(changes)
            for change in changes:
                if isinstance(change, Put):
                    expected[change.key] = change.value
                elif isinstance(change, Delete):
                    expected.pop(change.key, None)
                else:
                    expected = {k: v for k, v in expected.items() if not change.begin <= k < change.end}
        await store.close()
        assert await _items(backend) == expected

    asyncio.run(body())


# --- What only one of them can do ------------------------------------------------------------------------------------


def test_a_memory_commit_cancelled_before_its_point_in_time_changed_nothing() -> None:
    """What a simulated crash in the middle of a commit leaves: all or nothing."""

    async def crash(*, before: bool) -> dict[str, bytes]:
        metadata = MemoryMetadata()
        store = MemoryStore(metadata)
        await store.open()
        stuck = asyncio.Event()

        async def never() -> None:
            stuck.set()
            await asyncio.Event().wait()

        if before:
            metadata.before_commit = never
        else:
            metadata.after_commit = never
        commit = asyncio.create_task(store.commit([Put("x", b"1"), Put("y", b"2")]))
        await stuck.wait()
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        return metadata.items

    assert asyncio.run(crash(before=True)) == {}
    assert asyncio.run(crash(before=False)) == {"x": b"1", "y": b"2"}


def test_a_file_that_another_repository_has_open_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    async def body() -> None:
        first, second = SqliteStore(path, system_doors()), SqliteStore(path, system_doors())
        await first.open()
        with pytest.raises(StartError, match=r"metadata\.sqlite is in use by another metadata repository"):
            await second.open()
        await first.commit([Put("x", b"")])
        await first.close()
        assert (await second.open()).items == {"x": b""}
        await second.close()

    asyncio.run(body())
