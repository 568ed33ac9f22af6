"""The repair rule against a small model: a stream always comes back, and coming back loses nothing ordered.

The model keeps the contracts of the storage node and the metadata repository (laws 1, 2, 6, 7; R-SEAL-3,
R-SEAL-4, R-UNSEAL-1). Replicas crash, connections break with batches on the way, a step reaches only some of
its nodes, or arrives a second time much later.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from varlog.manager.repair_rules import (
    HELD,
    RUNS,
    Nothing,
    SealReplicas,
    SealStream,
    Step,
    UnsealReplicas,
    UnsealStream,
    next_step,
)
from varlog.model.cluster import LogStream, ReplicaState, ReplicaStatus, StreamState
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN

NODES = (NodeID(1), NodeID(2), NodeID(3))
PRIMARY = NODES[0]
# More than the longest way back: finish an epoch, seal, seal replicas, unseal backups, primary, stream.
STEPS_MAX = 10


@dataclass
class Replica:
    """One replica: `entries` are durable, as (epoch, what); `taken` is what a primary took and has not
    written yet."""

    alive: bool = True
    state: ReplicaState = ReplicaState.SEALING
    epoch: int = 0
    sealed_end: int = 1
    opened: bool = False
    entries: list[tuple[int, int]] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)
    committed_end: int = 1

    @property
    def durable_end(self) -> int:
        return len(self.entries) + 1

    def seal(self, epoch: int, end: int) -> None:
        if epoch < self.epoch or (epoch == self.epoch and self.opened):
            return
        assert self.committed_end <= end, "a seal never undoes a commit (law 6)"
        if self.state is ReplicaState.SEALED and epoch == self.epoch:
            return
        self.state, self.epoch, self.sealed_end, self.opened = ReplicaState.SEALING, epoch, end, False
        self.taken.clear()
        if self.committed_end == end:
            del self.entries[end - 1 :]
            self.state = ReplicaState.SEALED

    def unseal(self, epoch: int) -> bool:
        if epoch == self.epoch and self.state is ReplicaState.SEALED:
            self.state, self.opened = ReplicaState.RUNNING, True
        return self.state is ReplicaState.RUNNING and epoch == self.epoch

    def restart(self, rows_lost: int) -> None:
        self.alive, self.state = True, ReplicaState.SEALING
        self.committed_end = max(1, self.committed_end - rows_lost)


@dataclass
class World:
    """A stream at the repository, its replicas, and what is on the way from the primary to each backup."""

    epoch: int = 1
    state: StreamState = StreamState.SEALED
    sealed_end: int = 1
    ordered: list[tuple[int, int]] = field(default_factory=list)
    reports: dict[NodeID, tuple[int, int]] = field(default_factory=dict)
    replicas: dict[NodeID, Replica] = field(default_factory=lambda: {node: Replica() for node in NODES})
    wires: dict[NodeID, list[tuple[int, int, int]]] = field(
        default_factory=lambda: {node: [] for node in NODES[1:]}
    )
    held: bool = False

    def stream(self) -> LogStream:
        return LogStream(
            LogStreamID(7), TopicID(1), NODES, self.state, Epoch(self.epoch), LLSN(self.sealed_end)
        )

    def statuses(self) -> dict[NodeID, ReplicaStatus | None]:
        return {node: _status(replica) for node, replica in self.replicas.items() if replica.alive}

    def decide(self) -> Step:
        return next_step(self.stream(), self.statuses(), held=self.held)

    def break_wires(self) -> None:
        """R-SEAL-6: a primary that lost a backup seals itself."""
        for wire in self.wires.values():
            wire.clear()
        if self.replicas[PRIMARY].state is ReplicaState.RUNNING:
            self.replicas[PRIMARY].state = ReplicaState.SEALING

    def crash(self, node: NodeID) -> None:
        self.replicas[node].alive = False
        self.replicas[node].taken.clear()
        self.break_wires()

    def deliver(self, node: NodeID) -> None:
        epoch, llsn, what = self.wires[node].pop(0)
        backup = self.replicas[node]
        if backup.state is ReplicaState.RUNNING and backup.epoch == epoch and backup.durable_end == llsn:
            backup.entries.append((epoch, what))
        else:
            self.break_wires()

    def report(self, node: NodeID) -> None:
        replica = self.replicas[node]
        if replica.alive:
            end = replica.durable_end if replica.opened else min(replica.durable_end, replica.sealed_end)
            self.reports[node] = (replica.epoch, end)

    def order(self) -> None:
        if self.state is not StreamState.RUNNING or len(self.reports) < len(NODES):
            return
        if any(epoch != self.epoch for epoch, _ in self.reports.values()):
            return
        end = min(end for _, end in self.reports.values())
        for llsn in range(len(self.ordered) + 1, end):
            held = [replica.entries[llsn - 1 : llsn] for replica in self.replicas.values()]
            assert held[0] and all(entry == held[0] for entry in held), "every replica before ordered (law 2)"
            self.ordered += held[0]

    def learn(self, node: NodeID) -> None:
        replica = self.replicas[node]
        if replica.alive and replica.durable_end > len(self.ordered):
            replica.committed_end = len(self.ordered) + 1

    def carry_out(self, step: Step, reached: tuple[NodeID, ...] = NODES) -> None:
        match step:
            case SealStream():
                if self.state is StreamState.RUNNING:
                    self.order()
                    self.state, self.epoch, self.sealed_end = (
                        StreamState.SEALED,
                        self.epoch + 1,
                        len(self.ordered) + 1,
                    )
            case UnsealStream(epoch):
                if epoch == self.epoch:
                    self.state = StreamState.RUNNING
            case SealReplicas(nodes, epoch, end):
                for node in [node for node in nodes if node in reached and self.replicas[node].alive]:
                    self.replicas[node].seal(epoch, end)
            case UnsealReplicas(nodes, epoch):
                for node in [node for node in nodes if node in reached and self.replicas[node].alive]:
                    self._unseal(node, epoch)

    def _unseal(self, node: NodeID, epoch: int) -> None:
        if node == PRIMARY:
            # A primary opens its connections first, and a backup must run and stand exactly where the primary
            # stands.
            end = self.replicas[PRIMARY].durable_end
            for backup in [self.replicas[node] for node in NODES[1:]]:
                fits = backup.alive and backup.state is ReplicaState.RUNNING and backup.epoch == epoch
                if not fits or backup.durable_end != end:
                    return
        self.replicas[node].unseal(epoch)


def _status(replica: Replica) -> ReplicaStatus:
    return ReplicaStatus(
        log_stream=LogStreamID(7),
        topic=TopicID(1),
        state=replica.state,
        epoch=Epoch(replica.epoch),
        committed_end=LLSN(replica.committed_end),
        durable_end=LLSN(replica.durable_end),
        low_watermark=GLSN(0),
        high_watermark=GLSN(0),
        path="",
        opened=replica.opened,
    )


class RepairMachine(RuleBasedStateMachine):
    """Any history of appends, crashes, broken connections, partial and repeated steps."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.appended = 0
        self.sent: list[Step] = []

    @precondition(lambda self: self.world.replicas[PRIMARY].state is ReplicaState.RUNNING)
    @rule()
    def append(self) -> None:
        primary = self.world.replicas[PRIMARY]
        if not primary.alive:
            return
        self.appended += 1
        llsn = primary.durable_end + len(primary.taken)
        primary.taken.append((primary.epoch, self.appended))
        for wire in self.world.wires.values():
            wire.append((primary.epoch, llsn, self.appended))

    @rule()
    def primary_writes(self) -> None:
        primary = self.world.replicas[PRIMARY]
        if primary.alive and primary.taken:
            primary.entries.append(primary.taken.pop(0))

    @rule(node=st.sampled_from(NODES[1:]))
    def deliver(self, node: NodeID) -> None:
        if self.world.wires[node] and self.world.replicas[node].alive:
            self.world.deliver(node)

    @rule(node=st.sampled_from(NODES))
    def report(self, node: NodeID) -> None:
        self.world.report(node)

    @rule()
    def order(self) -> None:
        self.world.order()

    @rule(node=st.sampled_from(NODES))
    def learn(self, node: NodeID) -> None:
        self.world.learn(node)

    @rule(node=st.sampled_from(NODES))
    def crash(self, node: NodeID) -> None:
        self.world.crash(node)

    @rule(node=st.sampled_from(NODES), rows_lost=st.integers(0, 3))
    def restart(self, node: NodeID, rows_lost: int) -> None:
        if not self.world.replicas[node].alive:
            self.world.replicas[node].restart(rows_lost)

    @rule()
    def connection_breaks(self) -> None:
        self.world.break_wires()

    @rule()
    def manager_steps(self) -> None:
        step = self.world.decide()
        self.sent.append(step)
        self.world.carry_out(step)

    @rule(reached=st.lists(st.sampled_from(NODES), unique=True))
    def manager_steps_half_way(self, reached: list[NodeID]) -> None:
        step = self.world.decide()
        self.sent.append(step)
        self.world.carry_out(step, tuple(reached))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_old_step_to_a_replica_arrives_again(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(self.sent[-8:]))
        if isinstance(step, SealReplicas | UnsealReplicas):
            self.world.carry_out(step)

    @rule(held=st.booleans())
    def operator(self, held: bool) -> None:
        self.world.held = held

    @rule()
    def everything_heals(self) -> None:
        """With all nodes alive and their commit rows delivered, the rule ends in RUNNING (or stays sealed by
        hand)."""
        world = deepcopy(self.world)
        for replica in [replica for replica in world.replicas.values() if not replica.alive]:
            replica.restart(rows_lost=1)
        for node in NODES[1:]:
            while world.wires[node]:
                world.deliver(node)
        steps: list[Step] = []
        while not steps or not isinstance(steps[-1], Nothing) or not steps[-1].settled:
            assert len(steps) < STEPS_MAX, steps
            for node in NODES:
                world.learn(node)
            steps.append(world.decide())
            world.carry_out(steps[-1])
        assert steps[-1] == (HELD if world.held else RUNS), steps

    @invariant()
    def what_is_ordered_is_on_every_replica(self) -> None:
        ordered = self.world.ordered
        for replica in self.world.replicas.values():
            assert replica.entries[: len(ordered)] == ordered

    @invariant()
    def replicas_are_unsealed_only_when_all_hold_the_same(self) -> None:
        """R-UNSEAL-1: every replica is SEALED in the stream's epoch, or was and was opened by this very
        unseal."""
        step = self.world.decide()
        if isinstance(step, UnsealReplicas):
            for replica in self.world.replicas.values():
                assert replica.alive and replica.epoch == self.world.epoch == step.epoch
                assert replica.state in (ReplicaState.SEALED, ReplicaState.RUNNING)
                assert replica.state is ReplicaState.RUNNING or replica.durable_end == self.world.sealed_end


