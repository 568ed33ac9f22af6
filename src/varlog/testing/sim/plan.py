"""Plan: the shape of one run, drawn from its seed: how large the cluster, how long the run, how hard the faults."""

from __future__ import annotations

import random
from dataclasses import dataclass

from varlog.testing.workload import Mix


@dataclass
class Plan:
    """Rates are faults in a virtual second, over all hosts."""

    nodes: int = 3
    replicas: int = 3
    streams: int = 2
    topics: int = 1
    clients: int = 3
    loops: int = 2  # operations under way at once in one client process
    operations: int = 30  # of each loop
    segment_bytes: int = 4096
    rows_sync_delay_s: float = 0.2
    duration_s: float = 6.0
    crash_rate: float = 0.5
    stop_rate: float = 0.1  # clean stops
    cut_rate: float = 0.1  # connections broken between living processes
    pause_rate: float = 0.05  # processes that stand still for a while, as after SIGSTOP
    partition_rate: float = 0.05  # hosts between which nothing passes for a while
    far_share: float = 0.0  # of the pairs of hosts: far from each other all the time
    blackout_rate: float = 0.05  # everything loses power at once
    disk_crash_share: float = 0.4  # crashes in the middle of the disk's work, not at some moment
    message_crash_share: float = 0.2  # crashes while a message is being sent
    down_s: float = 1.0
    managers: int = 1
    new_streams: int = 0  # made while the users work
    last_blackout: bool = False
    early_faults: bool = False
    mix: Mix | None = None

    @classmethod
    def seeded(cls, rng: random.Random) -> Plan:
        """Another world each time."""
        plan = cls(mix=Mix.seeded(rng))
        plan.nodes = rng.choices((1, 2, 3, 4), (1, 1, 6, 1))[0]
        plan.replicas = min(plan.nodes, rng.choices((1, 2, 3), (1, 2, 5))[0])
        plan.streams = rng.choices((1, 2, 3), (3, 4, 1))[0]
        plan.topics = rng.choices((1, 2), (4, 1))[0]
        plan.clients = rng.randint(1, 3)
        plan.loops = rng.choice((1, 2, 3, 6))
        plan.operations = rng.choice((20, 30, 40)) if plan.loops < 6 else 15
        plan.segment_bytes = rng.choice((1024, 4096, 16384))
        plan.rows_sync_delay_s = rng.choice((0.02, 0.2, 1.0))
        plan.duration_s = rng.choice((3.0, 6.0))
        plan.crash_rate = rng.choice((0.2, 0.6, 1.2))
        plan.stop_rate = rng.choice((0.0, 0.1, 0.4))
        plan.cut_rate = rng.choice((0.0, 0.2, 1.0))
        plan.pause_rate = rng.choice((0.0, 0.0, 0.3))
        plan.partition_rate = rng.choice((0.0, 0.3, 0.8))
        plan.blackout_rate = rng.choice((0.0, 0.05, 0.3))
        plan.far_share = rng.choice((0.0, 0.15, 0.35))
        plan.managers = rng.choices((1, 2), (5, 1))[0]
        plan.new_streams = rng.choices((0, 1, 2), (5, 1, 1))[0]
        plan.down_s = rng.choice((0.05, 0.5, 1.5))
        plan.last_blackout = rng.random() < 0.5
        plan.early_faults = rng.random() < 0.1
        if rng.random() < 0.06:
            plan.crash_rate = plan.stop_rate = plan.cut_rate = plan.blackout_rate = 0.0
            plan.pause_rate = plan.partition_rate = plan.far_share = 0.0
            plan.last_blackout = plan.early_faults = False
            if plan.mix is not None:
                plan.mix.timeout_s = 8.0
        return plan

    @property
    def calm(self) -> bool:
        """Nothing is broken on purpose."""
        faults = (self.crash_rate, self.stop_rate, self.cut_rate, self.pause_rate, self.partition_rate)
        return not (any(faults) or self.blackout_rate or self.last_blackout)

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes, {self.topics} topics of {self.streams} streams with {self.replicas} replicas, "
            f"{self.clients} clients x {self.loops} loops x {self.operations} operations, "
            f"segments of {self.segment_bytes} bytes, {self.duration_s} s of faults "
            f"(crashes {self.crash_rate}, stops {self.stop_rate}, cuts {self.cut_rate}, "
            f"pauses {self.pause_rate}, partitions {self.partition_rate}, blackouts {self.blackout_rate} a second), "
            f"{self.managers} managers, {self.new_streams} new streams on the way"
        )
