"""[A8] ReportTable: the newest report of every replica, and the changed streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from varlog.model.cluster import LogStream
from varlog.model.commit import Report
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.model.status import ReplicaState
from varlog.rpc.messages import ReplicaPoint

_NOTHING: Mapping[NodeID, Report] = MappingProxyType({})


class ReportTable:
    """The latest reports of the replicas. It outlives a session: what was durable once stays durable (law 1), in its epoch."""

    def __init__(self) -> None:
        self._reports: dict[LogStreamID, dict[NodeID, Report]] = {}
        # A dict, not a set: a simulated run must visit them in the same order every time.
        self.changed: dict[LogStreamID, None] = {}

    def record(self, node: NodeID, reports: Iterable[Report]) -> None:
        """Record the latest reports of a node's replicas. A smaller claim than before is recorded as well: it is the safer one."""
        known, changed = self._reports, self.changed
        for report in reports:
            by_node = known.get(report.log_stream)
            if by_node is None:
                by_node = known[report.log_stream] = {}
            by_node[node] = report
            changed[report.log_stream] = None

    def record_point(self, node: NodeID, point: ReplicaPoint, *, alone: bool = False) -> None:
        """Record the state of a replica when a session opens. Only a running one claims new entries for the order: the tail of
        any other may be cut by the coming seal. What it reported before, in the same epoch, still counts.

        `alone`: it is the only replica of the only log stream of its topic. Everything durable there is claimed: the order of the
        topic is the order of these entries, so if the store has lost it, each entry is ordered again at its old position (law 3).
        """
        known = self._reports.get(point.log_stream, {}).get(node)
        durable_end = point.durable_end
        if point.state is not ReplicaState.RUNNING and not alone:
            before = known.durable_end if known is not None and known.epoch == point.epoch else FIRST_LLSN
            durable_end = min(before, point.durable_end)
        self.record(node, (Report(point.log_stream, point.epoch, durable_end, point.rows_synced_end),))

    def touch(self, log_stream: LogStreamID) -> None:
        """Mark a stream as changed because its own state changed."""
        self.changed[log_stream] = None

    def of(self, log_stream: LogStreamID) -> Mapping[NodeID, Report]:
        return self._reports.get(log_stream, _NOTHING)

    def drain_changed(self) -> list[LogStreamID]:
        """The changed streams, each once; clears the list."""
        changed, self.changed = self.changed, {}
        return list(changed)

    def synced_end(self, stream: LogStream) -> LLSN:
        """The LLSN below which the rows are durable at every replica of the stream."""
        reports = self.of(stream.log_stream)
        return min(
            (reports[node].rows_synced_end if node in reports else FIRST_LLSN for node in stream.replicas),
            default=FIRST_LLSN,
        )

    def keep_only(self, streams: Mapping[LogStreamID, LogStream]) -> None:
        """Drop streams that left the view, and reports of nodes that left a stream: a node that returns may return empty, and
        rows that it lacks must not be dropped because of what its former replica had."""
        for log_stream in [found for found in self._reports if found not in streams]:
            del self._reports[log_stream]
        for log_stream, by_node in self._reports.items():
            for node in [found for found in by_node if found not in streams[log_stream].replicas]:
                del by_node[node]
