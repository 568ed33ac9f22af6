"""Snapshot: what one round of the manager saw, indexed, and what was decided."""

from __future__ import annotations

from collections.abc import Mapping

from varlog.manager.committed.inputs import Statuses
from varlog.manager.placement_rules import NodeLoad, loads, spares
from varlog.manager.repair_steps import RUNNING, RepairReplica, RepairStep, ReplaceReplica
from varlog.model.cluster import LogStream, StreamState
from varlog.model.errors import UnknownLogStream
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.status import NodeStatus, ReplicaStatus, UnitStatus
from varlog.rpc.messages import GetViewReply


class Snapshot:
    """`nodes`: those that answered. `steps`: what was decided for each stream. `wanted`: log units on nodes that are to become
    members of their streams."""

    def __init__(
        self,
        seen: GetViewReply,
        nodes: Mapping[NodeID, NodeStatus],
        unreachable_s: Mapping[NodeID, float],
        unreachable_reasons: Mapping[NodeID, str] | None = None,
    ) -> None:
        self.view = seen.view
        self.suspects = seen.suspects
        self.nodes = nodes
        self.unreachable_s = unreachable_s
        self.unreachable_reasons = unreachable_reasons or {}
        self.complaints = seen.complaints
        self.repository_corrupt_frames = seen.corrupt_frames
        self._next_log_stream = seen.next_log_stream
        self._unused = dict.fromkeys(seen.unused)
        self._foreign = seen.foreign
        self.steps: dict[LogStreamID, RepairStep] = {}
        self.wanted: set[tuple[LogStreamID, NodeID]] = set()
        self._sequenced = {topic.topic for topic in seen.view.topics if topic.sequenced}
        self._loads: dict[NodeID, NodeLoad] | None = None
        self._replicas: dict[LogStreamID, dict[NodeID, ReplicaStatus]] = {}
        self._units: dict[LogStreamID, dict[NodeID, UnitStatus]] = {}
        for node, status in nodes.items():
            for unit in status.units:
                self._units.setdefault(unit.log_stream, {})[node] = unit
            for replica in status.replicas:
                self._replicas.setdefault(replica.log_stream, {})[node] = replica

    def stream(self, log_stream: LogStreamID) -> LogStream:
        """The stream; raises UnknownLogStream if it does not exist."""
        known = self.view.stream(log_stream)
        if known is None:
            raise UnknownLogStream(log_stream)
        return known

    def is_sequenced(self, stream: LogStream) -> bool:
        return stream.topic in self._sequenced

    def was_registered(self, log_stream: LogStreamID) -> bool:
        """The repository has it in its view, or had it once."""
        foreign = any(begin <= log_stream < end for begin, end in self._foreign)
        return log_stream < self._next_log_stream and log_stream not in self._unused and not foreign

    def found(self, log_stream: LogStreamID) -> Mapping[NodeID, ReplicaStatus]:
        """Every replica of the stream that some node has, registered or not."""
        return self._replicas.get(log_stream, {})

    def units(self, log_stream: LogStreamID) -> Mapping[NodeID, UnitStatus]:
        """Every log unit of the stream that some node has, member or not."""
        return self._units.get(log_stream, {})

    def unit(self, log_stream: LogStreamID, node: NodeID) -> UnitStatus | None:
        """The status of a node's log unit of a stream."""
        return self.units(log_stream).get(node)

    def statuses_of(self, stream: LogStream) -> Statuses:
        """The status of each replica, for the nodes that answered."""
        found = self.found(stream.log_stream)
        return {node: found.get(node) for node in stream.replicas if node in self.nodes}

    def runs(self, log_stream: LogStreamID) -> bool:
        """It runs with all its replicas, though damaged entries may still be under repair. A sequenced one runs with what is left
        of its chain."""
        stream, step = self.view.stream(log_stream), self.steps.get(log_stream)
        if stream is None or step is None or stream.state is not StreamState.RUNNING:
            return False
        if self.is_sequenced(stream):
            return True
        return step == RUNNING or isinstance(step, RepairReplica)

    def write_s(self) -> dict[NodeID, float]:
        """The time of a write on each node that answered; 0: too few to measure."""
        found = {}
        for node, status in self.nodes.items():
            seconds = [replica.traffic.write_s for replica in status.replicas]
            seconds += [unit.traffic.write_s for unit in status.units]
            found[node] = max(seconds, default=0.0)
        return found

    def load(self) -> tuple[NodeLoad, ...]:
        """The load of the living nodes, including what was decided in this round."""
        if self._loads is None:
            self._loads = {load.node: load for load in loads(self.view, self.nodes)}
        return tuple(self._loads.values())

    def spares(self) -> tuple[NodeID, ...]:
        return spares(self.load())

    def decided(self, stream: LogStream, step: RepairStep) -> None:
        """Record the step; a replica that is to be created counts on its node from now on."""
        self.steps[stream.log_stream] = step
        if not isinstance(step, ReplaceReplica) or step.new in stream.replicas:
            return
        if self._loads is not None and step.new in self._loads:
            self._loads[step.new] = self._loads[step.new].with_one_more()
