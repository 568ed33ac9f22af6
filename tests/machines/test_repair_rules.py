"""Repair rules: from any history of faults and half-done steps the stream comes back, and loses nothing ordered."""

from __future__ import annotations

from copy import deepcopy

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.machines.repair_world import EVERYWHERE, NODES, PRIMARY, SPARE, Replica, World
from varlog.manager.committed.inputs import RepairInputs, Statuses
from varlog.manager.committed.rules import next_step
from varlog.manager.repair_steps import (
    RUNNING,
    SEALED_BY_ADMIN,
    CreateReplica,
    Move,
    NoStep,
    RebuildReplica,
    RepairReplica,
    RepairStep,
    ReplaceReplica,
    SealReplicas,
    SealStream,
    SyncReplica,
    UnsealReplicas,
    UnsealStream,
)
from varlog.manager.zombie_rules import Zombie
from varlog.model.cluster import StreamState
from varlog.model.epoch import Epoch
from varlog.model.events import EventKind
from varlog.model.ids import NodeID
from varlog.model.lsn import LLSN
from varlog.model.status import ReplicaState, SyncState, SyncStatus

# More than the longest way back: finish an epoch, seal, seal replicas, make, sync, replace, unseal.
STEPS_MAX = 24


class RepairMachine(RuleBasedStateMachine):
    """Any history of appends, crashes, emptied disks, broken connections, partial and repeated steps."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.appended = 0
        self.sent: list[tuple[RepairStep, tuple[NodeID, ...]]] = []
        self.swept: list[Zombie] = []
        self.manager_works()
        self.everything_flows()

    @rule()
    def append(self) -> None:
        self.appended += 1
        self.world.append(self.appended)

    @rule()
    def primary_writes(self) -> None:
        self.world.write()

    @rule(node=st.sampled_from(EVERYWHERE))
    def deliver(self, node: NodeID) -> None:
        if self.world.wires.get(node):
            self.world.deliver(node)

    @rule(node=st.sampled_from(EVERYWHERE))
    def report(self, node: NodeID) -> None:
        self.world.report(node)

    @rule()
    def order(self) -> None:
        self.world.order()

    @rule()
    def everything_flows(self) -> None:
        """Appends get through: histories without this would hardly order anything."""
        world = self.world
        self.append()
        world.write()
        for node in EVERYWHERE:
            while world.wires.get(node):
                world.deliver(node)
            world.report(node)
        world.order()
        for node in EVERYWHERE:
            world.learn(node)

    @rule(node=st.sampled_from(EVERYWHERE))
    def learn(self, node: NodeID) -> None:
        self.world.learn(node)

    @rule(node=st.sampled_from(EVERYWHERE))
    def crash(self, node: NodeID) -> None:
        self.world.crash(node)

    @rule(node=st.sampled_from(EVERYWHERE))
    def stays_away(self, node: NodeID) -> None:
        if node in self.world.down:
            self.world.given_up[node] = None

    @rule(node=st.sampled_from(EVERYWHERE))
    def loses_its_disk(self, node: NodeID) -> None:
        if node not in self.world.members or self.world.can_spare(node):
            self.world.lose(node)

    @rule(node=st.sampled_from(NODES))
    def freezes(self, node: NodeID) -> None:
        if node in self.world.replicas and node in self.world.members and self.world.can_spare(node):
            self.world.freeze(node)

    @rule(node=st.sampled_from(EVERYWHERE), rows_lost=st.integers(0, 3))
    def restart(self, node: NodeID, rows_lost: int) -> None:
        if node in self.world.down:
            self.world.restart(node, rows_lost)

    @rule()
    def connection_breaks(self) -> None:
        self.world.break_wires()

    @rule()
    def manager_steps(self) -> None:
        self._step(EVERYWHERE, 1_000)

    @rule(reached=st.lists(st.sampled_from(EVERYWHERE), unique=True), copied=st.integers(0, 3))
    def manager_steps_half_way(self, reached: list[NodeID], copied: int) -> None:
        self._step(tuple(reached), copied)

    @rule()
    def manager_works(self) -> None:
        """Until it has nothing to do: histories without this would hardly ever run."""
        for _ in range(STEPS_MAX):
            if isinstance(self.world.decide(), NoStep):
                return
            self._step(EVERYWHERE, 1_000)

    def _step(self, reached: tuple[NodeID, ...], copied: int) -> None:
        step = self.world.decide()
        self.sent.append((step, self.world.members))
        self.world.carry_out(step, reached, copied=copied)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_old_step_arrives_again(self, data: st.DataObject) -> None:
        step, members = data.draw(st.sampled_from(self.sent[-8:]))
        self.world.carry_out(step, members=members)

    @rule()
    def manager_sweeps(self) -> None:
        for zombie in self.world.zombies():
            self.swept.append(zombie)
            self.world.remove(zombie)

    @precondition(lambda self: self.swept)
    @rule(data=st.data())
    def an_old_removal_arrives_again(self, data: st.DataObject) -> None:
        self.world.remove(data.draw(st.sampled_from(self.swept[-4:])))

    @rule(sealed_by_admin=st.booleans())
    def operator_seals(self, sealed_by_admin: bool) -> None:
        self.world.sealed_by_admin = sealed_by_admin

    @rule(old=st.sampled_from(EVERYWHERE))
    def operator_moves(self, old: NodeID) -> None:
        new = next(node for node in EVERYWHERE if node not in self.world.members)
        self.world.move = None if old == new else Move(old, new, len(self.world.members))

    @rule(node=st.sampled_from((None, *EVERYWHERE)))
    def want_primary(self, node: NodeID | None) -> None:
        """Its disk is sound, and that of the primary may be slow."""
        self.world.primary = node

    @rule()
    def everything_heals(self) -> None:
        """With all nodes alive and their commit rows delivered, the rule ends in RUNNING (or stays sealed by admin)."""
        world = deepcopy(self.world)
        world.move = None
        for node in list(world.down):
            world.restart(node, rows_lost=1)
        self._check_heals(world)
        assert len(world.members) == len(NODES)

    @rule(node=st.sampled_from(EVERYWHERE))
    def all_but_one_heal(self, node: NodeID) -> None:
        """A node that never comes back is replaced, if nothing is lost with it."""
        world = deepcopy(self.world)
        world.move = None
        if node not in world.members or not world.can_spare(node):
            return
        world.crash(node)
        for other in [found for found in world.down if found != node]:
            world.restart(other, rows_lost=1)
        world.given_up[node] = None
        self._check_heals(world)
        assert node not in world.members and world.members[0] not in world.down

    def _check_heals(self, world: World) -> None:
        steps: list[RepairStep] = []
        while not steps or not isinstance(steps[-1], NoStep) or not steps[-1].settled:
            assert len(steps) < STEPS_MAX, steps
            for node in list(world.wires):
                while world.wires.get(node):
                    world.deliver(node)
            for node in EVERYWHERE:
                world.learn(node)
            steps.append(world.decide())
            world.carry_out(steps[-1])
        assert steps[-1] == (SEALED_BY_ADMIN if world.sealed_by_admin else RUNNING), steps
        for node in world.members:
            assert world.replicas[node].entries[: len(world.ordered)] == world.ordered
            assert world.replicas[node].state is (
                ReplicaState.SEALED if world.sealed_by_admin else ReplicaState.RUNNING
            )

    @invariant()
    def what_is_ordered_is_never_lost(self) -> None:
        """Some replica of the stream has all of it, and none has committed anything else (law 3)."""
        world, ordered = self.world, self.world.ordered
        members = [world.replicas[node] for node in world.members if node in world.replicas]
        assert any(replica.entries[: len(ordered)] == ordered for replica in members) or not ordered
        for replica in members:
            committed = replica.entries[: replica.committed_end - 1]
            assert committed == ordered[: replica.committed_end - 1]

    @invariant()
    def replicas_are_unsealed_only_when_all_hold_the_same(self) -> None:
        """R-UNSEAL-1: every replica is SEALED in the stream's epoch, or was and was opened by this very unseal."""
        world, step = self.world, self.world.decide()
        if isinstance(step, UnsealReplicas):
            for node in world.members:
                replica = world.replicas[node]
                assert node not in world.down and replica.epoch == world.epoch == step.epoch
                assert replica.state in (ReplicaState.SEALED, ReplicaState.RUNNING)
                assert replica.state is ReplicaState.RUNNING or replica.durable_end == world.sealed_end

    @invariant()
    def no_registered_replica_is_a_zombie(self) -> None:
        """R-REG-4."""
        assert all(zombie.node not in self.world.members for zombie in self.world.zombies())


