"""Whole clusters with sequenced topics in the simulator: fixed seeds keep every law, and meet what they are for."""

from __future__ import annotations

import asyncio

import pytest

from varlog.model.cluster import Grouping, Ordering
from varlog.model.limits import CLOCK_DRIFT_MAX
from varlog.testing.sim.core import loop
from varlog.testing.sim.core.host import SimClock
from varlog.testing.sim.core.plan import SEQUENCED_KINDS, FaultKind, SimPlan
from varlog.testing.sim.mutants.sequenced_mutants import SEQUENCED_MUTANTS
from varlog.testing.sim.runner import replay_command
from varlog.testing.sim.simulate import simulate
from varlog.verify.history import AppendCall, CallOutcome, ReadCall

SEQUENCED = Ordering.SEQUENCED
# Some of all, and those that once showed a bug, which is described beside each.
SEEDS = (
    *range(1, 9),
    26,  # a read dialled, and then waited as long as before: it ended behind its deadline
    3070,  # a client wrote at a position that another sequencer had given in between, as its own was named again
    221,  # a read that waited for a hole ended behind its deadline
    243,  # a unit that could not be opened at the start was never opened again, and so never removed
    315,  # a unit whose disk failed once, alone in its chain, accepted no more writes forever
    1443,  # a sync that was given up left the refusals of its writes to nobody
    1846,  # a client wrote at a position that another sequencer had granted again two epochs before
    2262,  # a sequencer far from the repositories never had the time to find out who leads, and never got a lease
    4179,  # what the disk refused to remove half-way was taken for a damaged replica
    4329,  # a unit joined under a lease from before it was there, and served what had been trimmed meanwhile
    1017,  # a request to fill a unit came late, and put entries into a chain that had been sealed without them
    519,  # a batch that a node without a lease had refused was called unknown, as its position was trimmed meanwhile
    5549,  # a log stream was registered after its units had been swept away as zombies, and never got any
)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_of_sequenced_topics_keeps_every_law(seed: int) -> None:
    result, _ = simulate(seed, SEQUENCED)
    assert result.violations == (), f"replay with: {replay_command(seed, SEQUENCED)}"


def test_the_same_seed_is_the_same_sequenced_history_twice() -> None:
    assert simulate(3, SEQUENCED)[0].digest == simulate(3, SEQUENCED)[0].digest


# What the trace of a run has where something of sequenced topics happens.
TRACED = (
    "an island for",
    "no repository reaches",
    "does not reach",
    "meddles: epoch",
    "meddles: sealed",
    "NO REDUNDANCY",
    "filled a hole",
    "sync complete",
    "reconfiguring",
    "joins log stream",
    "replica is rebuilt",
    "another sequencer takes over",
)


def test_seeds_of_sequenced_topics_cover_what_they_are_for() -> None:
    seen: set[str] = set()
    for seed in range(1, 41):
        lines: list[str] = []
        _, world = simulate(seed, SEQUENCED, trace=lines.append)
        text = "\n".join(lines)
        seen |= {what for what in TRACED if what in text}
        for operation in world.history.operations:
            if isinstance(operation, AppendCall):
                seen.add(f"append {operation.outcome}")
            elif isinstance(operation, ReadCall) and operation.outcome is CallOutcome.FILLED:
                seen.add("read filled")
        if seen >= {*TRACED, "append done", "append unknown", "append rejected", "read filled"}:
            return
    assert {*TRACED, "append done", "append unknown", "append rejected", "read filled"} - seen == set()


def test_plans_of_sequenced_topics_differ_from_seed_to_seed() -> None:
    plans = [SimPlan.of(seed, SEQUENCED) for seed in range(300)]
    assert {plan.sequencers for plan in plans} == {1, 2}
    assert {plan.grouping for plan in plans} == set(Grouping)
    assert {plan.mixed for plan in plans} == {True, False}
    assert {bool(plan.meddling) for plan in plans} == {True, False}
    assert {plan.drift for plan in plans} == {0.0, CLOCK_DRIFT_MAX / 2, CLOCK_DRIFT_MAX}
    assert {kind for plan in plans for kind in plan.rates} == set(FaultKind)
    assert {kind for plan in plans if plan.pair for kind in plan.pair} >= set(SEQUENCED_KINDS)
    assert all(not plan.rates and not plan.meddling for plan in plans if plan.calm)


def test_the_committed_plan_of_a_seed_knows_nothing_of_sequenced_topics() -> None:
    plans = [SimPlan.of(seed) for seed in range(100)]
    assert not any(set(SEQUENCED_KINDS) & set(plan.rates) or plan.sequencers or plan.drift for plan in plans)


def test_what_rots_has_a_chain_that_nothing_else_shortens() -> None:
    """Rot is made good from the nodes that serve: the simulator never takes them away at the same time."""
    rotten = [plan for seed in range(2000) if FaultKind.FLIP in (plan := SimPlan.of(seed, SEQUENCED)).rates]
    assert rotten
    for plan in rotten:
        assert set(plan.rates) <= {FaultKind.FLIP, FaultKind.ECHO, FaultKind.CLOCK}
        assert not (plan.meddling or plan.pair)


def test_a_steady_clock_drifts_and_never_jumps() -> None:
    """Leases rely on nothing else."""

    async def work() -> tuple[int, int]:
        clock = SimClock(skew_us=5, rate=1 - CLOCK_DRIFT_MAX, steady_from_us=10**9)
        before = clock.steady_us()
        clock.skew_us -= 10**12  # the time of day jumps
        await asyncio.sleep(10.0)
        return before, clock.steady_us()

    before, after = loop.run_simulated(work())
    assert after - before == pytest.approx(9_500_000, rel=0.001)


def test_planted_bugs_of_sequenced_topics_are_many_and_searched_there() -> None:
    assert len(SEQUENCED_MUTANTS) >= 12
    assert all(mutant.ordering is SEQUENCED for mutant in SEQUENCED_MUTANTS)
