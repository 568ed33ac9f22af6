"""[Q3] PURE. TokenMachine: the positions that one sequencer run has granted.

Requests in, positions out (R-SEQ-1).

It remembers nothing beyond its process. That is safe because a projection names this very start: a sequencer that is started
again is another one, and begins, in a later epoch, above everything that was ever written (R-SEQ-2). Within one start it never
counts back, also where the repository forgets a topic and has it again: its store may be replaced by an older copy, and that by
the newest one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from varlog.model.cluster import ClusterView
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import BatchTooLarge, InvalidRequest, NotSequencing
from varlog.model.ids import TopicID
from varlog.model.limits import BATCH_ENTRIES_MAX
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.model.projection import Projection, SequencerID

# Topics that are gone and whose counters are kept; the first that went is forgotten first.
GONE_TOPICS_MAX: Final = 100_000


class GrantedTokens(NamedTuple):
    """Positions from `first` on, and `skipped` ones just before it."""

    first: GLSN
    skipped: int = 0


class UnknownEpoch(NotSequencing):
    """The request is of an epoch that was not seen here: the view must be refreshed first."""


@dataclass(slots=True)
class _Topic:
    """`newest_epoch` is the newest epoch known, `seen_epoch` that of the newest projection seen; `projection` is that
    projection, if it names this sequencer. `next` never falls."""

    next: GLSN = NO_GLSN
    newest_epoch: Epoch = NO_EPOCH
    seen_epoch: Epoch = NO_EPOCH
    projection: Projection | None = None


class TokenMachine:
    """The counters of one start of a sequencer, which is `me`."""

    def __init__(self, me: SequencerID) -> None:
        self.me = me
        self._topics: dict[TopicID, _Topic] = {}
        # Those that the newest view does not have, without their projections: deleted, or not in an older copy of the store.
        self._gone: dict[TopicID, _Topic] = {}
        self._revision = 0

    def grant(self, topic: TopicID, epoch: Epoch, count: int) -> GrantedTokens:
        """`count` consecutive positions of one log stream, never granted before; 0: where the next ones would be."""
        known = self._topics.get(topic)
        if known is None or epoch > known.seen_epoch:
            raise UnknownEpoch(topic, epoch, self.epoch(topic))
        projection = known.projection
        if projection is None or epoch < known.newest_epoch or epoch != projection.epoch:
            raise NotSequencing(topic, epoch, known.newest_epoch)
        if count <= 0:
            if count < 0:
                raise InvalidRequest(f"{count} positions cannot be given: ask for 1 or more, or 0 to look")
            return GrantedTokens(known.next)
        most = min(projection.run_max, BATCH_ENTRIES_MAX)
        if count > most:
            raise BatchTooLarge("entries", count, most)
        begin = known.next
        first = projection.run_from(begin, count)
        known.next = GLSN(first + count)
        return GrantedTokens(first, first - begin)

    def epoch(self, topic: TopicID) -> Epoch:
        """The newest one that is known."""
        known = self._topics.get(topic)
        return known.newest_epoch if known is not None else NO_EPOCH

    def apply_view(self, view: ClusterView) -> None:
        """Apply the repository's view. In a projection that names this sequencer it counts on: above what it granted
        itself, and above whatever was written or trimmed before that epoch. Of a topic that is gone nothing is granted,
        and its counter is kept."""
        if view.revision < self._revision:
            return
        self._revision = view.revision
        present = {found.topic: found for found in view.topics}
        self._leave([topic for topic in self._topics if topic not in present])
        for projection in view.projections:
            known = self._topics.get(projection.topic)
            if known is None:
                known = self._topics[projection.topic] = self._gone.pop(projection.topic, _Topic())
            if projection.epoch <= known.seen_epoch:
                continue
            known.seen_epoch = projection.epoch
            known.newest_epoch = max(known.newest_epoch, projection.epoch)
            known.projection = None
            if projection.sequencer == self.me:
                trimmed = present[projection.topic].trimmed
                known.next = max(known.next, projection.begin, GLSN(trimmed + 1))
                known.projection = projection

    def apply_epochs(self, epochs: Iterable[tuple[TopicID, Epoch]]) -> bool:
        """The present epochs of all topics, which come with every lease. In an older epoch nothing is answered any
        more, not even the next position: in the newer one another sequencer may grant positions. False if a topic may
        be gone: only the view shows that, because these epochs may be older than the last ones."""
        present = dict(epochs)
        for topic, epoch in present.items():
            if (known := self._topics.get(topic) or self._gone.get(topic)) is not None:
                known.newest_epoch = max(known.newest_epoch, epoch)
        return self._topics.keys() <= present.keys()

    def _leave(self, topics: Iterable[TopicID]) -> None:
        """These are gone. Their projection is seen_epoch up again if they come back; what was granted of them stays granted."""
        for topic in topics:
            known = self._topics.pop(topic)
            self._gone[topic] = _Topic(known.next, known.newest_epoch)
        while len(self._gone) > GONE_TOPICS_MAX:
            del self._gone[next(iter(self._gone))]