def test_a_stream_comes_back_from_any_history_and_nothing_ordered_is_lost() -> None:
    """R-SEAL-2, R-UNSEAL-1, laws 2, 6, 7."""
    run_state_machine_as_test(RepairMachine, settings=settings(max_examples=300, stateful_step_count=60))


def _running_world() -> World:
    world = World()
    while (step := world.decide()) != RUNS:
        world.carry_out(step)
    return world


def test_a_new_stream_runs_after_one_seal_and_one_unseal() -> None:
    world = World()
    steps: list[Step] = []
    while not steps or steps[-1] != RUNS:
        steps.append(world.decide())
        world.carry_out(steps[-1])
    assert [type(step) for step in steps] == [
        SealReplicas,
        UnsealReplicas,
        UnsealReplicas,
        UnsealStream,
        Nothing,
    ]
    assert steps[1] == UnsealReplicas(NODES[1:], Epoch(1))
    assert steps[2] == UnsealReplicas((PRIMARY,), Epoch(1))


def test_a_running_stream_is_sealed_when_a_node_is_silent_or_lost_its_replica() -> None:
    world = _running_world()
    world.replicas[NODES[2]].alive = False
    assert world.decide() == SealStream("storage node 3 does not answer")
    lost = {**world.statuses(), NODES[2]: None}
    assert next_step(world.stream(), lost) == SealStream("node 3 has no replica of it")


