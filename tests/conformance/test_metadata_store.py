"""MetadataStore: one suite, every backend.

Commits are atomic and durable, terms grow, and a later opening fences (law 7).
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.metarepo.etcd import etcd_members, unused_cluster
from varlog.localcluster.etcd import EtcdPlan
from varlog.metarepo import records
from varlog.metarepo.membership.named import Named
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.store.base import DeleteItem, DeleteItems, Fenced, MetadataStore, PutItem, StoreChange
from varlog.metarepo.store.keyspace import DeleteKeys
from varlog.metarepo.store.memory import InMemoryReplicatedStore, MemoryMetadata, MemoryStore
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.cluster import ClusterView, NamedReader, NamedWriter
from varlog.model.errors import StartupError, Unavailable
from varlog.model.ids import ClusterID, LogStreamID, TopicID
from varlog.model.lsn import GLSN
from varlog.runtime.environment import system_environment
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.drive import Drive
from varlog.testing.sim.core.loop import Process

# Longer than a busy machine pauses: a leader here leads until another one takes over.
LEASE_S = 10.0
# Only a guard against hanging.
WAIT_S = 90.0


async def _nothing() -> None:
    """Nothing keeps a second one out."""


class Backend:
    """One place where metadata are stored, and a way to open it again, also while another store has it open."""

    def __init__(
        self,
        make: Callable[[], MetadataStore],
        break_lock: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self.make = make
        self.break_lock = break_lock


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdPlan]:
    with etcd_members(tmp_path_factory.mktemp("etcd")) as (plan, _):
        yield plan


def _sqlite(path: Path, *, synced: bool) -> Backend:
    async def break_lock() -> None:
        path.with_name(path.name + ".lock").unlink()

    return Backend(lambda: SqliteStore(path, system_environment(), synced=synced), break_lock)


def _over_a_disk() -> Backend:
    """The SQLite store over a disk that is not the operating system's."""
    drive, process = Drive(), Process("mr")
    disk = SimDisk(drive, process, random.Random(1), process.die)
    disk.make_directory(Path("/data"))
    environment = dataclasses.replace(system_environment(), disk=disk)

    async def break_lock() -> None:
        drive.locks.clear()

    return Backend(lambda: SqliteStore(Path("/data/metadata.db"), environment), break_lock)


def _leased() -> Backend:
    metadata = MemoryMetadata()
    numbers = iter(range(1, 1000))

    async def break_lock() -> None:
        metadata.keys.depose()

    return Backend(
        lambda: InMemoryReplicatedStore(
            metadata, system_environment(), f"mr{next(numbers)}:7100", lease_s=LEASE_S
        ),
        break_lock,
    )


def _etcd(plan: EtcdPlan) -> Backend:
    from varlog.metarepo.store.etcd import EtcdKeyspace, endpoints_of, etcd_store

    cluster = unused_cluster()

    async def break_lock() -> None:
        keys = EtcdKeyspace(endpoints_of(plan.store), attempt_s=WAIT_S)
        leader = f"varlog/{cluster}/leader"
        await keys.transact([], [DeleteKeys(leader, leader + "\0")])
        await keys.close()

    return Backend(lambda: etcd_store(plan.store, system_environment(), cluster, lease_s=LEASE_S), break_lock)


SHARED = ["leased", pytest.param("etcd", marks=pytest.mark.process)]


@pytest.fixture(params=["sqlite", "sqlite, not synced", "sqlite over a disk", "memory", *SHARED])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "memory":
        metadata = MemoryMetadata()
        return Backend(lambda: MemoryStore(metadata))
    if request.param == "sqlite over a disk":
        return _over_a_disk()
    if request.param == "leased":
        return _leased()
    if request.param == "etcd":
        return _etcd(request.getfixturevalue("etcd"))
    return _sqlite(tmp_path / "metadata.sqlite", synced=request.param == "sqlite")


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest) -> Backend:
    """Those that several repositories share."""
    return _leased() if request.param == "leased" else _etcd(request.getfixturevalue("etcd"))


async def _items(backend: Backend) -> dict[str, bytes]:
    store = backend.make()
    opened = await store.open()
    await store.close()
    return opened.items


def test_a_new_store_is_empty(backend: Backend) -> None:
    assert asyncio.run(_items(backend)) == {}


