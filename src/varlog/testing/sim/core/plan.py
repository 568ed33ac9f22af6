"""Plan: the shape of one run, drawn from its seed, in either ordering."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum

from varlog.model.cluster import Grouping, Ordering
from varlog.model.limits import CLOCK_DRIFT_MAX
from varlog.model.projection import STRIPE_SIZE
from varlog.testing.workload import Mix


class FaultKind(StrEnum):
    """The kinds of faults, by the names in a trace."""

    CRASH = "crash"  # a process dies at some moment
    CRASH_WRITING = "crash-writing"  # … in the middle of the disk's work
    CRASH_SENDING = (
        "crash-sending"  # … with the k-th message it sends, managers above all: between any two steps
    )
    CRASH_ORDERING = "crash-ordering"  # a repository dies right before or after its store has taken a commit
    PAUSE_ORDERING = "pause-ordering"  # … or is paused there
    STOP = "stop"  # a clean end
    BLACKOUT = "blackout"  # everything loses power at once
    PAUSE = "pause"  # a process is paused, as after SIGSTOP, for longer than every lease at times
    AWAY = "away"  # a storage node stays away until it is replaced, and comes back
    CUT = "cut"  # a connection breaks
    STRAGGLE = "straggle"  # … and what was sent over it arrives much later, behind what is sent again
    LOSS = "loss"  # a connection, or all between two hosts, swallow everything, unnoticed
    PARTITION = "partition"  # nothing passes between hosts for a while
    ONE_WAY = "one-way"  # … in one direction only
    STORE_CUT = "store-cut"  # a repository does not reach its store
    ECHO = "echo"  # a control request arrives a second time, later, over another connection
    CLOCK = "clock"  # the time of day of a host jumps
    FSYNC = "fsync"  # syncs of a disk fail, and what was to be synced is lost
    WRITE = "write"  # writes of a disk fail
    FULL = "full"  # a disk is full, and is freed later
    FLIP = "flip"  # a bit on a disk changes; another replica has it intact
    WIPE = "wipe"  # a node's directory is deleted while it is down; every stream has another whole copy
    # What happens to files behind a process's back; every stream has another whole copy:
    HARM = "harm"  # files of a node, running or stopped: damaged, truncated, deleted, or older ones
    REWIND = "rewind"  # a node's drive is as it was a while ago
    TEAR = "tear"  # a power loss spoils what lies beside the writes in flight
    LOST_WRITE = "lost-write"  # writes are acknowledged and never reach the platter
    MISPLACED = "misplaced"  # … or land elsewhere on it
    STORE_HARM = "store-harm"  # a file of the only repository is harmed while it is down: it is right afterwards, or refuses
    STORE_REWIND = (
        "store-rewind"  # all files of the only repository are as they were a while ago; nodes may be late
    )
    # Beyond what replication survives: what was acknowledged is right at the end, or its loss is reported (see RightOrSaid).
    BEYOND = "beyond"  # every copy of a stream is harmed, or the repository's files with what nodes know of the order
    READ = "read"  # reads of a disk fail
    OPEN = "open"  # a process has no file descriptor or no memory left to open a file
    GRAY = "gray"  # a disk, a process or a link is ten to a thousand times slower for a while
    SWIZZLE = "swizzle"  # the links of some hosts close one after another and open in another order
    CORRUPT = "corrupt"  # a message arrives damaged: its checksum says so, and the connection is closed
    STEADY = "steady"  # the steady clock of a host stops or jumps ahead; its monotonic clock does not
    STORE_FULL = "store-full"  # the disk of the only repository is full, and is freed later
    STORE_LOST = (
        "store-lost"  # no repository reaches the store that several share: its majority is lost for a while
    )
    # Of sequenced topics only:
    SEQUENCER = "sequencer"  # the sequencer dies, stops, is paused, or cannot be reached
    ISLAND = "island"  # some clients are cut off from the rest together with a node, a sequencer, or both
    LEASE_CUT = "lease-cut"  # no repository reaches a node or sequencer, which all others reach
    CLIENT_CUT = "client-cut"  # one client does not reach one node or sequencer, which all others reach


SEQUENCED_KINDS = (FaultKind.SEQUENCER, FaultKind.ISLAND, FaultKind.LEASE_CUT, FaultKind.CLIENT_CUT)

# A node may say that it cannot open what is on a disk that fails.
DISK_FAILURES = {FaultKind.FSYNC, FaultKind.WRITE, FaultKind.FULL, FaultKind.READ, FaultKind.OPEN}
# These take a copy, or a part of it, that was durable.
COPY_LOSSES = {FaultKind.HARM, FaultKind.REWIND, FaultKind.TEAR, FaultKind.LOST_WRITE, FaultKind.MISPLACED}
# Drawn apart from the others.
LATER_KINDS = (
    *sorted(COPY_LOSSES),
    FaultKind.STORE_HARM,
    FaultKind.READ,
    FaultKind.OPEN,
    FaultKind.GRAY,
    FaultKind.SWIZZLE,
    FaultKind.CORRUPT,
)

# Drawn apart from the others, too.
NEWEST_KINDS = (FaultKind.STEADY, FaultKind.STORE_FULL, FaultKind.STORE_LOST)
NEWEST_SEEDS = 0.1

# Beside a repository that goes back in time nodes keep what they know: it is all there is of the newest order.
BESIDES_STORE_REWIND = (FaultKind.ECHO, FaultKind.CLOCK, FaultKind.CUT, FaultKind.STRAGGLE, FaultKind.CORRUPT)
STORE_REWIND_SEEDS = 0.08
# What ends in a topic that is stopped, or in a loss.
NEED_AN_OPERATOR = (FaultKind.STORE_REWIND, FaultKind.BEYOND)
# Beside harm to every copy nothing else loses data, so that each loss has one cause.
BESIDES_BEYOND = (*BESIDES_STORE_REWIND, FaultKind.CRASH, FaultKind.STOP, FaultKind.BLACKOUT)
BEYOND_SEEDS = 0.06
GRAY_WATCH_SEEDS = 0.015

# How often, in a virtual second, over all hosts: a run with many kinds draws one of these for each.
MANY: dict[FaultKind, tuple[float, ...]] = {
    FaultKind.CRASH: (0.1, 0.3, 0.5),
    FaultKind.CRASH_WRITING: (0.1, 0.25, 0.5),
    FaultKind.CRASH_SENDING: (0.0, 0.1, 0.3),
    FaultKind.CRASH_ORDERING: (0.0, 0.0, 0.2),
    FaultKind.PAUSE_ORDERING: (0.0, 0.0, 0.2),
    FaultKind.STOP: (0.0, 0.1, 0.4),
    FaultKind.BLACKOUT: (0.0, 0.05, 0.3),
    FaultKind.PAUSE: (0.0, 0.0, 0.3),
    FaultKind.AWAY: (0.0, 0.0, 0.2),
    FaultKind.CUT: (0.0, 0.2, 1.0),
    FaultKind.STRAGGLE: (0.0, 0.3, 1.5),
    FaultKind.LOSS: (0.0, 0.0, 0.2),
    FaultKind.PARTITION: (0.0, 0.2, 0.5),
    FaultKind.ONE_WAY: (0.0, 0.0, 0.3),
    FaultKind.STORE_CUT: (0.0, 0.0, 0.2),
    FaultKind.ECHO: (0.0, 0.5, 2.0),
    FaultKind.CLOCK: (0.0, 0.0, 0.2),
    FaultKind.FSYNC: (0.0, 0.0, 0.3),
    FaultKind.WRITE: (0.0, 0.0, 0.3),
    FaultKind.FULL: (0.0, 0.0, 0.2),
    FaultKind.FLIP: (0.0, 0.0, 0.3),
    FaultKind.WIPE: (0.0, 0.0, 0.1),
    FaultKind.HARM: (0.4, 1.2),
    FaultKind.REWIND: (0.4, 1.2),
    FaultKind.TEAR: (0.4, 1.2),
    FaultKind.LOST_WRITE: (0.4, 1.2),
    FaultKind.MISPLACED: (0.4, 1.2),
    FaultKind.STORE_HARM: (0.3, 1.0),
    FaultKind.STORE_REWIND: (0.3, 0.8),
    FaultKind.BEYOND: (0.3, 0.8),
    FaultKind.READ: (0.5, 2.0),
    FaultKind.OPEN: (0.5, 2.0),
    FaultKind.GRAY: (0.2, 0.6),
    FaultKind.SWIZZLE: (0.2, 0.6),
    FaultKind.CORRUPT: (0.3, 1.0),
    FaultKind.STEADY: (0.5, 2.0),
    FaultKind.STORE_FULL: (0.3, 0.8),
    FaultKind.STORE_LOST: (0.2, 0.5),
    FaultKind.SEQUENCER: (0.1, 0.3, 0.8),
    FaultKind.ISLAND: (0.0, 0.2, 0.5),
    FaultKind.LEASE_CUT: (0.0, 0.2, 0.5),
    FaultKind.CLIENT_CUT: (0.0, 0.3, 0.8),
}
# Most runs have none of the later kinds.
LATER_SEEDS_NOT = 0.6
# What takes no node out of a chain.
BESIDES_COPY_LOSSES = (FaultKind.ECHO, FaultKind.CLOCK, FaultKind.CUT, FaultKind.STRAGGLE, FaultKind.CORRUPT)
# What makes repositories take turns.
TURNS = (FaultKind.PAUSE_ORDERING, FaultKind.CRASH_ORDERING, FaultKind.STORE_CUT, FaultKind.PAUSE)

# A run of few kinds has each about so often; a pair comes together so often.
FEW_RATE = 0.5
PAIR_RATE = 0.8


@dataclass
class SimPlan:
    """Rates are faults in a virtual second, over all hosts."""

    nodes: int = 3
    replicas: int = 3
    streams: int = 2
    topics: int = 1
    repositories: int = 1
    managers: int = 1
    clients: int = 3
    loops: int = 2  # operations in flight at once in one client process
    operations: int = 30  # of each loop
    segment_bytes: int = 4096
    rows_sync_delay_s: float = 0.2
    lease_s: float = 1.0  # of a leading repository, where there are several
    replace_after_s: float = 1.0
    zombie_grace_s: float = 1.0
    scrub_interval_s: float = 1.0
    duration_s: float = 6.0
    rates: dict[FaultKind, float] = field(default_factory=dict)
    pair: tuple[FaultKind, FaultKind] | None = None  # these two overlap, again and again
    far_share: float = 0.0  # of the pairs of hosts: far from each other all the time
    down_s: float = 1.0
    new_streams: int = 0  # made while the users work
    handwork: int = 0  # what an operator does besides: seals, unseals, moves replicas
    first: int = 1  # the position at which topics begin
    registry_actions: int = 0  # of the RegistryClient
    tasks: int = 0  # that are written by several attempts each
    attempts: int = 0  # of each user
    copied: bool = False  # the first topic is copied
    last_blackout: bool = False
    early_faults: bool = False
    mix: Mix | None = None
    # Of sequenced topics (see sequenced_plan):
    ordering: Ordering = Ordering.COMMITTED
    mixed: bool = False  # the last topic is a committed one
    sequencers: int = 0
    stripe_size: int = STRIPE_SIZE
    grouping: Grouping = Grouping.STREAM
    meddling: int = 0  # reconfigurations that each user tries for no reason
    drift: float = 0.0  # how far from true time the steady clocks run, at most
    gray_watch: bool = False  # one node is slow, and nothing else happens: see gray_watch
    slow_disks: bool = False  # they hang often: something is always on its way to them

    @classmethod
    def of(cls, seed: int, ordering: Ordering = Ordering.COMMITTED) -> SimPlan:
        """The plan of the run with this seed."""
        plan = cls.seeded(random.Random(f"{seed}/plan"))
        plan._draw_names(random.Random(f"{seed}/names"))
        plan._draw_writes(random.Random(f"{seed}/writes"))
        if ordering is Ordering.SEQUENCED:
            make_sequenced(plan, random.Random(f"{seed}/sequenced"))
        plan._draw_later_kinds(random.Random(f"{seed}/later"))
        plan._draw_newest_kinds(random.Random(f"{seed}/newest"))
        plan._draw_store_rewind(random.Random(f"{seed}/store rewind"))
        plan._draw_beyond(random.Random(f"{seed}/beyond"))
        plan._draw_gray_watch(random.Random(f"{seed}/gray"))
        return plan

    @classmethod
    def seeded(cls, rng: random.Random) -> SimPlan:
        """Another world each time."""
        plan = cls(mix=Mix.seeded(rng))
        plan._draw_shape(rng)
        style = rng.choices(("calm", "pair", "few", "many"), (6, 24, 30, 40))[0]
        if style == "calm":
            plan.handwork = 0
            if plan.mix is not None:
                plan.mix.timeout_s = 8.0
            return plan
        plan.down_s = rng.choice((0.05, 0.5, 1.5))
        plan.far_share = rng.choice((0.0, 0.15, 0.35)) if style == "many" else 0.0
        plan.last_blackout = rng.random() < (0.5 if style == "many" else 0.15)
        plan.early_faults = rng.random() < 0.1
        plan._draw_faults(rng, style)
        # What rots in a file that is only read at the start is found at the next one.
        plan.last_blackout |= FaultKind.FLIP in plan.rates
        return plan

    def _draw_shape(self, rng: random.Random) -> None:
        self.nodes = rng.choices((1, 2, 3, 4, 5), (2, 2, 10, 4, 2))[0]
        self.replicas = min(self.nodes, rng.choices((1, 2, 3), (1, 3, 5))[0])
        self.streams = rng.choices((1, 2, 3), (3, 4, 1))[0]
        self.topics = rng.choices((1, 2), (4, 1))[0]
        self.repositories = rng.choices((1, 3), (2, 1))[0]
        self.managers = rng.choices((1, 2), (3, 1))[0]
        self.clients = rng.randint(1, 3)
        self.loops = rng.choice((1, 2, 3, 6))
        self.operations = rng.choice((20, 30, 40)) if self.loops < 6 else 15
        self.segment_bytes = rng.choice((1024, 4096, 16384))
        self.rows_sync_delay_s = rng.choice((0.02, 0.2, 1.0))
        self.replace_after_s = rng.choice((0.5, 1.5, 30.0))
        self.zombie_grace_s = rng.choice((0.5, 2.0))
        self.scrub_interval_s = rng.choice((1.0, 4.0))
        self.duration_s = rng.choice((3.0, 6.0))
        self.new_streams = rng.choices((0, 1, 2), (5, 1, 1))[0]
        self.handwork = rng.choices((0, 1, 4), (5, 1, 1))[0]

    def _draw_names(self, rng: random.Random) -> None:
        """Apart from the rest: what other seeds show stays as it is."""
        self.first = rng.choices((1, 1_000_001), (3, 1))[0]
        self.registry_actions = rng.choices((0, 30), (3, 1))[0]

    def _draw_writes(self, rng: random.Random) -> None:
        """Tasks that are written again and again, and a copy. Mostly without trims: what is trimmed proves nothing."""
        self.tasks = rng.choices((0, 1, 4), (2, 1, 1))[0]
        self.attempts = rng.choice((4, 12)) if self.tasks else 0
        self.copied = rng.random() < 0.2
        if self.mix is not None and (self.tasks or self.copied) and rng.random() < 0.7:
            self.mix.weights["trim"] = 0

    def _draw_faults(self, rng: random.Random, style: str) -> None:
        kinds = list(self.possible())
        if self.repositories > 1 and rng.random() < 0.5:
            self.rates = dict.fromkeys((rng.choice(TURNS), rng.choice(TURNS), rng.choice(kinds)), FEW_RATE)
        elif style == "pair":
            one, two = rng.choice(kinds), rng.choice(kinds)
            self.pair = one, two
            self.rates = dict.fromkeys((one, two), FEW_RATE / 2)
        elif style == "few":
            self.rates = dict.fromkeys(rng.sample(kinds, rng.randint(1, 4)), FEW_RATE)
        else:
            drawn = {kind: rng.choice(MANY[kind]) for kind in kinds}
            self.rates = {kind: rate for kind, rate in drawn.items() if rate}

    def _draw_later_kinds(self, rng: random.Random) -> None:
        """Apart from the rest: what other seeds show stays as it is."""
        if self.calm or rng.random() < LATER_SEEDS_NOT:
            return
        if self.ordering is Ordering.SEQUENCED and FaultKind.FLIP in self.rates:
            return  # rot is repaired from the nodes that serve: nothing else may take them away
        spared = {*(COPY_LOSSES if self.replicas == 1 else ())}
        spared |= {FaultKind.STORE_HARM} if self.repositories > 1 else set()
        possible = [kind for kind in LATER_KINDS if kind not in spared]
        for kind in rng.sample(possible, rng.choice((1, 1, 2, 3))):
            self.rates[kind] = rng.choice(MANY[kind])
        if not COPY_LOSSES & self.kinds():
            return
        # What is wrong in a file is found at the next start, or by those who run.
        self.last_blackout = rng.random() < 0.5
        # Who has the other copy is not replaced meanwhile: what was harmed and not found yet would be the only one.
        self.rates.pop(FaultKind.AWAY, None)
        self.pair = None if self.pair is not None and FaultKind.AWAY in self.pair else self.pair
        self.replace_after_s, self.handwork = 30.0, 0
        if self.ordering is Ordering.SEQUENCED:
            # A copy can be made good only from a chain that still serves: nothing else may take a node out of it meanwhile.
            kept = (*COPY_LOSSES, *BESIDES_COPY_LOSSES)
            self.rates = {kind: rate for kind, rate in self.rates.items() if kind in kept}
            self.pair, self.meddling, self.handwork, self.far_share = None, 0, 0, 0.0

    def _draw_newest_kinds(self, rng: random.Random) -> None:
        """Apart from the rest: what other seeds show stays as it is."""
        if self.calm or {FaultKind.FLIP, *COPY_LOSSES} & self.kinds() or rng.random() > NEWEST_SEEDS:
            return
        spared = FaultKind.STORE_FULL if self.repositories > 1 else FaultKind.STORE_LOST
        kind = rng.choice([kind for kind in NEWEST_KINDS if kind is not spared])
        self.rates[kind] = rng.choice(MANY[kind])

    def _draw_store_rewind(self, rng: random.Random) -> None:
        """Apart from the rest: what other seeds show stays as it is. No named readers and writers, and nothing that is created in
        the meantime: those are as old as the copy then. No tails: no other process knows what only the repository has answered."""
        if self.calm or self.repositories > 1 or rng.random() > STORE_REWIND_SEEDS:
            return
        self.rates = {kind: rate for kind, rate in self.rates.items() if kind in BESIDES_STORE_REWIND}
        self.rates[FaultKind.STORE_REWIND] = rng.choice(MANY[FaultKind.STORE_REWIND])
        self._leave_users_alone()
        self.last_blackout = rng.random() < 0.3
        self.duration_s = 12.0
        if self.mix is not None:
            self.mix.weights["tail"] = 0
            self.mix.think_s = 0.2
        # Log streams without a common node: what one of them knows the others do not.
        if rng.random() < 0.5:
            self.replicas = min(self.replicas, 2)
            self.nodes, self.streams = max(self.nodes, 2 * self.replicas), 2

    def _draw_beyond(self, rng: random.Random) -> None:
        """Apart from the rest: what other seeds show stays as it is."""
        if (
            self.calm
            or self.repositories > 1
            or FaultKind.STORE_REWIND in self.rates
            or rng.random() > BEYOND_SEEDS
        ):
            return
        self.rates = {kind: rate for kind, rate in self.rates.items() if kind in BESIDES_BEYOND}
        self.rates[FaultKind.BEYOND] = rng.choice(MANY[FaultKind.BEYOND])
        self._leave_users_alone()
        # What is wrong in a file that is only read at the start is found at the next one.
        self.last_blackout = True
        self.duration_s = 6.0
        if self.mix is not None:
            self.mix.think_s = 0.2

    def _draw_gray_watch(self, rng: random.Random) -> None:
        """Apart from the rest: what other seeds show stays as it is. Two topics without a common node, or two streams of one."""
        if self.calm or set(NEED_AN_OPERATOR) & self.kinds() or rng.random() > GRAY_WATCH_SEEDS:
            return
        self.rates, self.gray_watch, self.last_blackout, self.slow_disks = {}, True, False, False
        self._leave_users_alone()
        self.nodes, self.replicas, self.topics, self.streams = 4, 2, 2, 1
        # A sequenced append cannot avoid a slow stream: its position says which one it is in.
        if self.ordering is Ordering.COMMITTED and rng.random() < 0.5:
            self.topics, self.streams = 1, 2
        self.repositories = self.managers = 1
        self.clients, self.loops, self.duration_s = 2, 0, 30.0

    def _leave_users_alone(self) -> None:
        """Users of one topic, and nobody else: nothing is made, moved, named, copied or replaced meanwhile."""
        self.pair, self.early_faults, self.far_share = None, False, 0.0
        self.handwork = self.new_streams = self.registry_actions = self.tasks = self.attempts = (
            self.meddling
        ) = 0
        self.copied, self.mixed, self.topics = False, False, 1
        self.replace_after_s = 30.0

    def kinds(self) -> set[FaultKind]:
        """The kinds that happen in this run."""
        return set(self.rates)

    def possible(self) -> tuple[FaultKind, ...]:
        """The kinds that make sense in a cluster of this shape."""
        alone = {FaultKind.FLIP, FaultKind.WIPE} if self.replicas == 1 else set()
        others = {*alone, *SEQUENCED_KINDS, *LATER_KINDS, *NEWEST_KINDS, *NEED_AN_OPERATOR}
        return tuple(kind for kind in FaultKind if kind not in others)

    def ordering_of(self, number: int) -> Ordering:
        """How topic number so (from 0 on) is ordered."""
        last = self.mixed and number == self.topics - 1
        return Ordering.COMMITTED if last else self.ordering

    @property
    def calm(self) -> bool:
        """Nothing is broken on purpose."""
        return not (self.rates or self.last_blackout or self.handwork or self.gray_watch)

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {rate:g}" for kind, rate in self.rates.items()) or "none"
        pair = f", {' with '.join(self.pair)} {PAIR_RATE:g}" if self.pair else ""
        sequenced = (
            f"sequenced by {self.sequencers} sequencers in stripes of {self.stripe_size} by {self.grouping}, "
            f"{self.meddling} reconfigurations a user, {'slow' if self.slow_disks else 'fast'} disks, "
            f"clocks off by {self.drift:g}, {int(self.mixed)} topics committed; "
            if self.ordering is Ordering.SEQUENCED
            else ""
        )
        return sequenced + (
            f"{self.nodes} nodes, {self.repositories} repositories, {self.managers} managers, "
            f"{self.topics} topics of {self.streams} streams with {self.replicas} replicas, {self.new_streams} more on the way, "
            f"{self.handwork} operator actions, {self.registry_actions} under a name, positions from {self.first} on, "
            f"{self.tasks} tasks with {self.attempts} attempts a user, {int(self.copied)} copies, "
            f"{self.clients} clients x {self.loops} loops x {self.operations} operations, "
            f"segments of {self.segment_bytes} bytes, replaced after {self.replace_after_s:g} s; "
            f"for {self.duration_s:g} s, each so often a second: {faults}{pair}"
        )


# Sequenced plan: what a plan is like where its topics are sequenced: sequencers, stripes, drifting clocks, meddling clients.

# What rots can be made good only from a chain that still serves: nothing else may take a node out of it meanwhile.
BESIDES_ROT = (FaultKind.ECHO, FaultKind.CLOCK)


def make_sequenced(plan: SimPlan, rng: random.Random) -> None:
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
    if FaultKind.ISLAND in plan.kinds():  # hosts are on either side, and there is another sequencer
        plan.clients = max(2, plan.clients)
        plan.sequencers = 2
    # Users must still be at work until a node is given up, its lease is over and another one has taken over.
    if set(SEQUENCED_KINDS) & plan.kinds() and plan.mix is not None and rng.random() < 0.6:
        plan.duration_s = 12.0
        plan.mix.think_s = rng.choice((0.2, 0.4))


def _draw_faults(plan: SimPlan, rng: random.Random) -> None:
    rot = FaultKind.FLIP in plan.rates
    few = len(plan.rates) <= 4
    if rot and few and rng.random() < 0.5:
        plan.rates = {
            kind: rate for kind, rate in plan.rates.items() if kind in (FaultKind.FLIP, *BESIDES_ROT)
        }
        plan.pair, plan.meddling, plan.handwork = None, 0, 0
        plan.far_share = 0.0
        return
    plan.rates.pop(FaultKind.FLIP, None)
    if plan.pair is not None:
        one, two = (rng.choice(SEQUENCED_KINDS) if kind is FaultKind.FLIP else kind for kind in plan.pair)
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
