"""StreamReader: offsets, tasks and rows of a stream, micro-batch by micro-batch.

Spark calls everything but `read` in one Python process that lives as long as the query: what is kept here is kept between calls.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from varlog.client.admin import Admin
from varlog.client.log import Log
from varlog.model.entry import StreamRange
from varlog.model.errors import Trimmed, Unavailable, UnknownTopic, VarlogError
from varlog.model.lsn import LSN_MAX
from varlog.runtime.logging import get_logger, logfmt
from varlog.spark.connection import SparkConnection, connection_to
from varlog.spark.options import ReadOptions
from varlog.spark.read.origin import settled_mark
from varlog.spark.read.partition import LogPartition, Partition
from varlog.spark.read.planning_rules import MeasuredRange
from varlog.spark.read.resolve_rules import TopicSpan, begin_of, check_places, chosen_topics
from varlog.spark.stream.offsets import Json, Offset, TopicNow, TopicOffset, check_topics, resume_point
from varlog.spark.stream.stream_rules import (
    Limits,
    admitted,
    backlog,
    moved,
    new_topics,
    records_that_fit,
    shared,
    split_records,
)

if TYPE_CHECKING:
    import pyarrow as pa

FOREVER_US = 1 << 62

logger = get_logger("spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. Picklable until it is first asked for an offset: `read` runs in other processes."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._until: dict[str, int] | None = None  # for Trigger.AvailableNow: nothing behind these is read
        self._latest: Offset | None = None
        self._checked: tuple[Offset, Offset] | None = None  # start and end that were just found in the log

    @cached_property
    def _topics(self) -> StreamTopics:
        return StreamTopics(self.options)

    @cached_property
    def _mark(self) -> ReaderMark:
        return ReaderMark(connection_to(self.options.where), self.options.reader)

    # --- offsets --------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Json:
        options, now = self.options, self._topics.now()
        if len(now) < len(options.topics):
            chosen_topics(options.topics, "", self._topics.known())
        check_places("startingOffsets", options.starting, sorted(now))
        places = {name: TopicOffset(topic.topic, self._first(name, topic)) for name, topic in now.items()}
        first = Offset(self._topics.cluster, places)
        self._mark.move(first)
        return first.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark knows one limit at a time, and passes it back: any limit stands for all of the options' limits."""
        options = self.options
        if options.trigger_records_max or options.trigger_bytes_max or options.trigger_records_min:
            return ReadMaxRows(options.trigger_records_max or LSN_MAX)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._topics.refresh()
        self._until = {name: topic.end for name, topic in self._topics.now().items()}

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        given, now = Offset.of_json(start), self._topics.now()
        begin = self._resumed(given, now)
        end = self._end(begin, now, self._limits(limit))
        self._latest = replace(
            begin, places={name: TopicOffset(topic.topic, topic.end) for name, topic in now.items()}
        )
        if end == given:
            # Everything before `start` is done, or Spark would not ask for what comes behind it.
            self._mark.move(given)
            return start
        self._checked = (given, end) if begin == given else None
        return end.to_json()

    def reportLatestOffset(self) -> Json | None:
        """Asked right after `latestOffset`: what that one found, for the query's progress."""
        return self._latest.to_json() if self._latest is not None else None

    def _end(self, begin: Offset, now: Mapping[str, TopicNow], limits: Limits) -> Offset:
        waiting = backlog(begin, now, self._until)
        records = admitted(waiting, limits)
        if limits.bytes_max and records:
            records = self._fitting(begin, waiting, records, limits.bytes_max)
        end = moved(begin, shared(waiting, records))
        # Named in an offset before they are read from: so the first of their micro-batches can be run again, too.
        arrived = new_topics(begin, now)
        if self._until is not None:
            arrived = {name: place for name, place in arrived.items() if name in self._until}
        return replace(end, places={**end.places, **arrived})

    def _fitting(self, begin: Offset, waiting: Mapping[str, int], records: int, bytes_max: int) -> int:
        search = records_that_fit(records, bytes_max)
        tried = next(search)
        while True:
            ranges = self._topics.ranges(begin, moved(begin, shared(waiting, tried)))
            try:
                tried = search.send(sum(one.bytes for one in ranges))
            except StopIteration as found:
                return int(found.value)

    def _limits(self, limit: ReadLimit) -> Limits:
        if isinstance(limit, ReadAllAvailable):
            return Limits()
        options = self.options
        # No more records come, so waiting for more makes no sense: the rest is read as it is.
        records_min = options.trigger_records_min if self._until is None else 0
        return Limits(options.trigger_records_max, options.trigger_bytes_max, records_min)

    def _resumed(self, offset: Offset, now: Mapping[str, TopicNow]) -> Offset:
        """`offset`, if the log still has what follows; without failOnDataLoss the next position that it has."""
        check_topics(offset, self.options.topics, self.options.topic_pattern)
        found = resume_point(offset, self._topics.cluster, now)
        for loss in found.losses:
            if self.options.fail_on_data_loss:
                raise loss
            logger.warning(logfmt("continuing although data is lost", loss=loss))
        return found.offset

    # --- rows -----------------------------------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        begin, stop = Offset.of_json(start), Offset.of_json(end)
        options = self.options
        try:
            # What `latestOffset` has just checked need not be checked again; a restart begins here.
            ranges = self._topics.ranges(*self._readable(begin, stop, trusted=self._checked == (begin, stop)))
        except Trimmed:
            ranges = self._topics.ranges(*self._readable(begin, stop, trusted=False))
        pieces = split_records(ranges, options.partitions_min, options.partition_records_max)
        since = None if options.starting_us is None else (options.starting_us, FOREVER_US)
        strict = options.fail_on_data_loss
        return [LogPartition(options.where, piece, time=since, fail_on_data_loss=strict) for piece in pieces]

    def _readable(self, begin: Offset, end: Offset, *, trusted: bool) -> tuple[Offset, Offset]:
        if trusted:
            return begin, end
        now = self._topics.now()
        return self._resumed(begin, now), self._resumed(end, now)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partition.read() if isinstance(partition, Partition) else iter(())

    def commit(self, end: Json) -> None:
        self._mark.move(Offset.of_json(end))

    # --- the begin ----------------------------------------------------------------------------------------------------

    def _first(self, name: str, topic: TopicNow) -> int:
        if self.options.starting_us is not None:
            # Earlier entries are left out by each task; the slack decides where to begin searching.
            since_us = self.options.starting_us - self.options.slack_us
            return min(max(self._topics.first_since(name, since_us), topic.oldest), topic.end)
        span = TopicSpan(name, topic.topic, topic.oldest, topic.end, ())
        return begin_of(self.options.starting, span, fail_on_data_loss=self.options.fail_on_data_loss)


