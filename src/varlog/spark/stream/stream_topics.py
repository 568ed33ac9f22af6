"""StreamTopics: the topics of a stream, their ends, and ranges between offsets.

Called at every trigger, so it asks little: one request per topic for its end, one per log stream for a range.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from varlog.client.admin import Admin
from varlog.client.log import Log
from varlog.model.entry import StreamRange
from varlog.model.errors import Unavailable, UnknownTopic
from varlog.spark.connection import SparkConnection, connection_to
from varlog.spark.options import ReadOptions
from varlog.spark.read.origin import settled_mark
from varlog.spark.read.planning_rules import MeasuredRange
from varlog.spark.stream.offsets import Offset, TopicNow

# How often a pattern is matched against new topics.
MATCH_S = 1.0
# A long range is measured in pieces, so that a task can have several fetches in flight; a short one is one fetch.
POINTS_MAX = 256
RECORDS_A_POINT = 4096


class StreamTopics:
    """Lives in the Python process that plans one query, as long as the query runs."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection: SparkConnection = connection_to(options.where)
        self._matching: list[str] = []
        self._match_at_s = 0.0

    @property
    def cluster(self) -> int:
        return self._connection.admin().cluster

    def now(self) -> dict[str, TopicNow]:
        """The existing ones, by name."""
        logs = {name: log for name in self._names() if (log := self._log(name)) is not None}
        found = self._connection.run(_all_now(logs))
        return {name: topic for name, topic in found.items() if topic is not None}

    def known(self) -> list[str]:
        """Every topic of the cluster, read or not."""
        return [topic.name for topic in self._connection.run(self._connection.admin().view()).topics]

    def refresh(self) -> None:
        """Match the pattern again at the next call."""
        self._match_at_s = 0.0

    def ranges(self, start: Offset, end: Offset) -> list[MeasuredRange]:
        """What lies between two offsets."""
        spans = {
            name: (start.places[name].glsn, place.glsn)
            for name, place in end.places.items()
            # A topic that is new at `end` begins there.
            if name in start.places and start.places[name].topic == place.topic
        }
        logs = {name: self._connection.log(name) for name, (begin, stop) in spans.items() if begin < stop}
        return self._connection.run(_all_ranges(logs, spans))

    def first_since(self, name: str, time_us: int) -> int:
        """The position of the topic's first entry appended at or after `time_us`, or the one behind its newest."""
        return self._connection.run(_first_since(self._connection.fresh_log(name), time_us))

    def _log(self, name: str) -> Log | None:
        try:
            return self._connection.log(name)
        except UnknownTopic:
            return None  # the caller knows whether it must exist

    def _names(self) -> tuple[str, ...] | list[str]:
        if self._options.topics:
            return self._options.topics
        admin = self._connection.admin()
        return self._connection.run(self._find(admin))

    async def _find(self, admin: Admin) -> list[str]:
        """The topics that the pattern matches, at most `MATCH_S` old."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._match_at_s:
            fits = re.compile(self._options.topic_pattern).fullmatch
            self._matching = sorted(topic.name for topic in (await admin.view()).topics if fits(topic.name))
            self._match_at_s = now_s + MATCH_S
        return self._matching


async def _all_now(logs: Mapping[str, Log]) -> dict[str, TopicNow | None]:
    return dict(zip(logs, await asyncio.gather(*map(_now, logs.values())), strict=True))


async def _now(log: Log) -> TopicNow | None:
    try:
        mark = await settled_mark(log)
    except UnknownTopic:
        # The view is older than the topic's end; another topic may have its name by now.
        try:
            await log.connector.view()
            mark = await settled_mark(log)
        except UnknownTopic:
            return None
    first = log.topic.first
    return TopicNow(mark.topic, max(first, mark.trimmed + 1), max(first, mark.high_watermark + 1))


async def _all_ranges(logs: Mapping[str, Log], spans: Mapping[str, tuple[int, int]]) -> list[MeasuredRange]:
    found = await asyncio.gather(*(_ranges(name, log, *spans[name]) for name, log in logs.items()))
    return [one for ranges in found for one in ranges]


async def _ranges(name: str, log: Log, begin: int, end: int) -> list[MeasuredRange]:
    points = min(POINTS_MAX, (end - begin) // RECORDS_A_POINT)
    for fresh in (False, True):
        if fresh:
            await log.connector.view()
        streams = log.streams
        sizes = await asyncio.gather(
            *(log.connector.measure(one.log_stream, begin, end, points) for one in streams)
        )
        # Positions are dense (law 4): if some are in none of the streams, there is a log stream that this view lacks.
        if sum(one.end - one.begin for one in sizes) == end - begin:
            return [_range(name, one.log_stream, is_) for one, is_ in zip(streams, sizes, strict=True)]
    raise Unavailable(
        f"the log streams of topic {name!r} do not hold all of positions [{begin}, {end}): see `varlog status`"
    )


def _range(name: str, log_stream: int, size: StreamRange) -> MeasuredRange:
    points = tuple((int(llsn), before) for llsn, before in size.points)
    return MeasuredRange(name, log_stream, size.begin, size.end, size.bytes, points)


async def _first_since(log: Log, time_us: int) -> int:
    places = await asyncio.gather(*(log.connector.find_time(one.log_stream, time_us) for one in log.streams))
    return min((place.glsn for place in places), default=log.topic.first)
