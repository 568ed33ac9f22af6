"""Sequenced plan: what a plan is like where its topics are sequenced: sequencers, stripes, drifting clocks, meddling clients."""

from __future__ import annotations

import random

from varlog.model.cluster import Grouping, Ordering
from varlog.model.limits import CLOCK_DRIFT_MAX
from varlog.model.projection import STRIPE_SIZE
from varlog.testing.sim.plan import FEW_RATE, MANY, SEQUENCED_KINDS, Kind, Plan

# What rots can be made good only from a chain that still serves: nothing else may take a node out of it meanwhile.
BESIDES_ROT = (Kind.ECHO, Kind.CLOCK)


def make_sequenced(plan: Plan, rng: random.Random) -> None:
    """The same cluster and the same faults, with the topics ordered the other way, and what can go wrong there besides."""
    plan.ordering = Ordering.SEQUENCED
    plan.mixed = plan.topics > 1 and rng.random() < 0.5
    plan.sequencers = rng.choices((1, 2), (1, 2))[0]
    plan.stripe_size = rng.choices((1, 3, 10, STRIPE_SIZE), (1, 3, 3, 2))[0]
    plan.grouping = rng.choice((Grouping.NODE, Grouping.STREAM))
    plan.drift = rng.choice((0.0, CLOCK_DRIFT_MAX / 2, CLOCK_DRIFT_MAX))
    meddling = rng.choices((0, 2, 8), (3, 1, 1))[0]
    # Chains of batches, copies and named writers need a primary.
    plan.tasks = plan.attempts = 0
    plan.copied = False
    if plan.mix is not None and (plan.streams > 1 or plan.new_streams):
        plan.mix.batch_max = min(plan.mix.batch_max, plan.stripe_size)
    if plan.calm:
        return
    plan.meddling = meddling
    plan.slow_disks = rng.random() < 0.3
    _draw_faults(plan, rng)
    if Kind.ISLAND in plan.kinds():  # somebody is on either side, and there is another sequencer
        plan.clients = max(2, plan.clients)
        plan.sequencers = 2
    # Until somebody is given up, and his lease is over, and another one has taken over, users must still be at work.
    if set(SEQUENCED_KINDS) & plan.kinds() and plan.mix is not None and rng.random() < 0.6:
        plan.duration_s = 12.0
        plan.mix.think_s = rng.choice((0.2, 0.4))


def _draw_faults(plan: Plan, rng: random.Random) -> None:
    rot = Kind.FLIP in plan.rates
    few = len(plan.rates) <= 4
    if rot and few and rng.random() < 0.5:
        plan.rates = {kind: rate for kind, rate in plan.rates.items() if kind in (Kind.FLIP, *BESIDES_ROT)}
        plan.pair, plan.meddling, plan.handwork = None, 0, 0
        plan.far_share = 0.0
        return
    plan.rates.pop(Kind.FLIP, None)
    if plan.pair is not None:
        one, two = (rng.choice(SEQUENCED_KINDS) if kind is Kind.FLIP else kind for kind in plan.pair)
        if rng.random() < 0.5:
            two = rng.choice(SEQUENCED_KINDS)
        plan.pair = one, two
        plan.rates = dict.fromkeys((one, two), FEW_RATE / 2)
    elif few:
        for kind in rng.sample(SEQUENCED_KINDS, rng.choice((0, 1, 1, 2))):
            plan.rates[kind] = FEW_RATE
    else:
        drawn = {kind: rng.choice(MANY[kind]) for kind in SEQUENCED_KINDS}
        plan.rates.update({kind: rate for kind, rate in drawn.items() if rate})
