"""The target topic of a copy, which keeps the positions of its source.

It has one log stream, and only the copy writes to it. In a topic with one log stream, positions are
consecutive from its first one on. So a copy needs no record of its own: its progress is the end of the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

import varlog
from varlog.model.cluster import Topic
from varlog.model.errors import PreconditionFailed, Trimmed
from varlog.model.lsn import GLSN

COLUMNS = ("glsn", "timestamp", "data")


def find_target(address: str, topic: str, first: int) -> Topic | None:
    """The topic, if it exists and can be such a copy; None if it has to be created."""
    with varlog.admin(address) as admin:
        found = admin.view().topic_named(topic)
        if found is None:
            return None
        streams = len(admin.streams(topic))
    if found.sequenced:
        raise PreconditionFailed(
            f"topic {topic!r} at {address} is sequenced, and a copy that keeps positions needs a committed one: copy into a topic "
            "that does not exist yet"
        )
    if streams != 1:
        raise PreconditionFailed(
            f"topic {topic!r} at {address} has {streams} log streams, and a copy that keeps positions needs exactly one: copy into "
            "a topic that does not exist yet"
        )
    if found.first > first:
        raise PreconditionFailed(
            f"the first position of topic {topic!r} at {address} is {found.first}, and the copy begins at {first}: copy into a "
            "topic that does not exist yet"
        )
    return found


def create_target(address: str, topic: str, first: int) -> Topic:
    """The same; created if missing. Its first position is `first`, so that every position is kept."""
    found = find_target(address, topic, first)
    if found is not None:
        return found
    with varlog.admin(address) as admin:
        return admin.create_topic(topic, streams=1, first=GLSN(first))


def check_last(log: varlog.Log, data: bytes, time_us: int) -> None:
    """Refuse a topic with foreign entries: its newest entry must equal the one at that position of the source."""
    newest = log.tail()
    try:
        entry = log.read(newest)
    except Trimmed:
        return
    if entry.data != data or entry.time_us != time_us:
        raise PreconditionFailed(
            f"topic {log.topic.name!r} differs at position {newest} from what it is to be a copy of: others have "
            "written to it; copy into a topic that does not exist yet"
        )


def write_copy(rows: DataFrame, address: str, topic: str) -> None:
    """Write consecutive rows to their positions. Existing entries are compared, and left as they are.

    One task does it: one log stream appends one entry after the other anyway.
    """
    target = {"address": address, "topic": topic, "positions": "keep"}
    ordered = rows.select(*COLUMNS).sortWithinPartitions("glsn")
    ordered.write.format("varlog").mode("append").options(**target).save()
