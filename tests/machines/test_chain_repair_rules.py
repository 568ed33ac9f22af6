"""The manager's rules for sequenced topics (manager/sequenced/rules.py): what is served from is never made or emptied, and every
chain that can be full becomes full."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as but

from hypothesis import given
from hypothesis import strategies as st

from varlog.manager.repair_steps import (
    RUNNING,
    BeginTopic,
    CreateReplica,
    Move,
    NoStep,
    RebuildReplica,
    Reconfigure,
    RepairStep,
    SyncReplica,
)
from varlog.manager.sequenced.inputs import (
    AHEAD_S,
    UNHEARD_ALONE_S,
    UNHEARD_S,
    UNLEASED_S,
    TopicCondition,
    TopicRepairInputs,
)
from varlog.manager.sequenced.repair import _unreported
from varlog.manager.sequenced.rules import Plan, plan
from varlog.model.cluster import Grouping, LogStream, Ordering, Topic, changed
from varlog.model.epoch import Epoch
from varlog.model.events import EventKind
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID, Stripe
from varlog.model.status import SyncState, SyncStatus, UnitStatus
from varlog.reconfiguration.rules import SealAnswer, first_projection, next_projection

TOPIC = Topic(TopicID(1), "t", Ordering.SEQUENCED)
NODES = tuple(NodeID(number) for number in range(1, 6))
A, B, C, D, E = NODES
LS = LogStreamID(1)
SEQUENCER, OTHER = SequencerID("sq:1", 1), SequencerID("sq:2", 1)
ALONE = TopicRepairInputs(sequencers=(SEQUENCER,))


def _unit(node: NodeID, epoch: int = 3, newest: int = 9, log_stream: LogStreamID = LS) -> UnitStatus:
    end = LLSN(newest + 1)
    return UnitStatus(log_stream, TOPIC.topic, Epoch(epoch), LLSN(newest), end, LLSN(1), f"/{node}")


def _sync(state: SyncState, source: NodeID, rebuild: bool = False) -> SyncStatus:
    return SyncStatus(state, source, LLSN(5), LLSN(10), why="why" if rebuild else "", rebuild=rebuild)


def _case(
    nodes: tuple[NodeID, ...],
    out_of_sync: tuple[NodeID, ...] = (),
    *,
    units: dict[NodeID, UnitStatus] | None = None,
    alive: tuple[NodeID, ...] = NODES,
    inputs: TopicRepairInputs = ALONE,
) -> TopicCondition:
    """A topic with one stream, in epoch 3; every member has a unit unless `units` says otherwise."""
    chain = Chain(LS, nodes, out_of_sync)
    projection = Projection(
        TOPIC.topic, Epoch(3), GLSN(10), (Range(GLSN(1), (Stripe(LS),)),), (chain,), SEQUENCER
    )
    found = {node: _unit(node) for node in chain.members if node in alive} if units is None else units
    stream = LogStream(LS, TOPIC.topic, chain.members, epoch=Epoch(3))
    return TopicCondition(TOPIC, projection, (stream,), alive, {LS: found}, inputs)


def _kind(step: RepairStep) -> EventKind | None:
    return step.kind if isinstance(step, NoStep) else None


def _wish(decided: Plan) -> tuple[object, object, object]:
    assert isinstance(decided.change, Reconfigure), decided
    wish = decided.change.wish
    return dict(wish.without), dict(wish.join), dict(wish.leave)


# --- Case by case -----------------------------------------------------------------------------------------------------


def test_a_whole_chain_needs_nothing() -> None:
    decided = plan(_case((A, B, C)))
    assert decided.change is None and decided.steps[LS] == RUNNING


def test_a_topic_begins_when_its_streams_and_a_sequencer_exist() -> None:
    """R-SEQ-12."""
    case = but(_case((A, B)), projection=None)
    assert plan(case).change == BeginTopic({LS: (A, B)})
    assert plan(but(case, inputs=but(ALONE, making=True))).change is None
    waiting = plan(but(case, inputs=but(ALONE, sequencers=())))
    assert waiting.change is None and _kind(waiting.steps[LS]) is EventKind.NO_SEQUENCER


def test_a_dead_or_unusable_member_is_left_out_while_another_can_serve() -> None:
    """R-SEQ-10: the next projection is without the failed node."""
    assert _wish(plan(_case((A, B, C), alive=(A, C)))) == ({LS: (B,)}, {}, {})
    damaged = changed(_unit(A), damage=((LLSN(1), LLSN(2)),))
    assert _wish(plan(_case((A, B), units={A: damaged, B: _unit(B)}))) == ({LS: (A,)}, {}, {})
    assert plan(_case((A,), units={A: damaged})).change is None
    full = changed(_unit(B), full=True, trouble="no room")
    assert _wish(plan(_case((A, B), units={A: _unit(A), B: full}))) == ({LS: (B,)}, {}, {})
    unleased = but(ALONE, unleased_s={A: UNLEASED_S})
    assert _wish(plan(_case((A, B), inputs=unleased))) == ({LS: (A,)}, {}, {})
    assert plan(_case((A, B), inputs=but(ALONE, unleased_s={A: UNLEASED_S / 2}))).change is None


def test_a_member_that_was_restored_is_compared_with_one_that_was_not() -> None:
    """Its disk may have gone back in time. The tail is asked before others."""
    restored = {node: changed(_unit(node), unverified=True) for node in (A, B, C)}
    decided = plan(_case((A, B, C), units={A: restored[A], B: _unit(B), C: restored[C]}))
    assert decided.change is None and decided.steps[LS] == SyncReplica(A, B, Epoch(3), backfill=True)
    assert plan(_case((A,), units={A: restored[A]})).steps[LS] == RUNNING
    wrong = changed(restored[A], sync=_sync(SyncState.ERROR, B, rebuild=True))
    assert _wish(plan(_case((A, B), units={A: wrong, B: _unit(B)}))) == ({LS: (A,)}, {}, {})


def test_after_a_restart_of_all_every_member_is_waited_for_before_they_are_compared() -> None:
    restored = {node: changed(_unit(node), unverified=True) for node in (A, B, C)}
    there = plan(_case((A, B, C), units=restored))
    assert there.change is not None and there.steps[LS] == there.change and _wish(there) == ({}, {}, {})

    def silent(since_s: float, *gone: NodeID) -> Plan:
        units = {node: unit for node, unit in restored.items() if node not in gone}
        inputs = but(ALONE, unreported_s={(LS, node): since_s for node in gone})
        return plan(_case((A, B, C), units=units, alive=tuple(units), inputs=inputs))

    waiting = silent(UNHEARD_S / 2, C)
    assert waiting.change is None and _kind(waiting.steps[LS]) is EventKind.VERIFYING
    believed = silent(UNHEARD_S, C).change
    assert isinstance(believed, Reconfigure) and believed.wish.lost == {LS: (C,)}
    assert silent(UNHEARD_S, B, C).change is None
    alone = silent(UNHEARD_ALONE_S, B, C).change
    assert isinstance(alone, Reconfigure) and alone.wish.lost == {LS: (B, C)} and "UNVERIFIED" in alone.reason


def test_a_unit_that_was_never_sealed_is_waited_for_as_one_that_is_silent() -> None:
    """Its disk went back to before the topic began, and it refuses every seal. Before, all others were compared with it over
    and over without end, and the topic stalled."""
    restored = {node: changed(_unit(node), unverified=True) for node in (A, B)}
    blank = changed(_unit(C, epoch=0, newest=0), unverified=True)
    case = _case((A, B, C), units={**restored, C: blank})
    assert list(_unreported(case)) == [(LS, C)]
    waiting = plan(but(case, inputs=but(ALONE, unreported_s={(LS, C): UNHEARD_S / 2})))
    assert waiting.change is None and _kind(waiting.steps[LS]) is EventKind.VERIFYING
    believed = plan(but(case, inputs=but(ALONE, unreported_s={(LS, C): UNHEARD_S}))).change
    assert isinstance(believed, Reconfigure) and believed.wish.lost == {LS: (C,)}


def test_a_member_that_was_never_sealed_is_left_out() -> None:
    """Its disk went back to before its log stream began. In a log stream without appends no client meets it, so that it stayed a
    member in epoch 0 and the chain counted as full with one copy (sequenced seed 1129)."""
    blank = _unit(B, epoch=0, newest=0)
    assert _wish(plan(_case((A, B), units={A: _unit(A), B: blank}))) == ({LS: (B,)}, {}, {})
    poor = changed(_unit(A), trouble="its disk failed")
    assert _wish(plan(_case((A, B), units={A: poor, B: blank}))) == ({LS: (B,)}, {}, {})
    nobody = plan(_case((A, B), units={A: _unit(A, epoch=0, newest=0), B: blank}))
    assert nobody.change is None and _kind(nobody.steps[LS]) is EventKind.UNUSABLE


def test_no_member_is_compared_with_one_that_was_never_sealed() -> None:
    """An empty unit proves nothing: a drive that lost acknowledged entries would count as whole."""
    restored = changed(_unit(A), unverified=True)
    case = _case((A, B), units={A: restored, B: _unit(B, epoch=0, newest=0)})
    waiting = plan(but(case, inputs=but(ALONE, unreported_s={(LS, B): UNHEARD_S})))
    assert waiting.change is None and _kind(waiting.steps[LS]) is EventKind.VERIFYING


def test_nothing_is_filled_from_a_chain_of_which_nobody_is_known_to_be_whole() -> None:
    """A node that is away and holds more than a drive that went back in time would be made again from it."""
    restored = {node: changed(_unit(node), unverified=True) for node in (A, B)}
    ahead = changed(_unit(C), sync=_sync(SyncState.ERROR, B, rebuild=True))
    step = plan(_case((A, B), (C,), units={**restored, C: ahead})).steps[LS]
    assert isinstance(step, Reconfigure)


def test_a_node_without_a_lease_whose_unit_is_damaged_is_repaired() -> None:
    """It has no sound unit, so it asks for no lease: waiting for one would last forever."""
    inputs = but(ALONE, unleased_s={B: 0.5}, stuck=((LS, B),))
    damaged = changed(_unit(B, epoch=0), trouble="a file is damaged")
    step = plan(_case((A,), (B,), units={A: _unit(A), B: damaged}, inputs=inputs)).steps[LS]
    assert isinstance(step, RebuildReplica) and step.node == B


def test_a_dead_node_is_left_out_even_for_a_poor_one() -> None:
    poor = changed(_unit(A), trouble="its disk failed")
    assert _wish(plan(_case((A, B), units={A: poor}, alive=(A,)))) == ({LS: (B,)}, {}, {})


def test_nothing_is_sealed_while_nobody_could_answer_for_a_stream() -> None:
    decided = plan(_case((A, B), (C,), alive=(C, D)))
    assert decided.change is None and _kind(decided.steps[LS]) is EventKind.WAITING_FOR_NODE


def test_another_sequencer_is_taken_only_if_there_is_one() -> None:
    assert _wish(plan(_case((A,), inputs=but(ALONE, sequencers=(OTHER,))))) == ({}, {}, {})
    assert plan(_case((A,), inputs=but(ALONE, sequencers=()))).change is None


def test_an_epoch_that_another_process_began_is_completed_after_a_while() -> None:
    ahead = {A: _unit(A, epoch=4), B: _unit(B)}
    assert plan(_case((A, B), units=ahead)).change is None
    assert _wish(plan(_case((A, B), units=ahead, inputs=but(ALONE, ahead_s=AHEAD_S)))) == ({}, {}, {})


def test_an_epoch_that_only_a_newcomer_knows_is_completed_too() -> None:
    """A manager that died may have sealed no member yet. The newcomer waited for that epoch forever."""
    moving = but(ALONE, moves={LS: Move(A, D)}, ahead_s=AHEAD_S)
    ahead = {A: _unit(A), B: _unit(B), D: _unit(D, epoch=4)}
    assert _wish(plan(_case((A, B), units=ahead, inputs=moving))) == ({}, {}, {})


def test_a_member_that_is_away_is_created_rebuilt_filled_and_joined_in_turn() -> None:
    """R-SEQ-14."""

    def step(unit: UnitStatus | None, inputs: TopicRepairInputs = ALONE) -> Plan:
        units = {B: _unit(B), C: _unit(C)} | ({A: unit} if unit is not None else {})
        return plan(_case((B, C), (A,), units=units, inputs=inputs))

    assert step(None).steps[LS] == CreateReplica(A)
    assert step(_unit(A)).steps[LS] == SyncReplica(A, C, Epoch(3))
    filling = step(changed(_unit(A), sync=_sync(SyncState.IN_PROGRESS, C)))
    assert isinstance(filling.steps[LS], NoStep) and filling.change is None
    other = step(changed(_unit(A), sync=_sync(SyncState.ERROR, C, rebuild=True)))
    assert other.steps[LS] == RebuildReplica(A, Epoch(3), "why")
    assert step(changed(_unit(A), sync=_sync(SyncState.COMPLETE, B))).steps[LS] == SyncReplica(A, C, Epoch(3))
    filled = changed(_unit(A), sync=_sync(SyncState.COMPLETE, C))
    assert _wish(step(filled)) == ({}, {LS: (A,)}, {})
    assert step(filled, but(ALONE, resting=((LS, A),))).change is None
    far = changed(_unit(A, newest=0), sync=_sync(SyncState.COMPLETE, C))
    behind = plan(_case((B,), (A,), units={A: far, B: _unit(B, newest=1_000_000)}))
    assert behind.steps[LS] == SyncReplica(A, B, Epoch(3))


def test_a_disk_that_failed_for_a_moment_is_tried_before_the_unit_is_emptied() -> None:
    poor = changed(_unit(A), trouble="it cannot be opened")
    units = {A: poor, B: _unit(B)}
    assert plan(_case((B,), (A,), units=units)).steps[LS] == SyncReplica(A, B, Epoch(3))
    stuck = but(ALONE, stuck=((LS, A),))
    assert isinstance(plan(_case((B,), (A,), units=units, inputs=stuck)).steps[LS], RebuildReplica)


def test_a_unit_is_not_emptied_while_no_node_of_the_chain_is_sound() -> None:
    damaged = changed(_unit(B), damage=((LLSN(1), LLSN(2)),))
    other = changed(_unit(A), sync=_sync(SyncState.ERROR, B, rebuild=True))
    decided = plan(_case((B,), (A,), units={A: other, B: damaged}))
    assert isinstance(decided.steps[LS], NoStep) and decided.change is None


def test_one_that_stays_away_is_replaced_by_one_that_is_filled_first() -> None:
    """R-REG-6."""
    inputs = but(ALONE, unreachable_s={A: 31.0}, spares=(D, E))
    members = {B: _unit(B), C: _unit(C)}
    alive = (B, C, D, E)
    early = plan(_case((B, C), (A,), units=members, alive=alive, inputs=but(inputs, unreachable_s={A: 29.0})))
    assert isinstance(early.steps[LS], NoStep) and not early.wanted
    made = plan(_case((B, C), (A,), units=members, alive=alive, inputs=inputs))
    assert made.steps[LS] == CreateReplica(D) and made.wanted == {(LS, D)}
    begun = plan(_case((B, C), (A,), units=members | {E: _unit(E, 0, 0)}, alive=alive, inputs=inputs))
    assert begun.steps[LS] == SyncReplica(E, C, Epoch(3)) and begun.wanted == {(LS, E)}
    filled = changed(_unit(D, 0), sync=_sync(SyncState.COMPLETE, C))
    done = plan(_case((B, C), (A,), units=members | {D: filled}, alive=alive, inputs=inputs))
    assert _wish(done) == ({}, {LS: (D,)}, {LS: (A,)})


def test_an_operators_move_is_carried_out_and_ends_when_the_new_one_is_a_member() -> None:
    inputs = but(ALONE, moves={LS: Move(A, D)})
    members = {A: _unit(A), B: _unit(B)}
    assert plan(_case((A, B), units=members, inputs=inputs)).steps[LS] == CreateReplica(D)
    filled = members | {D: changed(_unit(D), sync=_sync(SyncState.COMPLETE, B))}
    assert _wish(plan(_case((A, B), units=filled, inputs=inputs))) == ({}, {LS: (D,)}, {LS: (A,)})
    assert plan(_case((A, B, D), inputs=inputs)).change is None


def test_a_replacement_node_takes_the_place_of_the_old_one_in_all_streams_of_its_group() -> None:
    """R-SEQ-3, figure a."""
    second = LogStreamID(2)
    one = _case((B, C), (A,), units={B: _unit(B), C: _unit(C)}, alive=(B, C, D, E))
    assert one.projection is not None
    projection = changed(
        one.projection,
        ranges=(Range(GLSN(1), (Stripe(LS), Stripe(second))),),
        chains=(Chain(LS, (B, C), (A,)), Chain(second, (C, B), (A,))),
    )
    begun = {node: _unit(node, log_stream=second) for node in (B, C)} | {E: _unit(E, 0, 0, second)}
    case = but(
        one,
        projection=projection,
        streams=(*one.streams, LogStream(second, TOPIC.topic, (C, B, A))),
        units={**one.units, second: begun},
        inputs=but(ALONE, unreachable_s={A: 31.0}, spares=(D, E)),
    )
    assert plan(case).wanted == {(LS, D), (second, E)}
    grouped = but(case, topic=changed(TOPIC, grouping=Grouping.NODE))
    assert plan(grouped).wanted == {(LS, E), (second, E)}


# --- Any state, and the way back --------------------------------------------------------------------------------------


@dataclass
class World:
    """A sequenced topic in which every step is carried out as decided. `data`: what each unit holds, by name."""

    projection: Projection
    units: dict[tuple[LogStreamID, NodeID], UnitStatus]
    alive: set[NodeID]
    lost: set[NodeID] = field(default_factory=set)
    spares: tuple[NodeID, ...] = ()

    def case(self) -> TopicCondition:
        streams = tuple(
            LogStream(chain.log_stream, TOPIC.topic, chain.members) for chain in self.projection.chains
        )
        units = {
            stream.log_stream: {
                node: unit
                for (at, node), unit in self.units.items()
                if at == stream.log_stream and node in self.alive
            }
            for stream in streams
        }
        spares = tuple(node for node in self.spares if node in self.alive)
        inputs = TopicRepairInputs(
            sequencers=(SEQUENCER,),
            spares=spares,
            unreachable_s=dict.fromkeys(self.lost, 99.0),
            ahead_s=AHEAD_S,
        )
        return TopicCondition(TOPIC, self.projection, streams, frozenset(self.alive), units, inputs)

    def take(self, decided: Plan) -> None:
        for log_stream, step in decided.steps.items():
            chain = self.projection.chain(log_stream)
            if isinstance(step, CreateReplica | RebuildReplica | SyncReplica):
                assert step.node not in chain.nodes, "what is served from is left alone"
                assert step.node in self.alive
            match step:
                case CreateReplica(node):
                    assert (log_stream, node) not in self.units
                    self.units[log_stream, node] = _unit(node, 0, 0, log_stream)
                case RebuildReplica(node):
                    assert any(self._sound(log_stream, other) for other in chain.nodes)
                    self.units[log_stream, node] = _unit(node, 0, 0, log_stream)
                case SyncReplica(node, source):
                    assert source == chain.tail
                    self._fill(log_stream, node, source)
                case _:
                    pass
        if isinstance(decided.change, Reconfigure):
            self._reconfigure(decided.change)

    def _sound(self, log_stream: LogStreamID, node: NodeID) -> bool:
        unit = self.units.get((log_stream, node))
        return node in self.alive and unit is not None and not unit.damage and not unit.trouble

    def _fill(self, log_stream: LogStreamID, node: NodeID, source: NodeID) -> None:
        unit, other = self.units[log_stream, node], self.units[log_stream, source]
        if unit.newest > other.newest:
            sync = _sync(SyncState.ERROR, source, rebuild=True)
            self.units[log_stream, node] = changed(unit, sync=sync, trouble="")
        else:
            sync = _sync(SyncState.COMPLETE, source)
            self.units[log_stream, node] = changed(unit, newest=other.newest, sync=sync, trouble="")

    def _reconfigure(self, change: Reconfigure) -> None:
        now, epoch = self.projection, Epoch(self.projection.epoch + 1)
        sealed: dict[LogStreamID, dict[NodeID, SealAnswer]] = {}
        for chain in now.chains:
            answers = sealed[chain.log_stream] = {}
            for node in (*chain.nodes, *change.wish.join.get(chain.log_stream, ())):
                unit = self.units.get((chain.log_stream, node))
                if unit is not None and node in self.alive:
                    self.units[chain.log_stream, node] = changed(unit, epoch=max(epoch, unit.epoch))
                    answers[node] = SealAnswer(unit.newest, unit.trouble)
        self.projection = next_projection(now, sealed, change.wish, SEQUENCER)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    replicas = draw(st.integers(1, 3))
    chains = {LogStreamID(number): NODES[:replicas] for number in range(1, draw(st.integers(1, 2)) + 1)}
    sealed = {at: dict.fromkeys(nodes, SealAnswer(LLSN(0))) for at, nodes in chains.items()}
    projection = first_projection(TOPIC.topic, GLSN(1), 4, chains, sealed, SEQUENCER)
    serving, away = {}, {}
    units = {}
    for log_stream, nodes in chains.items():
        serving[log_stream] = nodes[: draw(st.integers(1, replicas))]
        away[log_stream] = nodes[len(serving[log_stream]) :]
        for node in nodes:
            unit = _unit(node, draw(st.integers(1, 3)), draw(st.integers(0, 12)), log_stream)
            if node in serving[log_stream]:
                unit = changed(unit, newest=LLSN(9), epoch=Epoch(draw(st.integers(2, 3))))
            if draw(st.booleans()):
                unit = changed(unit, damage=((LLSN(1), LLSN(2)),), trouble="damaged")
            if node in serving[log_stream] or draw(st.booleans()):
                units[log_stream, node] = unit
    built = tuple(Chain(at, serving[at], away[at]) for at in chains)
    projection = changed(projection, epoch=Epoch(2), begin=GLSN(40), chains=built)
    dead = draw(st.frozensets(st.sampled_from(NODES), max_size=2))
    lost = {node for node in dead if draw(st.booleans())}
    return World(projection, units, set(NODES) - dead, lost, NODES)


@given(worlds())
def test_from_anywhere_every_chain_becomes_as_full_as_it_can(world: World) -> None:
    """R-SEQ-14: each node that can be filled is a member in the end."""
    members = {chain.log_stream: len(chain.members) for chain in world.projection.chains}
    sound = {
        chain.log_stream: any(world._sound(chain.log_stream, node) for node in chain.nodes)
        for chain in world.projection.chains
    }
    for _ in range(40):
        world.take(plan(world.case()))
    decided = plan(world.case())
    settled = world.projection.epoch
    if not all(sound.values()):
        return  # the only copy of a stream is damaged or away: only a returning node can help
    for chain in world.projection.chains:
        assert len(chain.members) == members[chain.log_stream]
        waits = [node for node in chain.out_of_sync if node in world.alive]
        assert not waits, (chain, decided.steps)
        assert all(world._sound(chain.log_stream, node) for node in chain.nodes), chain
        assert not any(node in world.lost for node in chain.members), "a node that stays away is replaced"
        newest = {world.units[chain.log_stream, node].newest for node in chain.nodes}
        assert newest == {9}, (chain, newest)
    world.take(decided)
    assert world.projection.epoch == settled, "a cluster that is at rest is left alone"
