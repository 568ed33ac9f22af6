"""Election over a log, in virtual time: one leader a term, terms that grow, and everybody sees who leads."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import pytest

from tests.recipes.parties import Party, passed, run_parties
from varlog import aio
from varlog.model.limits import CLOCK_DRIFT_MAX
from varlog.recipes.errors import LockBusy, LockLost, NotHeld
from varlog.recipes.lock.election import Election, Leader, Leadership

SLOW, FAST = 1 - CLOCK_DRIFT_MAX, 1 + CLOCK_DRIFT_MAX
TTL_S = 10.0


def test_candidates_lead_one_after_the_other_each_in_a_later_term() -> None:
    """R-USE-2: leader election."""

    async def body(*parties: Party) -> None:
        elections = [await party.election() for party in parties]
        terms: list[int] = []

        async def stand(election: Election, name: str) -> None:
            async with election.leading() as leadership:
                assert election.leadership is leadership
                assert await elections[0].leader() == Leader(name, leadership.term)
                terms.append(leadership.term)
                await asyncio.sleep(2)

        await asyncio.gather(
            *(stand(election, party.name) for election, party in zip(elections, parties, strict=True))
        )
        assert len(terms) == len(parties)
        assert all(before < after for before, after in pairwise(terms))
        assert await elections[1].leader() is None
        for election in elections:
            await election.close()

    run_parties(body, 1.0, SLOW, FAST)


def test_a_leader_that_resigns_leads_no_more_and_the_next_one_does() -> None:
    async def body(one: Party, other: Party) -> None:
        first, second = await one.election(), await other.election()
        leadership = await first.campaign()
        with pytest.raises(LockBusy, match="election 'head' was not granted within 1 s: 'party-1' has it"):
            await second.campaign(timeout_s=1)
        waiting = asyncio.create_task(second.campaign())
        await passed(1)
        assert await first.resign()
        assert (leadership.held, leadership.lost.is_set(), first.leadership) == (False, False, None)
        assert (await waiting).term > leadership.term
        with pytest.raises(NotHeld, match="election 'head' is not held here"):
            await first.resign()
        await first.close()
        await second.close()

    run_parties(body, 1.0, 1.0)


@pytest.mark.parametrize(("leader_rate", "other_rate"), [(1.0, 1.0), (SLOW, FAST), (FAST, SLOW)])
def test_a_leader_that_is_cut_off_has_stopped_when_the_next_one_leads(
    leader_rate: float, other_rate: float
) -> None:
    """R-USE-2: one leader a term, and never two at one moment."""

    async def body(one: Party, other: Party) -> None:
        first, second = await one.election(), await other.election()
        stopped: list[float] = []

        async def lead() -> None:
            async with first.leading():
                try:
                    await asyncio.sleep(1000)
                finally:
                    stopped.append(asyncio.get_running_loop().time())

        leading = asyncio.create_task(lead())
        await passed(1)
        waiting = asyncio.create_task(second.campaign())
        await passed(3 * TTL_S)
        one.link.cut = True
        leadership: Leadership = await waiting
        assert leadership.held
        assert stopped
        assert stopped[0] < asyncio.get_running_loop().time()
        one.link.restore()
        with pytest.raises(LockLost):
            await leading
        await first.close()
        await second.close()

    run_parties(body, leader_rate, other_rate)


def test_an_observer_sees_each_leader_and_when_nobody_leads() -> None:
    async def body(one: Party, other: Party, third: Party) -> None:
        first, second, looking = await one.election(), await other.election(), await third.election()
        async with aclosing(looking.observe()) as seen:
            assert await anext(seen) is None
            leadership = await first.campaign()
            assert await anext(seen) == Leader("party-1", leadership.term)
            await first.resign()
            assert await anext(seen) is None
            again = await first.campaign()
            assert await anext(seen) == Leader("party-1", again.term)
            one.link.cut = True
            assert await anext(seen) is None, "no heartbeat arrived for its time to live"
            assert not again.held
            after = await second.campaign()
            assert await anext(seen) == Leader("party-2", after.term)
            assert leadership.term < again.term < after.term
        one.link.restore()
        for election in (first, second, looking):
            await election.close()

    run_parties(body, SLOW, 1.0, FAST)


def test_a_leader_is_looked_up_without_asking_the_log_if_that_is_enough() -> None:
    async def body(one: Party, other: Party) -> None:
        first, second = await one.election(), await other.election()
        other.link.cut = True
        leadership = await first.campaign()
        assert await second.leader(stale=True) is None
        other.link.restore()
        assert await second.leader() == await second.leader(stale=True) == Leader("party-1", leadership.term)
        await first.close()
        await second.close()

    run_parties(body, 1.0, 1.0)


def test_an_election_on_a_real_log(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            asyncio.timeout(60),
            aio.open(tmp_path / "data", topic="votes", sync=False) as log,
            Election.open(log, name="head", candidate="one", ttl_s=2) as one,
            Election.open(log, name="head", candidate="other", ttl_s=2) as other,
        ):
            async with one.leading() as leadership:
                assert await other.leader() == Leader("one", leadership.term)
            async with other.leading() as later:
                assert later.term > leadership.term

    asyncio.run(body())
