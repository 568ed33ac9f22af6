"""PURE. Lease rules: until when a holder may answer, and its duties (R-SEQ-13).

How a lease is timed, here and at its holder, is in model.lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final, NamedTuple

from varlog.metarepo.membership.projection_rules import Handover
from varlog.model.cluster import ClusterView
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lease import BEGINNING, Instant, ended_after_s
from varlog.model.limits import LEASE_S
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import SequencerID

# A lease has ended at its holder once this time has passed since its grant.
LEASE_US: Final = ceil(ended_after_s(LEASE_S) * 1_000_000)

Holder = NodeID | SequencerID


class Duty(NamedTuple):
    """A unit must not be in an epoch older than `epoch`, and must have nothing below `low`."""

    epoch: Epoch
    low: LLSN

    def done(self, reported: Duty) -> bool:
        return reported.epoch >= self.epoch and reported.low >= self.low


ReportedDuties = Mapping[LogStreamID, Duty]


class LeaseBook:
    """Until when the lease of each holder may be valid, by both clocks. `begun`: an unknown holder may have got a lease just then,
    from the previous term; None: there was no previous term."""

    def __init__(self, begun: Instant | None) -> None:
        self._unknown = begun.after(LEASE_US) if begun is not None else BEGINNING
        self._ends: dict[Holder, Instant] = {}

    def grant(self, holder: Holder, now: Instant) -> None:
        self._ends[holder] = now.after(LEASE_US).latest(self._end(holder))

    def left_us(self, holder: Holder, now: Instant) -> int:
        """The time left; 0: the holder certainly answers nothing any more."""
        return self._end(holder).left_us(now)

    def _end(self, holder: Holder) -> Instant:
        return self._ends.get(holder, self._unknown)

    def forget_ended(self, now: Instant) -> None:
        """Forget leases that have ended, to free memory; the default for unknown holders has ended by then as well."""
        if not self._unknown.left_us(now):
            self._ends = {holder: end for holder, end in self._ends.items() if end.left_us(now)}


def duties(view: ClusterView) -> dict[LogStreamID, Duty]:
    """The state that every unit of a log stream must have, on any node, even if the node is away or no member any more: clients
    that missed a projection may rely on it. If a node knows a newer projection than this repository, no unit serves by ours."""
    topics = {found.topic: found for found in view.topics}
    found: dict[LogStreamID, Duty] = {}
    for projection in view.projections:
        topic = topics.get(projection.topic)
        oldest = max(GLSN(topic.trimmed + 1), projection.first) if topic is not None else projection.first
        epoch = projection.epoch if topic is None else max(projection.epoch, topic.known_epoch)
        for chain in projection.chains:
            low = projection.llsn_from(chain.log_stream, oldest)
            found[chain.log_stream] = Duty(epoch, low)
    return found


def with_handovers(node: NodeID, log_stream: LogStreamID, duty: Duty, handovers: Iterable[Handover]) -> Duty:
    """The duty of a unit, including proposals that could not seal it: if it is still in session, it is sealed through its lease,
    which then need not expire."""
    for handover in handovers:
        if (log_stream, node) in handover.units and handover.epoch > duty.epoch:
            duty = Duty(handover.epoch, duty.low)
    return duty


def lacks(reported: ReportedDuties, demanded: Mapping[LogStreamID, Duty]) -> bool:
    """Whether a unit of the node does not fulfil its duty. Until it does, the node's lease is not extended: in an older epoch, or
    with trimmed entries, it would answer from an obsolete state."""
    return any(
        log_stream in demanded and not demanded[log_stream].done(unit)
        for log_stream, unit in reported.items()
    )


def waited_for(handover: Handover, reported: Mapping[NodeID, ReportedDuties]) -> tuple[Holder, ...]:
    """The holders whose leases must end first. A unit that has reported the new epoch was sealed."""
    holders: dict[Holder, None] = {}
    for log_stream, node in handover.units:
        unit = reported.get(node, {}).get(log_stream)
        if unit is None or unit.epoch < handover.epoch:
            holders[node] = None
    if handover.sequencer is not None:
        holders[handover.sequencer] = None
    return tuple(holders)


def trim_waits_for(
    view: ClusterView, topic: TopicID, glsn: GLSN, reported: Mapping[NodeID, ReportedDuties]
) -> tuple[Holder, ...]:
    """The holders that may still serve entries trimmed up to `glsn`. A node of the chain that has not reported its unit yet may:
    the unit was just created, or has entered its first epoch since. A node that is away and has no unit delays nothing."""
    projection = view.projection(topic)
    if projection is None:
        return ()
    holders: dict[Holder, None] = {}
    for chain in projection.chains:
        low = projection.llsn_from(chain.log_stream, max(GLSN(glsn + 1), projection.first))
        for node in chain.members:
            units = reported.get(node)
            unit = units.get(chain.log_stream) if units is not None else None
            unreported = units is None or (unit is None and node in chain.nodes)
            if unreported or (unit is not None and unit.low < low):
                holders[node] = None
    return tuple(holders)


def epochs(view: ClusterView) -> tuple[tuple[TopicID, Epoch], ...]:
    """The current epoch of every sequenced topic: a sequencer in an older one must not answer in it any more."""
    begun = {found.topic: found.epoch for found in view.projections}
    return tuple(
        (found.topic, max(begun.get(found.topic, NO_EPOCH), found.known_epoch))
        for found in view.topics
        if found.sequenced
    )