def test_what_was_committed_is_present_after_reopening(backend: Backend) -> None:
    async def body() -> None:
        store = backend.make()
        await store.open()
        await store.commit([PutItem("b", b"2"), PutItem("a", b"1"), PutItem("a", b"one")])
        await store.commit([DeleteItem("b"), DeleteItem("never there"), PutItem("c", b"")])
        await store.close()
        assert await _items(backend) == {"a": b"one", "c": b""}

    asyncio.run(body())


def test_items_come_sorted_by_key(backend: Backend) -> None:
    async def body() -> None:
        store = backend.make()
        await store.open()
        await store.commit([PutItem(key, b"") for key in ("cut/2", "base", "cut/10", "a")])
        await store.close()
        assert list(await _items(backend)) == ["a", "base", "cut/10", "cut/2"]

    asyncio.run(body())


def test_readers_and_writers_of_any_name_are_kept_separately(backend: Backend) -> None:
    """A name is part of a key: one that is a prefix of another, sorts unlike bytes, or is long, is a key of its own."""
    names = ["a", "a a", "aa", "a~", "ü", "𝄞" * 200, "%s", "A", "."]
    one, two = TopicID(1), TopicID(2)
    view = ClusterView(ClusterID(1), 1)
    readers = [NamedReader(topic, name, GLSN(5)) for name in names for topic in (one, two)]
    writers = [NamedWriter(one, name, 3, GLSN(5), (LogStreamID(1),)) for name in names]
    members = Members(view, readers=Named(readers), writers=Named(writers))
    fewer = Members(
        view, readers=members.readers.without(one, "a"), writers=members.writers.without(one, "ü")
    )

    async def body() -> None:
        store = backend.make()
        await store.open()
        await store.commit([records.put_cluster(members), *records.changes_between(Members(view), members)])
        await store.close()
        assert records.members_of(await _items(backend)) == members
        again = backend.make()
        await again.open()
        await again.commit(records.changes_between(members, fewer))
        await again.close()
        assert records.members_of(await _items(backend)) == fewer

    asyncio.run(body())
    assert (len(fewer.readers), len(fewer.writers)) == (2 * len(names) - 1, len(names) - 1)


def test_a_range_delete_takes_its_begin_and_leaves_its_end(backend: Backend) -> None:
    async def body() -> None:
        store = backend.make()
        await store.open()
        await store.commit([PutItem(key, b"") for key in ("cut/1", "cut/2", "cut/3", "cuu", "base")])
        await store.commit([DeleteItems("cut/", "cut/3"), PutItem("cut/4", b"")])
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
    """Law 7: the later opening owns the store; no change of the earlier one arrives."""

    async def body() -> None:
        first, second = backend.make(), backend.make()
        old = await first.open()
        await first.commit([PutItem("x", b"first")])
        await backend.break_lock()
        new = await second.open()
        assert new.term > old.term and new.items == {"x": b"first"}
        with pytest.raises(Fenced):
            await first.commit([PutItem("x", b"late"), PutItem("y", b"late")])
        await second.commit([PutItem("z", b"second")])
        await first.close()
        await second.close()
        assert await _items(backend) == {"x": b"first", "z": b"second"}

    asyncio.run(body())


def test_a_store_that_is_not_open_accepts_nothing(backend: Backend) -> None:
    async def body() -> None:
        store = backend.make()
        with pytest.raises(Unavailable):
            await store.commit([PutItem("x", b"")])
        await store.close()
        await store.open()
        await store.close()
        await store.close()
        with pytest.raises(Unavailable):
            await store.commit([PutItem("x", b"")])

    asyncio.run(body())


