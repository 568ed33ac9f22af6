"""RecipePlan: what users of recipes do in the run of a seed.

Which recipes, which timeouts, which snapshots and leases.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from varlog.model.cluster import Ordering
from varlog.testing.sim.core.plan import NEED_AN_OPERATOR, SimPlan


class Work(StrEnum):
    """What a user of recipes can be at."""

    LEDGER = "ledger"  # a replicated state machine that writes down every command
    COUNTER = "counter"
    QUEUE = "queue"
    LOCK = "lock"
    ELECTION = "election"
    KV = "kv"
    READ_COMMITTED = "read_committed"  # transactions
    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


TRANSACTIONS = (Work.READ_COMMITTED, Work.SNAPSHOT, Work.SERIALIZABLE)


class Store(StrEnum):
    """Where snapshots are kept."""

    NOWHERE = "nowhere"
    TOPIC = "topic"  # shared by all: the log may be trimmed
    DIRECTORY = "directory"  # of each user's own host


@dataclass
class RecipePlan:
    """Rates are in a virtual second."""

    works: tuple[Work, ...]
    loops: int  # of each work in each user process
    operations: int  # of each loop
    think_s: float
    timeout_s: float
    ttl_s: float  # of locks, leads and claims
    store: Store
    checkpoint_share: float  # of the operations of a loop: a checkpoint comes before it
    trims: bool
    keys: int
    pause_rate: float  # users are paused
    history_changes: int | None  # that a map of transactions remembers; None: as always
    noise_entries: int = 0  # of each user process, between the commands

    @classmethod
    def of(cls, seed: int, calm: bool) -> RecipePlan:
        """The plan of the run with this seed. What is drawn here is drawn apart from the cluster and its faults."""
        rng = random.Random(f"{seed}/recipes")
        works = tuple(rng.sample(tuple(Work), rng.choice((1, 2, 3))))
        store = rng.choices(tuple(Store), (2, 2, 1))[0]
        made = cls(
            works=works,
            loops=rng.choice((1, 2)),
            operations=rng.choice((10, 20, 30)),
            think_s=rng.choice((0.03, 0.15, 0.4)),
            timeout_s=8.0 if calm else rng.choice((0.8, 2.0, 5.0)),
            ttl_s=rng.choice((0.5, 1.0, 2.5)),
            store=store,
            checkpoint_share=rng.choice((0.05, 0.2, 0.4)) if store is not Store.NOWHERE else 0.0,
            trims=store is Store.TOPIC and rng.random() < 0.6,
            keys=rng.choice((1, 2, 3, 5)),
            pause_rate=0.0 if calm else rng.choice((0.0, 0.0, 0.3, 1.0)),
            history_changes=rng.choice((None, None, 3, 30)),
        )
        made.noise_entries = rng.choice((0, 10, 30))
        if made.trims:  # so often that a replica falls behind: above all one that was paused
            made.works = made.works[:2]
            made.checkpoint_share = rng.choice((0.2, 0.4))
            made.pause_rate = 0.0 if calm else rng.choice((0.3, 1.0, 2.0))
        return made

    def __str__(self) -> str:
        return (
            f"{', '.join(self.works)}: {self.loops} loops x {self.operations} operations, each within {self.timeout_s:g} s, "
            f"{self.keys} keys, leases of {self.ttl_s:g} s, snapshots {self.store}, checkpoints {self.checkpoint_share:g}, "
            f"{'trims' if self.trims else 'no trims'}, users pause {self.pause_rate:g}, history {self.history_changes}, "
            f"{self.noise_entries} entries of noise"
        )


def cluster_plan(seed: int, ordering: Ordering) -> SimPlan:
    """The cluster and the faults of the seed, without those who work on the log itself."""
    plan = SimPlan.of(seed, ordering)
    for kind in NEED_AN_OPERATOR:  # a topic that is stopped stays so until an operator comes
        plan.rates.pop(kind, None)
    rng = random.Random(f"{seed}/recipes cluster")
    plan.topics, plan.mixed, plan.copied = 1, False, False
    plan.tasks = plan.attempts = plan.registry_actions = plan.meddling = plan.loops = 0
    plan.clients = max(plan.clients, rng.choice((2, 3, 3)))
    plan.duration_s = max(plan.duration_s, rng.choice((6.0, 10.0)))
    return plan
