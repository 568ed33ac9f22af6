"""PURE. plan: the next repair steps of a sequenced topic and its log streams.

The repair of a member: one that cannot serve is left out by the next projection (Reconfigure). Its unit is created or rebuilt if
necessary, filled from the chain's tail while the topic keeps running, and joins behind the tail by a further projection (R-SEQ-10,
R-SEQ-14). A member that stays away is replaced the same way: the new one is filled first, and joins as the old one leaves.

A unit is created or emptied only where the projection does not serve from it, and only in the projection's epoch: a unit that joins
meanwhile was sealed with a newer epoch, and refuses (law 7). Every decision starts from a fresh snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

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
from varlog.manager.sequenced.inputs import AHEAD_S, JOIN_LAG_ENTRIES, TopicCondition
from varlog.model.cluster import Grouping, LogStream
from varlog.model.events import EventKind
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.projection import Chain, Projection
from varlog.model.status import SyncState
from varlog.reconfiguration.rules import Wish

NO_SEQUENCER = NoStep(
    EventKind.NO_SEQUENCER, "no sequencer may assign positions now: start one with `vseq start`"
)
CREATING_TOPIC = NoStep(EventKind.CREATING, "the topic is being created", settled=False)
FILLED = NoStep(EventKind.JOINING, "a unit is filled, and joins soon", settled=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """`change`: the step of the topic as a whole; `steps`: of each of its streams. `wanted`: units on nodes that are to become
    members."""

    change: BeginTopic | Reconfigure | None
    steps: Mapping[LogStreamID, RepairStep]
    wanted: frozenset[tuple[LogStreamID, NodeID]] = frozenset()


@dataclass(slots=True)
class _Newcomers:
    """Which units are ready to join which chain, and which members leave for them."""

    join: dict[LogStreamID, tuple[NodeID, ...]] = field(default_factory=dict)
    leave: dict[LogStreamID, tuple[NodeID, ...]] = field(default_factory=dict)
    wanted: set[tuple[LogStreamID, NodeID]] = field(default_factory=set)
    nearly: bool = False


def plan(case: TopicCondition) -> Plan:
    """The next steps for a sequenced topic."""
    projection = case.projection
    if projection is None:
        return _beginning(case)
    steps: dict[LogStreamID, RepairStep] = {}
    came = _Newcomers()
    preferred = _preferred(case)
    for chain in projection.chains:
        steps[chain.log_stream] = _fill_chain(case, projection, chain, came, preferred)
    change = _change(case, projection, came)
    if change is not None:
        concerned = _concerned(case, change)
        steps.update(dict.fromkeys(concerned, change))
    made = NoStep(EventKind.CREATING, "the log stream is being created", settled=False)
    steps.update(
        {new.log_stream: _remade(case, new) or made for new in case.streams if new.log_stream not in steps}
    )
    return Plan(change, steps, frozenset(came.wanted))


# --- The topic's beginning ------------------------------------------------------------------------------------------


def _beginning(case: TopicCondition) -> Plan:
    if case.inputs.making or not case.streams:
        return Plan(None, _all(case, CREATING_TOPIC))
    if not case.inputs.sequencers:
        return Plan(None, _all(case, NO_SEQUENCER))
    if remade := {new.log_stream: step for new in case.streams if (step := _remade(case, new)) is not None}:
        return Plan(None, {**_all(case, CREATING_TOPIC), **remade})
    begin = BeginTopic({stream.log_stream: stream.replicas for stream in case.streams})
    return Plan(begin, _all(case, begin))


def _remade(case: TopicCondition, stream: LogStream) -> CreateReplica | None:
    """A new log stream that has no unit anywhere: it was registered so late that its units had been removed as zombies (R-REG-4).
    They were empty, and so are the new ones."""
    if case.inputs.making or any(case.unit(stream.log_stream, node) is not None for node in stream.replicas):
        return None
    if not all(node in case.nodes for node in stream.replicas):
        return None  # one that does not answer may have its unit
    return CreateReplica(stream.replicas[0])


def _all(case: TopicCondition, step: RepairStep) -> dict[LogStreamID, RepairStep]:
    return {stream.log_stream: step for stream in case.streams}


# --- The next projection --------------------------------------------------------------------------------------------


def _change(case: TopicCondition, projection: Projection, came: _Newcomers) -> Reconfigure | None:
    """One projection for everything that is due. Not while a log stream has no member that answers: it could not be sealed."""
    if any(not _answering(case, chain) or case.awaited(chain) for chain in projection.chains):
        return None
    without = {chain.log_stream: bad for chain in projection.chains if (bad := _useless(case, chain))}
    streams = _new_streams(case, projection)
    reasons: list[str] = []
    for chain in filter(case.must_compare, projection.chains):
        what = f"nodes {case.unverified(chain)} of log stream {chain.log_stream} were restarted"
        gone = case.lost(chain)
        reasons.append(
            f"UNVERIFIED: {what}, and are trusted without {list(gone)}"
            if gone
            else f"{what}, and are compared"
        )
    reasons += [case.defect(at, nodes[0]) for at, nodes in without.items()]
    if (lost := _lost_sequencer(case, projection)) is not None:
        reasons.append(lost)
    if streams:
        reasons.append(f"log streams {sorted(streams)} are new")
    if any(case.is_ahead(chain) for chain in projection.chains) and case.inputs.ahead_s >= AHEAD_S:
        reasons.append(f"epoch {projection.epoch + 1} was started, and never proposed")
    # Units that are almost filled are waited for: each projection makes the topic wait for a moment.
    if came.join and (reasons or not came.nearly):
        reasons.extend(f"node {nodes[0]} joins log stream {at}" for at, nodes in came.join.items())
    if not reasons:
        return None
    unreported = {chain.log_stream: gone for chain in projection.chains if (gone := case.lost(chain))}
    wish = Wish(without=without, join=came.join, leave=came.leave, streams=streams, lost=unreported)
    return Reconfigure(wish, reasons[0] if len(reasons) == 1 else f"{reasons[0]}; {len(reasons) - 1} more")


def _answering(case: TopicCondition, chain: Chain) -> bool:
    return any(case.unit(chain.log_stream, node) is not None for node in chain.nodes)


def _useless(case: TopicCondition, chain: Chain) -> tuple[NodeID, ...]:
    """The members that cannot serve, if another one can."""
    if not case.healthy(chain):
        # A node that answers no seal is left out even if the others are poor: nothing can be written while it is in the chain.
        silent = tuple(node for node in chain.nodes if not case.is_sealable(chain.log_stream, node))
        return silent if len(silent) < len(chain.nodes) else ()
    return tuple(node for node in chain.nodes if case.defect(chain.log_stream, node))


def _lost_sequencer(case: TopicCondition, projection: Projection) -> str | None:
    present, there = projection.sequencer, case.inputs.sequencers
    if present in there or not there:
        return None
    return "it has no sequencer" if present is None else f"the sequencer at {present.address} does not answer"


def _new_streams(case: TopicCondition, projection: Projection) -> dict[LogStreamID, tuple[NodeID, ...]]:
    """Registered, and in no projection yet. A stream whose nodes do not answer waits."""
    if case.inputs.making:
        return {}
    known = {chain.log_stream for chain in projection.chains}
    return {
        stream.log_stream: stream.replicas
        for stream in case.streams
        if stream.log_stream not in known
        and any(case.unit(stream.log_stream, node) is not None for node in stream.replicas)
    }


def _concerned(case: TopicCondition, change: Reconfigure) -> list[LogStreamID]:
    """The streams whose next step this is; all of them, if it concerns the topic as a whole."""
    wish = change.wish
    named = [*wish.without, *wish.join, *wish.streams]
    return named or [stream.log_stream for stream in case.streams]


# --- Out of sync, and back -------------------------------------------------------------------------------------------------


def _fill_chain(
    case: TopicCondition, projection: Projection, chain: Chain, came: _Newcomers, preferred: Counter[NodeID]
) -> RepairStep:
    """The next step for a member that is out of sync, or a new one; otherwise why there is none."""
    if not _answering(case, chain):
        return NoStep(
            EventKind.WAITING_FOR_NODE,
            f"none of its nodes {list(chain.nodes)} answers: start one of them again",
        )
    if awaited := case.awaited(chain):
        return NoStep(
            EventKind.VERIFYING,
            f"nodes {case.unverified(chain)} were restarted, and wait for nodes {awaited}, which may have newer entries",
        )
    if case.is_ahead(chain):
        return NoStep(EventKind.STALE_VIEW, f"epoch {projection.epoch + 1} is being started", settled=False)
    # A single member has no other to be compared with: the repository says so to its node.
    if len(chain.nodes) > 1 and (unverified := case.unverified(chain)):
        wait = NoStep(
            EventKind.VERIFYING,
            f"nodes {unverified} were restarted, and are compared with their chain",
            settled=False,
        )
        return _prove(case, projection, chain) or wait
    waits: list[NoStep] = []
    for node, old in _candidates(case, chain, preferred):
        if node not in chain.members:
            came.wanted.add((chain.log_stream, node))
        step = _fill(case, projection, chain, node)
        if step is FILLED:
            came.join[chain.log_stream] = (*came.join.get(chain.log_stream, ()), node)
            if old is not None:
                came.leave[chain.log_stream] = (*came.leave.get(chain.log_stream, ()), old)
        elif not isinstance(step, NoStep):
            return step
        elif not step.settled:
            came.nearly |= case.lag(chain, node) <= JOIN_LAG_ENTRIES
        if isinstance(step, NoStep):
            waits.append(step)
    waits.extend(
        NoStep(EventKind.WAITING_FOR_NODE, _absence(case, chain, node), node)
        for node in chain.out_of_sync
        if node not in case.nodes
    )
    if waits:
        return min(waits, key=lambda wait: wait.settled)
    defects = [why for node in chain.nodes if (why := case.defect(chain.log_stream, node))]
    return NoStep(EventKind.UNUSABLE, f"{defects[0]}, and no other node can serve") if defects else RUNNING


def _prove(case: TopicCondition, projection: Projection, chain: Chain) -> RepairStep | None:
    """Compare a member whose node was restarted with one whose was not: its disk may have lost acknowledged entries."""
    for node in chain.nodes:
        unit = case.unit(chain.log_stream, node)
        if unit is None or not unit.unverified or case.defect(chain.log_stream, node):
            continue
        if unit.sync is not None and unit.sync.state is SyncState.IN_PROGRESS:
            continue
        if whole := case.proven(chain):
            return SyncReplica(node, whole[0], projection.epoch, backfill=True)
    return None


def _candidates(
    case: TopicCondition, chain: Chain, preferred: Counter[NodeID]
) -> list[tuple[NodeID, NodeID | None]]:
    """Nodes that are to join the chain, each with the one it replaces: members that answer, then replacements."""
    found: list[tuple[NodeID, NodeID | None]] = [
        (node, None) for node in chain.out_of_sync if node in case.nodes
    ]
    if (move := _move(case, chain)) is not None:
        found.append((move.new, move.old))
    taken = {*chain.members, *(node for node, _ in found)}
    for node in chain.out_of_sync:
        if case.is_lost(chain.log_stream, node) and (move is None or node != move.old):
            spare = _spare(case, chain.log_stream, taken, preferred)
            if spare is not None:
                taken.add(spare)
                preferred[spare] += 1
                found.append((spare, node))
    return found


def _move(case: TopicCondition, chain: Chain) -> Move | None:
    """The operator's request, while it is open: from a member to a node that is none."""
    move = case.inputs.moves.get(chain.log_stream)
    if move is None or move.old not in chain.members or move.new in chain.members:
        return None
    return move if move.new in case.nodes else None


