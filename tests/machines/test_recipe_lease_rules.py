"""Leases by the log: no two believe at one moment, whatever clocks within their bounds, ways and replicas do."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.errors import InvalidRequest
from varlog.model.limits import CLOCK_DRIFT_MAX
from varlog.model.lsn import GLSN
from varlog.recipes.core.lease_rules import (
    HeartbeatSeen,
    SentHeartbeats,
    Watch,
    dead_before,
    next_check_us,
    renew_us,
    ttl_us,
    validity_us,
)
from varlog.recipes.lock.lock_machine import Enter, Expire, Leave, LockCommand, LockMachine, Renew

TTL_US = 1_000_000
RATES = (1 - CLOCK_DRIFT_MAX, 1.0, 1 + CLOCK_DRIFT_MAX)
_rates = st.sampled_from(RATES)


@dataclass
class Party:
    """One process: its clock, its replica, and what it believes."""

    rate: float
    zero_us: int
    machine: LockMachine = field(default_factory=LockMachine)
    applied: int = 0
    claim: str = ""
    beats: SentHeartbeats | None = None
    watch: Watch[str] = field(default_factory=Watch)

    def now_us(self, true_us: int) -> int:
        return self.zero_us + int(true_us * self.rate)

    def believes(self, true_us: int) -> bool:
        holder = self.machine.holder
        if self.beats is None or holder is None or holder.claim != self.claim:
            return False
        return self.now_us(true_us) < self.beats.until_us(holder.beat)


@dataclass(frozen=True)
class Turn:
    """What happens next: `us` pass; then `who` applies all that is ordered, but for the last few; expires what it may; enters,
    sends a heartbeat, leaves, or is silent; and applies again. What it sends is ordered immediately, or stays in flight."""

    who: int
    us: int
    action: str
    at_once: bool
    behind: int
    late: int  # index of the command in flight that is ordered before, if it exists …
    again: bool  # … and whether it comes again


def _turn(rng: Random) -> Turn:
    return Turn(
        who=rng.randrange(3),
        us=rng.choice([TTL_US // 100, TTL_US // 20, TTL_US // 20, TTL_US // 3, TTL_US]),
        action=rng.choice(["renew", "renew", "renew", "silent", "silent", "leave"]),
        at_once=rng.random() < 0.8,
        behind=rng.choice([0, 0, 0, 1, 4]),
        late=rng.randrange(3),
        again=rng.random() < 0.3,
    )


class Leases:
    """Some processes, true time, and a log that takes what was sent at any time later, in any order, once, twice or never."""

    def __init__(self, rates: list[float], zero_us: int) -> None:
        self.true_us = 0
        self.parties = [Party(rate, zero_us * number) for number, rate in enumerate(rates)]
        self.in_flight: list[LockCommand] = []
        self.log: list[LockCommand] = []
        self.claims = 0
        self.tokens: dict[str, int] = {}

    def take(self, turn: Turn) -> None:
        if turn.late < len(self.in_flight):
            late = self.in_flight[turn.late] if turn.again else self.in_flight.pop(turn.late)
            self.log.append(late)
        self.true_us += turn.us
        party = self.parties[turn.who % len(self.parties)]
        send = (self.log if turn.at_once else self.in_flight).append
        self._apply(party, turn.behind)
        now_us = party.now_us(self.true_us)
        for one in party.machine:
            if one.claim != party.claim and party.watch.overdue(one.claim, now_us):
                send(Expire(one.claim, one.heartbeat))
        if party.beats is None:
            self.claims += 1
            party.claim = f"{self.claims}"
            party.beats = SentHeartbeats(TTL_US, now_us)
            send(Enter(party.claim, TTL_US, ""))
        elif turn.action == "renew":
            send(Renew(party.claim, party.beats.send(now_us)))
        elif turn.action == "leave":
            party.beats = None  # it gives up its lease before it sends that
            send(Leave(party.claim))
        self._apply(party, turn.behind)

    def _apply(self, party: Party, behind: int) -> None:
        for command in self.log[party.applied : len(self.log) - behind]:
            party.applied += 1
            stood = party.machine.find(party.claim) is not None
            party.machine.execute(GLSN(party.applied), command)
            if stood and party.machine.find(party.claim) is None:
                party.beats = None  # it was expired, and will enter again
        signs = [(one.claim, HeartbeatSeen(one.heartbeat, one.ttl_us)) for one in party.machine]
        party.watch.observe(signs, party.now_us(self.true_us))

    def check(self) -> None:
        believing = [party for party in self.parties if party.believes(self.true_us)]
        assert len(believing) <= 1, "two hold the lock at one moment"
        for party in believing:
            token = party.machine.token
            assert self.tokens.setdefault(party.claim, token) == token, "a grant has one token"
            others = [known for claim, known in self.tokens.items() if claim != party.claim]
            assert all(token > other for other in others), "who comes later has the larger token"


@given(st.integers(0, 2**32))
def test_no_two_believe_at_one_moment_and_each_has_a_larger_token(seed: int) -> None:
    """R-USE-2: no clock is shared; heartbeats are late, lost, duplicated and out of order; replicas lag."""
    rng = Random(seed)
    leases = Leases([rng.choice(RATES) for _ in range(2 + seed % 2)], rng.randrange(10**12))
    for _ in range(300):
        leases.take(_turn(rng))
        leases.check()
    assert leases.tokens, "nobody ever held it"


@given(
    _rates,
    _rates,
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.integers(0, 10**7),
    st.integers(50_000, 10**9),
)
def test_a_lease_is_invalid_to_its_holder_before_any_other_may_expire_it(
    holder_rate: float, other_rate: float, holder_zero: int, other_zero: int, way_us: int, ttl: int
) -> None:
    """Clocks that drift apart as far as they may, and begin anywhere; the sign takes any time to get there."""
    until_us = SentHeartbeats(ttl, holder_zero).until_us(0)
    over_us = (until_us - holder_zero) / holder_rate  # true time
    watch: Watch[str] = Watch()
    watch.observe([("a", HeartbeatSeen(GLSN(1), ttl))], other_zero + int(way_us * other_rate))
    assert not watch.overdue("a", other_zero + int(over_us * other_rate))


def test_a_belief_counts_from_the_newest_sign_that_was_applied() -> None:
    beats = SentHeartbeats(TTL_US, 1_000)
    assert beats.until_us(0) == 1_000 + validity_us(TTL_US)
    assert [beats.send(2_000), beats.send(3_000), beats.send(4_000)] == [1, 2, 3]
    assert beats.until_us(0) == 1_000 + validity_us(TTL_US), (
        "what was sent and not applied counts for nothing"
    )
    assert beats.until_us(2) == 3_000 + validity_us(TTL_US)
    assert beats.until_us(3) == 4_000 + validity_us(TTL_US)


def test_two_renewals_may_be_lost_before_a_belief_ends() -> None:
    assert 3 * renew_us(TTL_US) <= validity_us(TTL_US) < TTL_US


def test_a_watch_counts_from_when_it_saw_the_sign_itself() -> None:
    watch: Watch[str] = Watch()
    watch.observe([("a", HeartbeatSeen(GLSN(1), 100)), ("b", HeartbeatSeen(GLSN(2), 50))], 1_000)
    watch.observe([("a", HeartbeatSeen(GLSN(3), 100)), ("b", HeartbeatSeen(GLSN(2), 50))], 1_040)
    assert [watch.overdue("b", 1_049), watch.overdue("b", 1_050)] == [False, True]
    assert [watch.overdue("a", 1_139), watch.overdue("a", 1_140)] == [False, True]
    watch.observe([("a", HeartbeatSeen(GLSN(3), 100))], 2_000)
    assert not watch.overdue("b", 9_000), "who is gone is not watched any more"


def _watched(ages: dict[str, int]) -> Watch[str]:
    """A watch at time 0 that has seen nothing of each for so long; their time to live is 10."""
    watch: Watch[str] = Watch()
    for now in sorted({-age for age in ages.values()}):
        watch.observe([(who, HeartbeatSeen(GLSN(1), 10)) for who, age in ages.items() if -age <= now], now)
    return watch


@pytest.mark.parametrize(
    ("dead", "me", "on_me"),
    [
        ("", "c", ""),
        ("a", "b", "a"),
        ("a", "c", ""),
        ("ab", "c", "ba"),
        ("ab", "d", ""),
        ("bd", "c", "b"),
        ("bd", "a", "d"),
        ("bcd", "a", "dcb"),
        ("abd", "c", "bad"),
    ],
)
def test_everybody_expires_the_dead_just_before_it_in_a_ring(dead: str, me: str, on_me: str) -> None:
    line = list("abcd")
    watch = _watched({who: 10 if who in dead else 3 for who in line})
    assert dead_before(me, line, watch, 0) == list(on_me)


@given(st.sets(st.sampled_from("abcdef")))
def test_each_of_the_dead_is_on_exactly_one_of_the_living(dead: set[str]) -> None:
    """Nothing that was left behind blocks the others forever, and they do not all expire it at once."""
    line = list("abcdef")
    watch = _watched({who: 10 if who in dead else 3 for who in line})
    expired = [who for me in line if me not in dead for who in dead_before(me, line, watch, 0)]
    assert sorted(expired) == (sorted(dead) if len(dead) < len(line) else [])


def test_a_participant_outside_the_queue_expires_none_and_waits_for_none() -> None:
    watch = _watched({"a": 10})
    assert dead_before("x", ["a"], watch, 0) == []
    assert next_check_us("x", ["a"], watch, 0) is None


def test_the_next_look_is_when_the_next_before_me_may_be_dead() -> None:
    watch = _watched({"a": 3, "b": 10, "c": 0})
    assert next_check_us("c", list("abc"), watch, 0) == 7
    assert next_check_us("a", list("abc"), watch, 0) == 10
    assert next_check_us("a", ["a"], watch, 0) is None


@pytest.mark.parametrize("wrong", [0.0, -1.0, 0.01, float("nan"), float("inf"), 1e9])
def test_a_time_to_live_without_sense_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidRequest, match="time to live"):
        ttl_us(wrong)