def test_a_stream_comes_back_from_any_history_and_nothing_ordered_is_lost() -> None:
    """R-UNSEAL-1, R-REG-6, laws 2, 3, 6, 7."""
    run_state_machine_as_test(RepairMachine, settings=settings(max_examples=250, stateful_step_count=60))


def _running_world(entries: int = 0) -> World:
    world = World()
    while (step := world.decide()) != RUNNING:
        world.carry_out(step)
    for what in range(entries):
        world.append(what)
        world.write()
        for node in NODES[1:]:
            world.deliver(node)
        for node in NODES:
            world.report(node)
        world.order()
        for node in NODES:
            world.learn(node)
    assert len(world.ordered) == entries
    return world


def _waits_for(step: RepairStep) -> tuple[EventKind, NodeID]:
    assert isinstance(step, NoStep), step
    return step.kind, step.node


def _steps(world: World, count: int = STEPS_MAX) -> list[type[RepairStep]]:
    """The kinds of the next steps, each carried out, until there is nothing to do."""
    kinds: list[type[RepairStep]] = []
    while not isinstance(step := world.decide(), NoStep) and len(kinds) < count:
        kinds.append(type(step))
        world.carry_out(step)
    return kinds


def test_a_new_stream_runs_after_one_seal_and_one_unseal() -> None:
    world = World()
    assert _steps(world) == [SealReplicas, UnsealReplicas, UnsealReplicas, UnsealStream]
    assert world.decide() == RUNNING
    world = World()
    world.carry_out(world.decide())
    assert world.decide() == UnsealReplicas(NODES[1:], Epoch(1))
    world.carry_out(world.decide())
    assert world.decide() == UnsealReplicas((PRIMARY,), Epoch(1))