def test_a_sealed_stream_waits_for_the_silent_node_and_says_so() -> None:
    world = _running_world()
    world.crash(NODES[1])
    for _ in range(3):
        world.carry_out(world.decide())
    assert world.decide() == Nothing("storage node 2 does not answer")
    assert world.replicas[PRIMARY].state is ReplicaState.SEALED


def test_a_frozen_replica_keeps_the_stream_sealed() -> None:
    world = _running_world()
    world.replicas[NODES[1]].state = ReplicaState.FROZEN
    for _ in range(3):
        world.carry_out(world.decide())
    assert world.decide() == Nothing("the replica on node 2 is frozen: a law broke there")


def test_a_replica_that_lacks_commit_rows_is_looked_at_again_soon() -> None:
    world = _running_world()
    for node in NODES:
        world.replicas[node].entries = [(1, 1), (1, 2)]
        world.report(node)
    world.order()
    for node in NODES[:2]:
        world.learn(node)
    world.carry_out(SealStream(""))
    world.carry_out(world.decide())
    assert world.decide() == Nothing("the replica on node 3 has 0 of 2 entries ordered", settled=False)
    world.learn(NODES[2])
    assert world.decide() == SealReplicas((NODES[2],), Epoch(2), LLSN(3))


def test_a_view_older_than_a_replica_is_not_acted_on() -> None:
    world = _running_world()
    world.replicas[NODES[2]].epoch = 9
    step = world.decide()
    assert isinstance(step, Nothing) and not step.settled


def test_a_stream_sealed_by_hand_stays_sealed() -> None:
    world = _running_world()
    world.held = True
    for _ in range(3):
        world.carry_out(world.decide())
    assert world.decide() == HELD
    assert {replica.state for replica in world.replicas.values()} == {ReplicaState.SEALED}
