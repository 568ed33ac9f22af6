"""The replicated store in virtual time: leases, cuts, lost answers, and a crash at every step of a commit that takes several."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.metarepo.helpers import seeded_environment
from varlog.metarepo.store.base import DeleteItems, Fenced, PutItem, StoreChange
from varlog.metarepo.store.election import ElectionLease
from varlog.metarepo.store.memory import InMemoryReplicatedStore, MemoryMetadata
from varlog.model.errors import Unavailable
from varlog.testing.sim.core.loop import CURRENT, Process, run_simulated

LEASE_S = 2.0


def store(metadata: MemoryMetadata, name: str = "mr1") -> InMemoryReplicatedStore:
    return InMemoryReplicatedStore(metadata, seeded_environment(), f"{name}:7100", lease_s=LEASE_S)


def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


# --- leases ------------------------------------------------------------------------------------------------------------


def test_a_lease_ends_here_before_it_can_end_where_it_was_granted() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        lease = ElectionLease(1, 2.0, sent_at=loop.time())
        assert lease.holds
        await asyncio.sleep(1.0)
        lease.renewed(2.0, sent_at=0.5)  # sent then, and late to arrive: counted from then
        assert await lease.wait_lost()
        assert 1.8 < loop.time() < 2.5
        lease.renewed(2.0, sent_at=loop.time())
        assert not lease.holds, "one that is over stays over"

    run_simulated(body())


def test_a_lease_is_kept_while_renewals_arrive_and_lost_when_they_do_not() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        silent = False

        async def renew() -> float:
            if silent:
                await asyncio.sleep(0.3)
                raise Unavailable("no answer")
            return 2.0

        lease = ElectionLease(1, 2.0, sent_at=loop.time())
        keeping = spawn(lease.keep(renew))
        await asyncio.sleep(20)
        assert lease.holds
        silent = True
        cut_at = loop.time()
        await lease.wait_lost()
        assert loop.time() - cut_at <= 2.0
        await keeping

    run_simulated(body())


def test_a_leader_that_is_cut_off_stops_before_the_next_one_leads() -> None:
    """Law 7, by the clock: at no time may two answer."""

    async def body() -> None:
        metadata = MemoryMetadata()
        loop = asyncio.get_running_loop()
        first, second = store(metadata), store(metadata, "mr2")
        one = await first.open()
        waiting = spawn(second.open())
        await asyncio.sleep(1)
        cut_at = loop.time()
        metadata.held_until = lambda host: cut_at + 30 if host == "mr1" else 0.0
        lost = spawn(first.wait_lost())
        await lost
        assert loop.time() - cut_at < LEASE_S and not waiting.done()
        two = await waiting
        assert not first.leads and second.leads and two.term > one.term
        assert loop.time() - cut_at < 2 * LEASE_S
        with pytest.raises(Fenced):
            await first.commit([PutItem("x", b"late")])
        await asyncio.sleep(60)  # whatever the first one sent arrives
        assert second.leads
        await second.commit([PutItem("y", b"second")])
        await second.close()
        assert (await first.open()).items == {"y": b"second"}
        await first.close()

    run_simulated(body())


def test_a_commit_that_was_sent_and_then_held_up_does_nothing_in_a_later_term() -> None:
    async def body() -> None:
        metadata = MemoryMetadata()
        loop = asyncio.get_running_loop()
        first, second = store(metadata), store(metadata, "mr2")
        await first.open()
        waiting = spawn(second.open())
        await asyncio.sleep(1)
        until = loop.time() + 10
        metadata.held_until = lambda host: until if host == "mr1" else 0.0
        with pytest.raises(Fenced):
            await first.commit([PutItem("x", b"held up")])
        await waiting
        await asyncio.sleep(30)
        await second.commit([PutItem("y", b"")])
        await second.close()
        assert (await store(metadata).open()).items == {"y": b""}

    run_simulated(body())


# --- lost answers ------------------------------------------------------------------------------------------------------


def test_a_commit_whose_reply_is_lost_is_retried_and_takes_effect_once() -> None:
    async def body() -> None:
        metadata = MemoryMetadata()
        holder = store(metadata)
        await holder.open()
        lost = 2

        async def lose() -> None:
            nonlocal lost
            if lost:
                lost -= 1
                await asyncio.sleep(100)

        metadata.after_commit = lose
        await holder.commit([PutItem("x", b"1")])
        revision = metadata.keys.revision
        await holder.commit([PutItem("y", b"2")])
        assert metadata.keys.revision == revision + 1
        await holder.close()
        assert (await holder.open()).items == {"x": b"1", "y": b"2"}
        await holder.close()

    run_simulated(body())


def test_a_try_that_arrives_after_later_commits_does_nothing() -> None:
    """The first try was held up and given up; the second one did it. When the first arrives, its time is over."""

    async def body() -> None:
        metadata = MemoryMetadata()
        holder = store(metadata)
        await holder.open()
        held = False

        async def hold_first() -> None:
            nonlocal held
            if not held:
                held = True
                await asyncio.sleep(5)

        metadata.before_commit = hold_first
        await holder.commit([PutItem("x", b"1")])
        await holder.commit([PutItem("x", b"2")])
        await asyncio.sleep(10)
        await holder.commit([PutItem("y", b"")])
        await holder.close()
        assert (await holder.open()).items == {"x": b"2", "y": b""}
        await holder.close()

    run_simulated(body())


@pytest.mark.parametrize("step", range(1, 6))
def test_an_answer_that_is_lost_while_it_opens_costs_no_more_than_a_try(step: int) -> None:
    """Whichever it is: of the lease, of the election, of the read. A process that does not learn of its election still leads."""

    async def body() -> None:
        metadata = MemoryMetadata()
        left = step

        async def lose_one() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                await asyncio.sleep(1000)

        metadata.after_commit = lose_one
        holder = store(metadata)
        await holder.open()
        assert asyncio.get_running_loop().time() < LEASE_S / 2 and holder.leads
        await holder.commit([PutItem("x", b"")])
        await holder.close()

    run_simulated(body())


# --- large commits -------------------------------------------------------------------------------------------------------

OLD = [PutItem("keep", b"kept"), *(PutItem(f"old/{n:03d}", b"old") for n in range(90))]
NEW: list[StoreChange] = [
    DeleteItems("old/", "old0"),
    PutItem("big", bytes(700_000)),
    *(PutItem(f"new/{n:03d}", b"n") for n in range(300)),
]
BEFORE = {change.key: change.value for change in OLD}
AFTER = {"keep": b"kept", "big": bytes(700_000)} | {f"new/{n:03d}": b"n" for n in range(300)}


async def crashed_at(step: int, *, after: bool) -> tuple[dict[str, bytes], bool]:
    """What the next one finds if the process dies at the `step`-th request of a large commit, before or after it took effect;
    and whether the commit got that far."""
    metadata = MemoryMetadata()
    process = Process("mr1")
    holder = store(metadata)
    await process.spawn("open", holder.open())
    await process.spawn("commit", holder.commit(OLD))
    left = step

    async def die() -> None:
        nonlocal left
        left -= CURRENT.get() is process
        if left <= 0:
            process.die()
            await asyncio.Event().wait()

    if after:
        metadata.after_commit = die
    else:
        metadata.before_commit = die
    commit = process.spawn("commit", holder.commit(NEW))
    while process.alive and not commit.done():
        await asyncio.sleep(0.01)
    reached = not process.alive
    process.die()
    metadata.before_commit = metadata.after_commit = _at_once
    heir = store(metadata, "mr2")
    found = (await heir.open()).items
    await heir.commit([PutItem("more", b"")])
    await heir.close()
    assert (await heir.open()).items == found | {"more": b""}
    await heir.close()
    return found, reached


async def _at_once() -> None:
    pass


@pytest.mark.parametrize("after", [False, True], ids=["before it took effect", "after it took effect"])
def test_a_crash_at_any_step_of_a_large_commit_leaves_all_or_nothing(after: bool) -> None:
    """The heir finishes what was decided, and finds nothing of what was not; never a part."""
    outcomes = []
    for step in range(1, 50):
        found, reached = run_simulated(crashed_at(step, after=after))
        if not reached:
            break
        assert found in (BEFORE, AFTER)
        outcomes.append(found == AFTER)
    assert outcomes == sorted(outcomes) and outcomes[0] is False and outcomes[-1] is True
