"""Recipes on whole clusters in the simulator: fixed seeds keep every promise, meet what they are for, and show planted bugs."""

from __future__ import annotations

import random
from importlib import import_module

import pytest

from varlog.model.cluster import Ordering
from varlog.testing.sim.core import limits
from varlog.testing.sim.core.plan import NEED_AN_OPERATOR, SimPlan
from varlog.testing.sim.mutants.recipe_mutants import RECIPE_MUTANTS
from varlog.testing.sim.recipes.plan import RecipePlan, Store, Work, cluster_plan
from varlog.testing.sim.recipes.user import JOBS
from varlog.testing.sim.recipes.world import RecipeWorld, simulate_recipes
from varlog.testing.sim.runner import replay_command
from varlog.verify.history import CallOutcome
from varlog.verify.serializability import anomalies
from varlog.verify.transaction_history import history_of_lists

SEQUENCED = Ordering.SEQUENCED
# Some of all, and those that have shown something, which is described beside each.
SEEDS = (
    *((seed, ordering) for seed in range(1, 6) for ordering in Ordering),
    (
        313,
        Ordering.COMMITTED,
    ),  # a waiter for an item of a lost holder never paused again when its log was closed
    (286, SEQUENCED),  # appends take longer than a lease lasts: nobody can lead, and nobody does wrong
)


@pytest.mark.parametrize(("seed", "ordering"), SEEDS)
def test_a_seed_with_recipes_keeps_every_promise(seed: int, ordering: Ordering) -> None:
    """R-USE-2. `make sim-recipes` searches further."""
    result, _ = simulate_recipes(seed, ordering)
    assert result.violations == (), f"replay with: {replay_command(seed, ordering, recipes=True)}"


def test_the_same_seed_is_the_same_history_of_recipes_twice() -> None:
    """Randomness and time of every recipe come from its process's environment."""
    digests = [simulate_recipes(seed)[0].digest for seed in (1, 4, 1, 4)]
    assert digests[:2] == digests[2:]


# Outcomes of each recipe that must occur in some run.
WANTED = {
    *("ledger execute done", "ledger execute unknown", "ledger execute rejected", "ledger look done"),
    *("counter add done", "counter add unknown", "counter get done"),
    *("queue put done", "queue take done", "queue done done", "queue give back done", "queue drained done"),
    *("lock acquire done", "lock release done", "election acquire done", "election leader done"),
    *("kv put done", "kv get done", "kv cas done", "kv delete done", "kv stale done"),
    *(
        "checkpoint save done",
        "a claim lost",
        "a lock busy",
        "a lock that changed hands",
        "stopped at a fence",
    ),
    *("a jump to a snapshot", "a user that was paused", "watched"),
    *(f"{level} committed" for level in ("read_committed", "snapshot", "serializable")),
    *(f"{level} refused" for level in ("snapshot", "serializable")),
}


def test_seeds_with_recipes_cover_what_they_are_for() -> None:
    """A simulation in which no claim is lost, no lock changes hands and no transaction clashes proves nothing."""
    seen: set[str] = set()
    # A holder that is paused just long enough for another one to take its item is rare: one of a hundred seeds has it.
    for seed in (239, *range(1, 60)):
        if seen >= WANTED:
            break
        lines: list[str] = []
        result, world = simulate_recipes(seed, trace=lines.append)
        assert result.violations == ()
        seen |= set(result.counts) | outcomes_of(world, "\n".join(lines))
    assert WANTED - seen == set()


def outcomes_of(world: RecipeWorld, text: str) -> set[str]:
    """What a run had in it besides the ways in which calls ended."""
    history = world.recipes
    grants = [call.got for call in history.of("lock", "acquire") if call.done]
    found = {
        "a claim lost": any(call.got is False for call in history.of("queue", "done")),
        "a lock busy": None in grants,
        "a lock that changed hands": len({call.client for call in history.of("lock", "acquire") if call.got})
        > 1,
        "stopped at a fence": "is stopped at the fence" in text,
        "a jump to a snapshot": "continues from a snapshot" in text,
        "a user that was paused": bool(history.paused),
        "watched": any(watch.changes for watch in history.watches),
    }
    ends = {level: [one.committed for one in transactions] for level, transactions in history.lists.items()}
    for level, registers in history.registers.items():
        ends.setdefault(level, []).extend(one.committed for one in registers)
    for level, committed in ends.items():
        found[f"{level} committed"] = True in committed
        found[f"{level} refused"] = False in committed
    return {what for what, there in found.items() if there}


def level_seeds(work: Work, count: int) -> list[int]:
    """The first seeds in which a calm enough cluster has users of this level."""
    return [seed for seed in range(1, 400) if work in RecipePlan.of(seed, SimPlan.of(seed).calm).works][
        :count
    ]


def test_write_skew_is_shown_under_snapshot_and_never_under_serializable() -> None:
    """R-USE-2: the levels differ in what users see, and the cycle checker names it."""
    shown: set[str] = set()
    for seed in level_seeds(Work.SNAPSHOT, 6):
        result, world = simulate_recipes(seed)
        assert result.violations == ()
        shown |= {one.kind for one in anomalies(history_of_lists(world.recipes.lists.get("snapshot", ())))}
    assert shown == {"G2"}, "two that read what the other writes, and nothing worse"
    for seed in level_seeds(Work.SERIALIZABLE, 6):
        result, world = simulate_recipes(seed)
        assert result.violations == ()
        assert anomalies(history_of_lists(world.recipes.lists.get("serializable", ()))) == []


def test_plans_of_recipes_differ_and_cover_every_recipe() -> None:
    plans = [RecipePlan.of(seed, calm=False) for seed in range(200)]
    assert {work for plan in plans for work in plan.works} == set(Work) == set(JOBS)
    assert {plan.store for plan in plans} == set(Store)
    assert {plan.trims for plan in plans} == {True, False}
    assert all(plan.store is Store.TOPIC for plan in plans if plan.trims), "others find no snapshot elsewhere"
    assert all(RecipePlan.of(seed, calm=True).pause_rate == 0 for seed in range(50))


@pytest.mark.parametrize("ordering", Ordering)
def test_the_cluster_of_a_seed_has_the_faults_of_that_seed(ordering: Ordering) -> None:
    for seed in range(40):
        with_recipes, without = cluster_plan(seed, ordering), SimPlan.of(seed, ordering)
        # A topic that is stopped stays so until an operator comes, and users of recipes have none.
        expected = {kind: rate for kind, rate in without.rates.items() if kind not in NEED_AN_OPERATOR}
        assert (with_recipes.rates, with_recipes.pair, with_recipes.nodes) == (
            expected,
            without.pair,
            without.nodes,
        )


def test_there_is_a_planted_bug_in_every_recipe_and_at_every_level() -> None:
    assert {mutant.recipe for mutant in RECIPE_MUTANTS} == set(Work)


def test_bounds_of_recipes_have_their_place_in_the_code() -> None:
    module, name, choices = limits.RECIPE_BOUNDS[0]
    with limits.tight_limits(random.Random(1), limits.RECIPE_BOUNDS):
        assert getattr(import_module(module), name) in choices


def test_a_calm_run_ends_every_call_well() -> None:
    calm = next(seed for seed in range(1, 200) if SimPlan.of(seed).calm)
    result, world = simulate_recipes(calm)
    assert result.violations == ()
    assert {call.outcome for call in world.recipes.calls} == {CallOutcome.DONE}