# The deadline of one report, and the pause after one that failed.
REPORT_S = 3.0
RETRY_S = 5.0


class ReaderMark:
    """Reports the position of the named reader `reader` in all topics of one query, for `varlog status` and trims that
    respect it; "" reports nothing. Nothing waits for it: a report that fails is repeated with the next one, and the query
    continues."""

    def __init__(self, connection: SparkConnection, reader: str) -> None:
        self._connection = connection
        self._reader = reader
        self._reported: dict[str, TopicOffset] = {}
        self._retry_at_s = 0.0

    def move(self, offset: Offset) -> None:
        """Everything before `offset` was processed."""
        news = {name: place for name, place in offset.places.items() if self._reported.get(name) != place}
        if news and self._reader:
            self._connection.run(
                self._report([(self._connection.log(name), name, place) for name, place in news.items()])
            )

    async def _report(self, news: list[tuple[Log, str, TopicOffset]]) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at_s:
            return
        for log, name, place in news:
            try:
                await log.set_reader(self._reader, place.glsn - 1, timeout_s=REPORT_S)
                self._reported[name] = place
            except VarlogError as error:
                self._retry_at_s = loop.time() + RETRY_S
                logger.warning(
                    logfmt(
                        "the reader's position could not be reported",
                        topic=name,
                        reader=self._reader,
                        error=error,
                    )
                )


# StreamTopics: the topics of a stream, their ends, and ranges between offsets.
#
# Called at every trigger, so it asks little: one request per topic for its end, one per log stream for a range.

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
