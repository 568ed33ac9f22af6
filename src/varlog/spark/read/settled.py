"""Where a topic ends, for good: a position that is kept elsewhere (a checkpoint, a plan) must never be beyond the log's own end.

The tail of a sequenced topic counts positions that were given and not written yet. If their appenders and the sequencer are lost
together, it falls back over them. Whoever has read a position has settled it: it is written, or junk, and the tail stays above it.
"""

from __future__ import annotations

from varlog.client.log import Log
from varlog.model.commit import TopicMark
from varlog.model.errors import JunkPosition, NotWritten, Trimmed, Unavailable

# A tail that falls back while it is looked at is looked at again so often.
LOOKS = 5


async def settled_mark(log: Log) -> TopicMark:
    """As `log.mark()`; the newest position is written, or was given up, for ever."""
    for _ in range(LOOKS):
        mark = await log.mark()
        if not log.topic.sequenced or mark.high_watermark <= max(mark.trimmed, log.topic.first - 1):
            return mark
        try:
            await log.read(mark.high_watermark)
        except (JunkPosition, Trimmed):
            return mark
        except NotWritten:
            continue
        return mark
    raise Unavailable(f"the end of topic {log.topic.name!r} changes all the time: ask again")
