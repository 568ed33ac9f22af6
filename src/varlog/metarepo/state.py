"""RepositoryState: members and order, loaded from and kept in the store.

It contains durable state only: the commit loop changes it after the store's commit has returned, never before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from varlog.metarepo import records
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.ordering.commit_rules import Candidate, Cut, next_cut, orderable_end
from varlog.metarepo.ordering.order import Order
from varlog.metarepo.ordering.reports import ReportTable
from varlog.metarepo.store.base import StoreChange
from varlog.model.cluster import ClusterView, LogStream, Topic, changed
from varlog.model.commit import Report, TopicMark
from varlog.model.errors import StartupError
from varlog.model.ids import NO_UUID, ClusterID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.invariant import InvariantBroken
from varlog.model.lsn import FIRST_LLSN, LLSN, NO_GLSN


class RepositoryState:
    """Members and order, and an index of the view: `streams`, `streams_on` and `holders` cover the topics that are ordered here,
    `units_on` the sequenced ones."""

    def __init__(self, members: Members, order: Order) -> None:
        self.order = order
        # Topics that a node has just contradicted: nothing is ordered in them while `Topic.stopped` is not durable yet.
        self.distrusted: dict[TopicID, str] = {}
        # Whether the nodes have reported what they know of the order; nothing is ordered before. Set by Witnesses alone.
        self.witnessed = True
        self.members = members
        self._index(members.view)

    def adopt(self, members: Members) -> None:
        """Adopt members that are durable. Changes of readers and writers are frequent, and do not change the view."""
        before, self.members = self.members, members
        if members.view is not before.view:
            self._index(members.view)

    def _index(self, view: ClusterView) -> None:
        self.order.keep_only(view)
        self.topics: dict[TopicID, Topic] = {found.topic: found for found in view.topics}
        self.streams: dict[LogStreamID, LogStream] = {}
        self.streams_on: dict[NodeID, dict[LogStreamID, LogStream]] = {found.node: {} for found in view.nodes}
        self.units_on: dict[NodeID, list[LogStream]] = {}
        self._streams_of = Counter(stream.topic for stream in view.streams)
        holders: dict[TopicID, dict[NodeID, None]] = {}
        for stream in view.streams:
            if (topic := self.topics.get(stream.topic)) is not None and topic.sequenced:
                for node in stream.replicas:
                    self.units_on.setdefault(node, []).append(stream)
                continue
            self.streams[stream.log_stream] = stream
            for node in stream.replicas:
                self.streams_on.setdefault(node, {})[stream.log_stream] = stream
                holders.setdefault(stream.topic, {})[node] = None
        self.holders: dict[TopicID, tuple[NodeID, ...]] = {
            topic: tuple(nodes) for topic, nodes in holders.items()
        }

    @property
    def view(self) -> ClusterView:
        return self.members.view

    def mark(self, topic: TopicID) -> TopicMark:
        known = self.topics.get(topic)
        trimmed = known.trimmed if known is not None else NO_GLSN
        return TopicMark(topic, self.order.high_watermark(topic), trimmed)

    def is_alone(self, stream: LogStream) -> bool:
        """Whether its topic has no other log stream, and the stream no other replica, as in an embedded log."""
        return len(stream.replicas) == 1 and self._streams_of[stream.topic] == 1

    def may_give(self, topic: TopicID) -> bool:
        """Whether positions of this topic may be assigned: no node is known to have seen another order."""
        found = self.topics.get(topic)
        return self.witnessed and topic not in self.distrusted and (found is None or not found.stopped)

    def may_order(self, reports: ReportTable, taken: Iterable[Report]) -> bool:
        """Whether the reports just received allow a cut with any rows. Of the reports of one batch, only that of the last replica
        is worth waking the commit loop."""
        for report in taken:
            stream = self.streams.get(report.log_stream)
            if stream is not None:
                end = self.order.committed_end(report.log_stream)
                found = orderable_end(stream, end, reports.of(report.log_stream))
                if found > end and self.may_give(stream.topic):
                    return True
        return False

    def next_cut(self, reports: ReportTable) -> Cut | None:
        """The next cut, over the streams with new reports; None if nothing may be ordered."""
        if not self.witnessed:
            return None
        candidates: list[Candidate] = []
        streams, ends = self.streams, self.order.committed_ends
        for log_stream in reports.drain_changed():
            stream = streams.get(log_stream)
            if stream is not None and self.may_give(stream.topic):
                candidates.append((stream, ends.get(log_stream, FIRST_LLSN), reports.of(log_stream)))
        return next_cut(self.order.version, candidates, self.order.high_watermarks)

    def base(self, reports: ReportTable) -> records.BaseRecord:
        """The current order as a base record for the store."""

        def synced_end(log_stream: LogStreamID) -> LLSN:
            return reports.synced_end(self.streams[log_stream])

        return self.order.base(synced_end)


def load_state(
    items: dict[str, bytes], cluster: ClusterID, place: str, fresh_uuid: ClusterUUID = NO_UUID
) -> tuple[RepositoryState, list[StoreChange]]:
    """The state in `items`, and the changes to write first: if there is no state, if it has an earlier format, or if it lacks the
    UUID of the cluster (then it gets `fresh_uuid`). Raises StartupError if the items belong to another cluster or are damaged."""
    if not items:
        members = Members(ClusterView(cluster, revision=1, uuid=fresh_uuid))
        first: list[StoreChange] = [records.put_cluster(members)]
        return RepositoryState(members, Order(records.base_of({}))), first
    try:
        version = records.format_of(items)
        if not 1 <= version <= records.FORMAT_VERSION:
            raise StartupError(
                f"{place} holds metadata of format version {version}, this program knows version "
                f"{records.FORMAT_VERSION}: use the version of varlog that wrote it"
            )
        members = records.members_of(items)
        order = Order(records.base_of(items), records.cuts_of(items), members.view.topics)
        migration = records.migration(items)
    except (KeyError, TypeError, ValueError, msgspec.DecodeError, InvariantBroken) as error:
        raise StartupError(
            f"{place} is damaged ({error}): restore it from a copy; nothing was changed"
        ) from error
    if members.view.cluster != cluster:
        raise StartupError(
            f"{place} belongs to cluster {members.view.cluster}, not to cluster {cluster}: "
            "check --cluster-id, or name another file"
        )
    if members.view.uuid == NO_UUID and fresh_uuid != NO_UUID:
        view = changed(members.view, uuid=fresh_uuid, revision=members.view.revision + 1)
        members = replace(members, view=view)
    elif version == records.FORMAT_VERSION:
        return RepositoryState(members, order), []
    # In one commit: `cluster` has the format version of all records.
    return RepositoryState(members, order), [*migration, records.put_cluster(members)]
