"""[A8] ReportTable: the newest report of every replica, and streams with news."""

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
    """What the replicas said last. It outlives a session: what was durable once stays durable (law 1), in its epoch."""

    def __init__(self) -> None:
        self._reports: dict[LogStreamID, dict[NodeID, Report]] = {}
        # A dict, not a set: a simulated run must look at them in the same order every time.
        self.changed: dict[LogStreamID, None] = {}

    def record(self, node: NodeID, reports: Iterable[Report]) -> None:
        """The newest word of some replicas of a node. A smaller claim than before is taken as well: it is the safer one."""
        known, changed = self._reports, self.changed
        for report in reports:
            by_node = known.get(report.log_stream)
            if by_node is None:
                by_node = known[report.log_stream] = {}
            by_node[node] = report
            changed[report.log_stream] = None

    def record_point(self, node: NodeID, point: ReplicaPoint, *, alone: bool = False) -> None:
        """Where a replica stands as a session opens. Only a running one claims new entries for the order: the tail of any
        other may be cut by the seal to come. What it reported before, in the same epoch, still counts.

        `alone`: it is the only replica of the only log stream of its topic. All that is durable there is claimed: the
        order of the topic is the order of these entries, so each of them is ordered again where it was, if the store
        has lost that (law 3).
        """
        known = self._reports.get(point.log_stream, {}).get(node)
        durable_end = point.durable_end
        if point.state is not ReplicaState.RUNNING and not alone:
            before = known.durable_end if known is not None and known.epoch == point.epoch else FIRST_LLSN
            durable_end = min(before, point.durable_end)
        self.record(node, (Report(point.log_stream, point.epoch, durable_end, point.rows_synced_end),))

    def touch(self, log_stream: LogStreamID) -> None:
        """Look at this stream again: its own state changed."""
        self.changed[log_stream] = None

    def of(self, log_stream: LogStreamID) -> Mapping[NodeID, Report]:
        return self._reports.get(log_stream, _NOTHING)

    def drain_changed(self) -> list[LogStreamID]:
        """The streams to look at, each once."""
        changed, self.changed = self.changed, {}
        return list(changed)

    def synced_end(self, stream: LogStream) -> LLSN:
        """Rows below this are durable at every replica of the stream."""
        reports = self.of(stream.log_stream)
        return min(
            (reports[node].rows_synced_end if node in reports else FIRST_LLSN for node in stream.replicas),
            default=FIRST_LLSN,
        )

    def keep_only(self, streams: Mapping[LogStreamID, LogStream]) -> None:
        """Forget the streams that left the view, and what nodes said that left a stream: one that comes back may come
        back empty, and rows that it lacks must not be forgotten for what its former replica had."""
        for log_stream in [found for found in self._reports if found not in streams]:
            del self._reports[log_stream]
        for log_stream, by_node in self._reports.items():
            for node in [found for found in by_node if found not in streams[log_stream].replicas]:
                del by_node[node]
