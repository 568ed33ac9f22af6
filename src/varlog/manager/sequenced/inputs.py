"""PURE. TopicRepairInputs, TopicCondition: what projection decisions rest on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from varlog.manager.repair_steps import Move
from varlog.model.cluster import LogStream, Topic
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.projection import Chain, Projection, SequencerID
from varlog.model.status import SyncState, UnitStatus

# A node that has just started, or whose repository has, has no lease for a moment. After this time it counts as unusable.
UNLEASED_S: Final = 2.0
# Units in a newer epoch than the projection: a reconfiguration is in progress. After this time its process has died halfway.
AHEAD_S: Final = 1.0
# After a restart of all members of a chain, each is waited for this long: one that is away may have what the others have lost. If
# only one answers, a disk that went back in time would not be noticed at all.
UNHEARD_S: Final = 3.0
UNHEARD_ALONE_S: Final = 10.0
# How many entries a joining unit may lack: they are copied while the topic waits.
JOIN_LAG_ENTRIES: Final = 50_000


@dataclass(frozen=True, slots=True)
class TopicRepairInputs:
    """`spares`: living nodes with room, best first. `unreachable_s`: how long nodes have not answered; `useless_s`: how
    long a node has been of no use to a stream, though it answers. `unleased_s`: how long nodes that answer have had no
    lease. `ahead_s`: how long units have been in a newer epoch than the projection. `sequencers`: those that may assign
    positions now. `moves`: requests of operators. `making`: more log streams are being created now. `resting`: filled
    units that could not join lately. `stuck`: units that refused to be filled. `unreported_s`: how long members of chains
    have not reported their units, or only failures."""

    spares: tuple[NodeID, ...] = ()
    unreachable_s: Mapping[NodeID, float] = field(default_factory=dict)
    useless_s: Mapping[tuple[LogStreamID, NodeID], float] = field(default_factory=dict)
    unleased_s: Mapping[NodeID, float] = field(default_factory=dict)
    ahead_s: float = 0.0
    sequencers: Collection[SequencerID] = ()
    moves: Mapping[LogStreamID, Move] = field(default_factory=dict)
    replace_after_s: float = 30.0
    making: bool = False
    resting: Collection[tuple[LogStreamID, NodeID]] = ()
    stuck: Collection[tuple[LogStreamID, NodeID]] = ()
    unreported_s: Mapping[tuple[LogStreamID, NodeID], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicCondition:
    """A sequenced topic. `nodes`: those that answered. `units`: every unit of its streams that they have, members or not."""

    topic: Topic
    projection: Projection | None
    streams: tuple[LogStream, ...]
    nodes: Collection[NodeID]
    units: Mapping[LogStreamID, Mapping[NodeID, UnitStatus]]
    inputs: TopicRepairInputs = TopicRepairInputs()

    @property
    def epoch(self) -> Epoch:
        return NO_EPOCH if self.projection is None else self.projection.epoch

    def unit(self, log_stream: LogStreamID, node: NodeID) -> UnitStatus | None:
        return self.units.get(log_stream, {}).get(node)

    def defect(self, log_stream: LogStreamID, node: NodeID) -> str:
        """Why a node cannot serve a stream, or should not; "" if it can."""
        if node not in self.nodes:
            return f"storage node {node} does not answer"
        unit = self.unit(log_stream, node)
        if unit is None:
            return f"node {node} has no unit of it"
        if unit.full:
            return f"the disk of node {node} is full"
        if unit.damage:
            return f"the unit on node {node} is damaged"
        if unit.trouble:
            return f"the unit on node {node} is of no use: {unit.trouble}"
        if not self.is_sealable(log_stream, node):
            return f"the unit on node {node} was never sealed: its disk is older than the log stream"
        if unit.unverified and unit.sync is not None and unit.sync.rebuild:
            return f"the unit on node {node} holds something else than its chain: {unit.sync.why}"
        if self.inputs.unleased_s.get(node, 0.0) >= UNLEASED_S:
            return f"storage node {node} gets no lease"
        return ""

    def healthy(self, chain: Chain) -> list[NodeID]:
        return [node for node in chain.nodes if not self.defect(chain.log_stream, node)]

    def unverified(self, chain: Chain) -> list[NodeID]:
        """Members whose nodes were restarted, and that have not been compared with their chain since."""
        found = [(node, self.unit(chain.log_stream, node)) for node in chain.nodes]
        return [node for node, unit in found if unit is not None and unit.unverified]

    def proven(self, chain: Chain) -> list[NodeID]:
        """Healthy members that certainly have all acknowledged entries, the last one of the chain first."""
        unverified = self.unverified(chain)
        return [node for node in reversed(self.healthy(chain)) if node not in unverified]

    def lost(self, chain: Chain) -> tuple[NodeID, ...]:
        """Members that are no longer waited for after all the others were restarted."""
        silent = [node for node in chain.nodes if (chain.log_stream, node) in self.inputs.unreported_s]
        limit_s = UNHEARD_S if len(chain.nodes) - len(silent) > 1 else UNHEARD_ALONE_S
        return tuple(node for node in silent if self.inputs.unreported_s[chain.log_stream, node] >= limit_s)

    def is_sealable(self, log_stream: LogStreamID, node: NodeID) -> bool:
        """Whether a member can answer a seal. A unit that was never sealed cannot: it replaces a lost one, or its disk went back
        to before the topic began, and it has nothing of what the chain has."""
        unit = self.unit(log_stream, node)
        return unit is not None and unit.epoch != NO_EPOCH

    def must_compare(self, chain: Chain) -> bool:
        """No member is known to be complete: all are sealed and compared with each other."""
        return len(chain.nodes) > 1 and bool(self.unverified(chain)) and not self.proven(chain)

    def awaited(self, chain: Chain) -> list[NodeID]:
        """The members whose answer is needed before the others can be compared."""
        if not self.must_compare(chain):
            return []
        lost = self.lost(chain)
        return [
            node for node in chain.nodes if not self.is_sealable(chain.log_stream, node) and node not in lost
        ]

    def is_ahead(self, chain: Chain) -> bool:
        """A unit knows a newer epoch than the projection: it was sealed for the next one. A unit that was about to join counts,
        too: it may be the only one that the previous manager sealed before it died."""
        return any(unit.epoch > self.epoch for unit in self.units.get(chain.log_stream, {}).values())

    def is_lost(self, log_stream: LogStreamID, node: NodeID) -> bool:
        """Whether the node has been of no use for so long that it must be replaced."""
        inputs = self.inputs
        unreachable_s = max(
            inputs.unreachable_s.get(node, 0.0),
            inputs.useless_s.get((log_stream, node), 0.0),
            inputs.unleased_s.get(node, 0.0),
        )
        return unreachable_s >= inputs.replace_after_s

    def lag(self, chain: Chain, node: NodeID) -> int:
        """How many entries the tail is ahead of a unit, by their newest LLSNs."""
        tail, unit = self.unit(chain.log_stream, chain.tail), self.unit(chain.log_stream, node)
        return 0 if tail is None or unit is None else tail.newest - unit.newest

    def is_filled(self, chain: Chain, node: NodeID) -> bool:
        """Whether the unit has what the tail had a moment ago: the rest is copied when it joins."""
        unit = self.unit(chain.log_stream, node)
        if unit is None or unit.sync is None or unit.sync.state is not SyncState.COMPLETE:
            return False
        return unit.sync.source == chain.tail and self.lag(chain, node) <= JOIN_LAG_ENTRIES