def test_a_running_stream_is_sealed_when_a_node_is_silent_or_lost_its_replica() -> None:
    world = _running_world()
    world.down[NODES[2]] = None
    assert world.decide() == SealStream("storage node 3 does not answer")
    lost = {**world.statuses(), NODES[2]: None}
    assert next_step(world.stream(), lost) == SealStream("node 3 has no replica of it")


def test_a_sealed_stream_waits_for_the_silent_node_and_reports_for_how_long() -> None:
    world = _running_world(entries=2)
    world.crash(NODES[1])
    assert _steps(world) == [SealStream, SealReplicas]
    assert _waits_for(world.decide()) == (EventKind.WAITING_FOR_NODE, 2)
    assert world.replicas[PRIMARY].state is ReplicaState.SEALED


def test_a_node_that_stays_away_is_replaced_and_the_primary_leaves_it() -> None:
    """R-REG-6."""
    world = _running_world(entries=2)
    world.crash(PRIMARY)
    world.given_up[PRIMARY] = None
    assert _steps(world, 2) == [SealStream, SealReplicas]
    step = world.decide()
    assert isinstance(step, ReplaceReplica)
    assert (step.old, step.new, step.replicas) == (PRIMARY, SPARE, (NODES[1], NODES[2], SPARE))
    kinds = _steps(world)
    assert kinds == [
        ReplaceReplica,
        SealReplicas,
        SyncReplica,
        SealReplicas,
        UnsealReplicas,
        UnsealReplicas,
        UnsealStream,
    ]
    assert world.replicas[SPARE].entries == world.ordered


def test_a_node_that_stays_away_is_kept_where_nobody_else_is_complete_or_has_room() -> None:
    """The last complete copy is never dropped."""
    world = _running_world(entries=2)
    world.crash(NODES[1])
    world.given_up[NODES[1]] = None
    world.crash(SPARE)
    _steps(world)
    assert "no other node has room" in str(world.decide())
    world.restart(SPARE, 0)
    world.crash(PRIMARY)
    world.crash(NODES[2])
    assert _waits_for(world.decide()) == (EventKind.WAITING_FOR_NODE, 1)
    world.given_up[PRIMARY] = None
    assert "no other replica is complete" in str(world.decide())


