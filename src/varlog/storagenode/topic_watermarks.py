"""TopicWatermarks: newest ordered and trimmed position of each topic.

As this node received them from the repository. Both only grow.
"""

from __future__ import annotations

from varlog.model.ids import TopicID
from varlog.model.lsn import GLSN, NO_GLSN


class TopicWatermarks:
    """Watermarks by topic. `received` is false until the repository's first message: until then this node knows no trims."""

    def __init__(self) -> None:
        self._high: dict[TopicID, GLSN] = {}
        self._trimmed: dict[TopicID, GLSN] = {}
        self.received = False

    def high_watermark(self, topic: TopicID) -> GLSN:
        return self._high.get(topic, NO_GLSN)

    def trimmed(self, topic: TopicID) -> GLSN:
        return self._trimmed.get(topic, NO_GLSN)

    def raise_high(self, topic: TopicID, glsn: GLSN) -> None:
        if glsn > self.high_watermark(topic):
            self._high[topic] = glsn

    def raise_trimmed(self, topic: TopicID, glsn: GLSN) -> bool:
        """True if the trim point moved."""
        if glsn <= self.trimmed(topic):
            return False
        self._trimmed[topic] = glsn
        return True