def _preferred(case: TopicCondition) -> Counter[NodeID]:
    """How many streams of the topic each node has: with groups of storage nodes, one node replaces a lost one in all streams."""
    if case.topic.grouping is not Grouping.NODE:
        return Counter()
    return Counter(node for units in case.units.values() for node in units)


def _spare(
    case: TopicCondition, log_stream: LogStreamID, taken: set[NodeID], preferred: Counter[NodeID]
) -> NodeID | None:
    """The one whose filling has started; otherwise the one with the most room."""
    fit = [node for node in case.inputs.spares if node not in taken]
    fit.sort(key=lambda node: (case.unit(log_stream, node) is None, -preferred[node]))
    return fit[0] if fit else None


def _fill(case: TopicCondition, projection: Projection, chain: Chain, node: NodeID) -> RepairStep:
    """What a unit needs before it can join the chain: FILLED if nothing."""
    unit = case.unit(chain.log_stream, node)
    if unit is None:
        return CreateReplica(node)
    if unit.full:
        return NoStep(
            EventKind.DISK_FULL,
            f"the disk of node {node} is full: free space there, or move it with `varlog stream replace`",
            node,
        )
    # A node requests a lease while it has a healthy unit: one whose only unit is damaged gets none, and is repaired first.
    if node in chain.out_of_sync and node in case.inputs.unleased_s and not unit.trouble:
        return NoStep(EventKind.NO_LEASE, f"node {node} has no lease yet", node)
    if unit.epoch > projection.epoch:
        return NoStep(
            EventKind.STALE_VIEW, f"node {node} knows a newer epoch than this view", node, settled=False
        )
    if (why := _must_be_rebuilt(case, chain, node)) is not None:
        if case.healthy(chain):
            return RebuildReplica(node, projection.epoch, why)
        return NoStep(
            EventKind.NO_SOURCE,
            f"node {node} must be rebuilt ({why}), and no node of the chain is healthy",
            node,
        )
    if case.is_filled(chain, node):
        if (chain.log_stream, node) in case.inputs.resting:
            return NoStep(EventKind.JOINING, f"node {node} is filled, and could not join: retried soon", node)
        return FILLED
    return _sync(case, projection, chain, node)