def test_living_nodes_come_before_dead_ones() -> None:
    world = _running_world(entries=1)
    for node in NODES[:2]:
        world.crash(node)
    world.given_up[NODES[1]] = None
    _steps(world, 2)
    step = world.decide()
    assert isinstance(step, ReplaceReplica) and step.replicas == (NODES[2], SPARE, PRIMARY)


def test_a_lost_replica_is_recreated_and_filled_from_a_complete_one() -> None:
    world = _running_world(entries=3)
    world.lose(NODES[2])
    world.restart(NODES[2], 0)
    assert _steps(world) == [
        SealStream,
        SealReplicas,
        CreateReplica,
        SealReplicas,
        SyncReplica,
        SealReplicas,
        UnsealReplicas,
        UnsealReplicas,
        UnsealStream,
    ]
    assert world.replicas[NODES[2]].entries == world.ordered


def test_a_replica_of_an_empty_stream_needs_no_source() -> None:
    world = _running_world()
    for node in NODES:
        world.lose(node)
        world.restart(node, 0)
    assert CreateReplica in _steps(world)
    assert world.decide() == RUNNING


def test_a_lost_replica_waits_while_no_other_is_complete() -> None:
    world = _running_world(entries=1)
    for node in NODES:
        world.replicas.pop(node)
    world.carry_out(world.decide())
    step = world.decide()
    assert _waits_for(step) == (EventKind.NO_SOURCE, 1)


def test_nobody_joins_an_epoch_that_was_opened() -> None:
    """Its primary may have taken entries in it: the epoch is finished before a lost replica is rebuilt."""
    world = _running_world(entries=1)
    world.carry_out(SealStream(""))
    _steps(world, 3)  # seals all, opens the backups, opens the primary
    assert world.replicas[PRIMARY].state is ReplicaState.RUNNING
    world.lose(NODES[2])
    world.restart(NODES[2], 0)
    assert _steps(world, 2) == [UnsealStream, SealStream]


def test_a_frozen_replica_is_rebuilt_while_another_is_complete() -> None:
    world = _running_world(entries=1)
    world.freeze(NODES[1])
    assert _steps(world, 2) == [SealStream, SealReplicas]
    assert world.decide() == RebuildReplica(NODES[1], Epoch(2), "it is frozen", LLSN(2))
    _steps(world)
    assert world.decide() == RUNNING
    for node in NODES:
        world.freeze(node)
    world.carry_out(world.decide())
    assert _waits_for(world.decide()) == (EventKind.NO_SOURCE, 1)


def test_a_replica_that_lacks_commit_rows_is_synced_or_looked_at_again_soon() -> None:
    world = _running_world(entries=2)
    world.replicas[NODES[2]].committed_end = 1
    world.carry_out(SealStream(""))
    world.carry_out(world.decide(), reached=(NODES[2],))
    statuses = world.statuses()
    waiting = {**statuses, PRIMARY: None, NODES[1]: None}
    assert _waits_for(next_step(world.stream(), waiting)) == (EventKind.NO_SOURCE, 1)
    world.carry_out(world.decide())
    assert world.decide() == SyncReplica(NODES[2], PRIMARY, Epoch(2))
    world.learn(NODES[2])
    assert world.decide() == SealReplicas((NODES[2],), Epoch(2), LLSN(3))


def _syncing(world: World, sync: SyncStatus) -> RepairStep:
    """The step for a world whose third replica is behind and says this of its sync."""
    import msgspec

    statuses = world.statuses()
    behind = statuses[NODES[2]]
    assert behind is not None
    return next_step(
        world.stream(), {**statuses, NODES[2]: msgspec.structs.replace(behind, sync=sync, trouble="")}
    )


