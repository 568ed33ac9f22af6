"""StreamReader: offsets, tasks and rows of a stream, micro-batch by micro-batch.

Spark calls everything but `read` in one Python process that lives as long as the query: what is kept here is kept between calls.
"""

from __future__ import annotations

import asyncio
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

from varlog.client.log import Log
from varlog.model.errors import Trimmed, VarlogError
from varlog.model.lsn import LSN_MAX
from varlog.runtime.logging import get_logger, logfmt
from varlog.spark.connection import SparkConnection, connection_to
from varlog.spark.options import ReadOptions
from varlog.spark.read.partition import LogPartition, Partition
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
from varlog.spark.stream.stream_topics import StreamTopics

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
        self._sound: tuple[Offset, Offset] | None = None  # start and end that were just seen to be in the log

    @cached_property
    def _topics(self) -> StreamTopics:
        return StreamTopics(self.options)

    @cached_property
    def _mark(self) -> ReaderMark:
        return ReaderMark(connection_to(self.options.where), self.options.reader)

    # --- How far --------------------------------------------------------------------------------------------------------

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
        """Spark knows one limit at a time, and hands it back: that there is one says that all of the options' are meant."""
        options = self.options
        if options.trigger_records_max or options.trigger_bytes_max or options.trigger_records_min:
            return ReadMaxRows(options.trigger_records_max or LSN_MAX)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._topics.look_now()
        self._until = {name: topic.end for name, topic in self._topics.now().items()}

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        given, now = Offset.of_json(start), self._topics.now()
        begin = self._footing(given, now)
        end = self._end(begin, now, self._limits(limit))
        self._latest = replace(
            begin, places={name: TopicOffset(topic.topic, topic.end) for name, topic in now.items()}
        )
        if end == given:
            # Everything before `start` is done, or Spark would not ask for what comes behind it.
            self._mark.move(given)
            return start
        self._sound = (given, end) if begin == given else None
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
        # Too few to wait for more, and no more come: the rest is taken as it is.
        records_min = options.trigger_records_min if self._until is None else 0
        return Limits(options.trigger_records_max, options.trigger_bytes_max, records_min)

    def _footing(self, offset: Offset, now: Mapping[str, TopicNow]) -> Offset:
        """`offset`, if the log still has what comes behind it; without failOnDataLoss what comes next that it has."""
        check_topics(offset, self.options.topics, self.options.topic_pattern)
        found = resume_point(offset, self._topics.cluster, now)
        for loss in found.losses:
            if self.options.fail_on_data_loss:
                raise loss
            logger.warning(logfmt("goes on although data is lost", loss=loss))
        return found.offset

    # --- What -----------------------------------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        begin, stop = Offset.of_json(start), Offset.of_json(end)
        options = self.options
        try:
            # What `latestOffset` has just looked at need not be looked at again; a restart begins here.
            ranges = self._topics.ranges(*self._readable(begin, stop, trusted=self._sound == (begin, stop)))
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
        return self._footing(begin, now), self._footing(end, now)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partition.read() if isinstance(partition, Partition) else iter(())

    def commit(self, end: Json) -> None:
        self._mark.move(Offset.of_json(end))

    # --- Where to begin -------------------------------------------------------------------------------------------------

    def _first(self, name: str, topic: TopicNow) -> int:
        if self.options.starting_us is not None:
            # What is earlier is left out by each task; the slack decides from where on it is looked for.
            since_us = self.options.starting_us - self.options.slack_us
            return min(max(self._topics.first_since(name, since_us), topic.oldest), topic.end)
        span = TopicSpan(name, topic.topic, topic.oldest, topic.end, ())
        return begin_of(self.options.starting, span, fail_on_data_loss=self.options.fail_on_data_loss)


# ReaderMark: tells the log how far a named reader is, for `varlog status` and for trims that respect it.
#
# Nothing depends on it in time: a position that nobody takes now is told with the next one, and the query goes on.

# So long one telling may take, and after one that failed it is not tried again for so long.
TELL_S = 3.0
AGAIN_S = 5.0


class ReaderMark:
    """The reader named `reader`, in all topics of one query; "" tells nothing."""

    def __init__(self, connection: SparkConnection, reader: str) -> None:
        self._connection = connection
        self._reader = reader
        self._told: dict[str, TopicOffset] = {}
        self._again_at_s = 0.0

    def move(self, offset: Offset) -> None:
        """Everything before `offset` is done with."""
        news = {name: place for name, place in offset.places.items() if self._told.get(name) != place}
        if news and self._reader:
            self._connection.run(
                self._tell([(self._connection.log(name), name, place) for name, place in news.items()])
            )

    async def _tell(self, news: list[tuple[Log, str, TopicOffset]]) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._again_at_s:
            return
        for log, name, place in news:
            try:
                await log.set_reader(self._reader, place.glsn - 1, timeout_s=TELL_S)
                self._told[name] = place
            except VarlogError as error:
                self._again_at_s = loop.time() + AGAIN_S
                logger.warning(
                    logfmt("could not tell how far it is", topic=name, reader=self._reader, error=error)
                )
