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