def _sync(case: TopicCondition, projection: Projection, chain: Chain, node: NodeID) -> RepairStep:
    unit = case.unit(chain.log_stream, node)
    sync = unit.sync if unit is not None else None
    if sync is not None and sync.state is SyncState.IN_PROGRESS:
        tenths = 10 * (sync.copied_end - 1) // max(1, sync.target_end - 1)
        return NoStep(
            EventKind.SYNCING,
            f"node {node} is filled from node {sync.source}: {10 * tenths} % done",
            node,
            settled=False,
        )
    if case.unit(chain.log_stream, chain.tail) is None:
        return NoStep(
            EventKind.WAITING_FOR_NODE,
            f"node {node} is filled once the chain has a tail that answers",
            chain.tail,
            settled=False,
        )
    return SyncReplica(node, chain.tail, projection.epoch)


def _must_be_rebuilt(case: TopicCondition, chain: Chain, node: NodeID) -> str | None:
    unit = case.unit(chain.log_stream, node)
    if unit is None:
        return None
    if unit.damage:
        return "it is damaged"
    failed = unit.sync is not None and unit.sync.state is SyncState.ERROR
    # The disk may have failed for a moment: the unit is reopened first, and may be intact.
    if unit.trouble and (failed or (chain.log_stream, node) in case.inputs.stuck):
        return unit.trouble
    if failed and unit.sync is not None and unit.sync.rebuild:
        return unit.sync.why or "it holds something that the chain does not"
    return None


def _absence(case: TopicCondition, chain: Chain, node: NodeID) -> str:
    if not case.is_lost(chain.log_stream, node):
        return f"storage node {node} does not answer; it is replaced if that lasts {case.inputs.replace_after_s:g} s"
    if _spare(case, chain.log_stream, set(chain.members), Counter()) is None:
        return f"storage node {node} does not answer, and no other node has room for its unit"
    return f"storage node {node} does not answer, and is being replaced"