def test_a_sync_is_polled_and_one_that_failed_is_tried_from_another_source() -> None:
    """R-SYNC-1."""
    world = _running_world(entries=10)
    world.replicas[NODES[2]].committed_end = 6
    _steps_until_synced(world)
    going = SyncStatus(SyncState.IN_PROGRESS, PRIMARY, LLSN(6), LLSN(11))
    assert _waits_for(_syncing(world, going)) == (EventKind.SYNCING, 3)
    failed = SyncStatus(SyncState.ERROR, PRIMARY, LLSN(6), LLSN(11), why="cut off")
    assert _syncing(world, failed) == SyncReplica(NODES[2], NODES[1], Epoch(2))
    hopeless = SyncStatus(SyncState.ERROR, PRIMARY, LLSN(6), LLSN(11), why="too far behind", rebuild=True)
    assert _syncing(world, hopeless) == RebuildReplica(NODES[2], Epoch(2), "too far behind", LLSN(11))


def _steps_until_synced(world: World) -> None:
    world.carry_out(SealStream(""))
    world.carry_out(world.decide())
    assert isinstance(world.decide(), SyncReplica)


def test_a_node_that_refuses_for_long_is_replaced_though_it_lives() -> None:
    """Its disk is dead: the replica can be neither sealed nor made there (R-FAIL-1)."""
    world = _running_world(entries=1)
    world.replicas[NODES[1]].stop()
    world.carry_out(SealStream(""))
    world.carry_out(world.decide(), reached=(PRIMARY, NODES[2]))
    refused = RepairInputs((SPARE,), {NODES[1]: 31.0}, 30.0)
    step = next_step(world.stream(), world.statuses(), refused)
    assert isinstance(step, ReplaceReplica) and (step.old, step.new) == (NODES[1], SPARE)
    nowhere = RepairInputs((), {NODES[1]: 31.0}, 30.0)
    assert next_step(world.stream(), world.statuses(), nowhere) == SealReplicas(
        (NODES[1],), Epoch(2), LLSN(2)
    )


def test_a_full_disk_keeps_the_stream_sealed_and_is_reported() -> None:
    import msgspec

    world = _running_world()
    world.carry_out(SealStream(""))
    world.carry_out(world.decide())
    statuses = world.statuses()
    full = statuses[NODES[1]]
    assert full is not None
    step = next_step(world.stream(), {**statuses, NODES[1]: msgspec.structs.replace(full, full=True)})
    assert isinstance(step, NoStep) and (step.kind, step.node) == (EventKind.DISK_FULL, 2)
    assert isinstance(world.decide(), UnsealReplicas)


def test_damage_is_repaired_from_replicas_with_the_same_data_while_the_stream_runs() -> None:
    world = _running_world(entries=3)
    statuses = world.statuses()
    hurt = statuses[NODES[1]]
    assert hurt is not None
    damaged = msgspec.structs.replace(hurt, damage=((LLSN(1), LLSN(2)), (LLSN(3), LLSN(4))))
    assert next_step(world.stream(), {**statuses, NODES[1]: damaged}) == RepairReplica(
        NODES[1], (PRIMARY, NODES[2])
    )
    alone = {NODES[1]: damaged}
    assert isinstance(next_step(world.stream(), alone), SealStream)


def _damaged(statuses: Statuses, node: NodeID) -> Statuses:
    status = statuses[node]
    assert status is not None
    return {**statuses, node: msgspec.structs.replace(status, damage=((LLSN(1), LLSN(2)),))}


def test_a_node_is_not_replaced_while_the_others_are_damaged() -> None:
    """Its data may be the only intact copy: the others are repaired first, from each other or from former replicas."""
    world = _running_world(entries=3)
    left = world.statuses()[NODES[2]]
    assert left is not None
    world.crash(PRIMARY)
    world.given_up[PRIMARY] = None
    assert _steps(world, 2) == [SealStream, SealReplicas]
    gone = RepairInputs((SPARE,), {PRIMARY: 99.0})
    statuses = world.statuses()
    assert isinstance(next_step(world.stream(), statuses, gone), ReplaceReplica)
    both = _damaged(_damaged(statuses, NODES[1]), NODES[2])
    assert next_step(world.stream(), both, gone) == RepairReplica(NODES[1], (NODES[2],))
    one = {NODES[1]: both[NODES[1]], NODES[2]: None}
    assert not isinstance(next_step(world.stream(), one, gone), ReplaceReplica | CreateReplica)
    former = RepairInputs((SPARE,), {PRIMARY: 99.0}, former={SPARE: left})
    assert next_step(world.stream(), one, former) == RepairReplica(NODES[1], (SPARE,))