KEYS = st.sampled_from(["a", "b", "cut/1", "cut/2", "cut/3", "d"])
CHANGES = st.one_of(
    st.builds(PutItem, KEYS, st.binary(max_size=3)),
    st.builds(DeleteItem, KEYS),
    st.builds(DeleteItems, KEYS, KEYS),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(commits=st.lists(st.lists(CHANGES, max_size=5), max_size=4))
def test_a_store_is_a_map_whose_changes_apply_in_order(
    backend: Backend, commits: list[list[StoreChange]]
) -> None:
    async def body() -> None:
        store = backend.make()
        expected = dict((await store.open()).items)  # examples share the store: continue from its contents
        for changes in commits:
            await store.commit(changes)
            for change in changes:
                if isinstance(change, PutItem):
                    expected[change.key] = change.value
                elif isinstance(change, DeleteItem):
                    expected.pop(change.key, None)
                else:
                    expected = {k: v for k, v in expected.items() if not change.begin <= k < change.end}
        await store.close()
        assert await _items(backend) == expected

    asyncio.run(body())


def test_a_commit_larger_than_any_transaction_is_complete(backend: Backend) -> None:
    """etcd accepts 128 operations and 1.5 MiB at a time: a larger commit is still all or nothing, and large values come
    back complete."""

    async def body() -> None:
        numbers = random.Random(1)
        large = {
            f"large/{n}": numbers.randbytes(size)
            for n, size in enumerate((700_000, 1_600_000, 524_288, 2_500_000))
        }
        many = {f"many/{n:03d}": str(n).encode() for n in range(300)}
        store = backend.make()
        await store.open()
        await store.commit(
            [PutItem("large/1", b"small at first"), PutItem("many/000", b"old"), PutItem("other", b"")]
        )
        await store.commit(
            [DeleteItems("many/", "many0"), *(PutItem(*item) for item in (large | many).items())]
        )
        await store.commit([PutItem("large/0", b"small again"), DeleteItem("large/1")])
        await store.close()
        expected = large | many | {"large/0": b"small again", "other": b""}
        del expected["large/1"]
        assert await _items(backend) == expected

    asyncio.run(body())


# --- Those that several share ------------------------------------------------------------------------------------------


def test_the_second_waits_until_the_first_closes_and_knows_the_leader(shared: Backend) -> None:
    async def body() -> None:
        first, second = shared.make(), shared.make()
        one = await first.open("first:1")
        assert (first.leads, first.leader, second.leads) == (True, "first:1", False)
        waiting = asyncio.create_task(second.open("second:2"))
        async with asyncio.timeout(WAIT_S):
            while second.leader != "first:1":
                await asyncio.sleep(0.01)
        await first.commit([PutItem("x", b"first")])
        assert not waiting.done()
        await first.close()
        async with asyncio.timeout(WAIT_S):  # how soon: tests/metarepo/test_leader_terms.py, in virtual time
            two = await waiting
        assert two.term > one.term and two.items == {"x": b"first"}
        assert (first.leads, second.leads, second.leader) == (False, True, "second:2")
        await second.close()

    asyncio.run(body())


def test_the_leader_and_all_candidates_are_listed(shared: Backend) -> None:
    async def body() -> None:
        first, second = shared.make(), shared.make()
        await first.open("first:1")
        assert await first.wait_repositories(()) == ("first:1",)
        waiting = asyncio.create_task(second.open("second:2"))
        async with asyncio.timeout(WAIT_S):
            assert await first.wait_repositories(("first:1",)) == ("first:1", "second:2")
        await first.close()
        await waiting
        async with asyncio.timeout(WAIT_S):
            assert await second.wait_repositories(("first:1", "second:2")) == ("second:2",)
        await second.close()

    asyncio.run(body())


def test_a_leader_whose_key_is_gone_learns_it_at_the_next_commit(shared: Backend) -> None:
    async def body() -> None:
        store = shared.make()
        await store.open("first:1")
        lost = asyncio.create_task(store.wait_lost())
        await shared.break_lock()
        with pytest.raises(Fenced):
            await store.commit([PutItem("x", b"late")])
        async with asyncio.timeout(WAIT_S):
            assert isinstance(await lost, Fenced)
        assert not store.leads
        again = await store.open("first:1")
        assert again.items == {}
        await store.close()

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
        commit = asyncio.create_task(store.commit([PutItem("x", b"1"), PutItem("y", b"2")]))
        await stuck.wait()
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        return metadata.items

    assert asyncio.run(crash(before=True)) == {}
    assert asyncio.run(crash(before=False)) == {"x": b"1", "y": b"2"}


def test_a_file_that_another_repository_has_open_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    async def body() -> None:
        first, second = SqliteStore(path, system_environment()), SqliteStore(path, system_environment())
        await first.open()
        with pytest.raises(StartupError, match=r"metadata\.sqlite is in use by another metadata repository"):
            await second.open()
        await first.commit([PutItem("x", b"")])
        await first.close()
        assert (await second.open()).items == {"x": b""}
        await second.close()

    asyncio.run(body())