def test_a_replica_whose_damage_prevents_a_seal_is_repaired_first() -> None:
    """Law 6: damage may hide where its tail is to be cut. One that has not been asked yet is asked first."""
    world = _running_world(entries=3)
    world.crash(PRIMARY)
    assert _steps(world, 1) == [SealStream]
    hurt = _damaged(world.statuses(), NODES[1])
    assert isinstance(next_step(world.stream(), hurt), SealReplicas)
    refused = RepairInputs(unusable_s={NODES[1]: 0.1})
    assert isinstance(next_step(world.stream(), hurt, refused), SealReplicas), "the other one is not sealed"
    world.carry_out(SealReplicas((NODES[2],), world.stream().epoch, world.stream().sealed_end))
    rest = _damaged(world.statuses(), NODES[1])
    assert next_step(world.stream(), rest, refused) == RepairReplica(NODES[1], (NODES[2],))
    assert isinstance(next_step(world.stream(), world.statuses(), refused), SealReplicas)


def test_a_moved_replica_leaves_when_the_others_are_complete() -> None:
    world = _running_world(entries=2)
    world.move = Move(PRIMARY, SPARE)
    assert _steps(world, 3) == [SealStream, SealReplicas, ReplaceReplica]
    assert world.members == (NODES[1], NODES[2], SPARE)
    _steps(world)
    assert world.decide() == RUNNING


def test_a_move_to_a_node_that_came_in_for_another_one_meanwhile_is_given_up() -> None:
    """Carried out, it would leave the stream with a replica too few."""
    world = _running_world(entries=2)
    world.move = Move(PRIMARY, NODES[2], replicas=3)
    assert world.decide() == RUNNING


def test_the_only_replica_moves_by_being_joined_first() -> None:
    world = World(members=(PRIMARY,), replicas={PRIMARY: Replica()})
    _steps(world)
    world.append(1)
    world.write()
    world.report(PRIMARY)
    world.order()
    world.learn(PRIMARY)
    world.move = Move(PRIMARY, SPARE)
    _steps(world, 3)
    assert world.members == (PRIMARY, SPARE)
    while world.members != (SPARE,):
        step = world.decide()
        assert not isinstance(step, NoStep), step
        world.carry_out(step)
        if isinstance(step, ReplaceReplica):
            world.members = step.replicas
    assert world.replicas[SPARE].entries == world.ordered == [(1, 1)]


def test_a_view_older_than_a_replica_is_not_acted_on() -> None:
    world = _running_world()
    world.replicas[NODES[2]].epoch = 9
    step = world.decide()
    assert isinstance(step, NoStep) and not step.settled


def test_a_stream_sealed_by_hand_stays_sealed() -> None:
    world = _running_world()
    world.sealed_by_admin = True
    _steps(world)
    assert world.decide() == SEALED_BY_ADMIN
    assert {replica.state for replica in world.replicas.values()} == {ReplicaState.SEALED}


def test_what_left_a_stream_is_a_zombie_only_once_the_stream_runs_without_it() -> None:
    """R-REG-4: while it does not, the former replica may be needed."""
    world = _running_world(entries=1)
    world.crash(NODES[2])
    world.given_up[NODES[2]] = None
    _steps(world, 3)
    world.restart(NODES[2], 0)
    assert NODES[2] not in world.members and world.state is StreamState.SEALED
    assert world.zombies() == []
    _steps(world)
    assert [zombie.node for zombie in world.zombies()] == [NODES[2]]


def test_a_backup_that_is_not_open_ends_the_epoch_of_an_open_primary() -> None:
    """It was rebuilt since the primary opened its connections: what the primary accepted never reached it."""
    world = _running_world(entries=1)
    world.carry_out(SealStream(""))
    _steps(world, 3)
    world.replicas[NODES[2]] = Replica(
        ReplicaState.SEALED, world.epoch, world.sealed_end, False, False, list(world.ordered), [], 2
    )
    assert isinstance(world.decide(), UnsealStream)
