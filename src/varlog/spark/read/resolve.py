"""Resolver: which entries a batch read covers, measured.

Asks the log for its topics, tails and times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from varlog.model.errors import Trimmed
from varlog.spark.options import ReadOptions
from varlog.spark.read.origin import Origin
from varlog.spark.read.partition import Partition
from varlog.spark.read.planning_rules import MeasuredRange
from varlog.spark.read.resolve_rules import (
    Interval,
    Selection,
    TopicRange,
    TopicSpan,
    TrimmedOffsets,
    begin_of,
    check_dense,
    check_places,
    chosen_topics,
    end_of,
)

# Pieces that a range is measured in: enough for tasks of a good size in a log of a terabyte.
POINTS_MAX = 1024
# Attempts to plan a read that concurrent trims disturb, if it may skip what is trimmed.
TRIES = 5


class Resolver:
    """One read, resolved once."""

    def __init__(self, origin: Origin, options: ReadOptions, selection: Selection | None = None) -> None:
        self._origin = origin
        self._options = options
        self.archived: list[Partition] = []  # what comes from elsewhere than the log
        # A time in the options is a filter like any other; the slack only decides where to search.
        asked = Selection(time=_times(options))
        self._selection = asked if selection is None else asked.and_(selection)

    @property
    def time(self) -> Interval | None:
        """Only rows of this time are returned."""
        return self._selection.time

    def topics(self) -> list[TopicRange]:
        """Positions of each topic that are to be read, before any filter."""
        options = self._options
        names = chosen_topics(options.topics, options.topic_pattern, self._origin.topics())
        check_places("startingOffsets", options.starting, names)
        check_places("endingOffsets", options.ending, names)
        return [self._range(self._origin.span(name)) for name in names]

    def ranges(self) -> list[MeasuredRange]:
        """What is to be read, stream by stream, measured."""
        found: list[MeasuredRange] = []
        allowed = self._selection.topics
        for topic in self.topics():
            if allowed is None or topic.span.name in allowed:
                found += self._measured(topic)
        return found

    def _range(self, span: TopicSpan) -> TopicRange:
        strict = self._options.fail_on_data_loss
        begin = begin_of(self._options.starting, span, fail_on_data_loss=strict)
        end = end_of(self._options.ending, span, fail_on_data_loss=strict)
        return TopicRange(span, begin, end)

    def _measured(self, topic: TopicRange) -> list[MeasuredRange]:
        """A concurrent trim moves the begin, or is an error."""
        span = topic.span
        for _ in range(TRIES):
            begin, end = self._between_times(span, topic.begin, topic.end)
            try:
                return [
                    measured
                    for low, high in self._selection.within(begin, end)
                    for measured in self._streams(span, low, high)
                ]
            except Trimmed as trimmed:
                if self._options.fail_on_data_loss:
                    raise TrimmedOffsets(span.name, trimmed.position, trimmed.oldest) from trimmed
                span = self._origin.span(span.name)
                topic = TopicRange(span, max(topic.begin, span.oldest), topic.end)
        raise TrimmedOffsets(span.name, topic.begin, span.oldest)

    def _streams(self, span: TopicSpan, begin: int, end: int) -> Iterator[MeasuredRange]:
        allowed = self._selection.log_streams
        streams = [one for one in span.streams if allowed is None or one in allowed]
        counts = []
        for log_stream in streams:
            found = self._origin.measure(span.name, log_stream, begin, end, POINTS_MAX)
            counts.append(found.end - found.begin)
            points = tuple((int(llsn), before) for llsn, before in found.points)
            yield MeasuredRange(span.name, log_stream, found.begin, found.end, found.bytes, points)
        if allowed is None:
            check_dense(span.name, begin, end, counts)

    def _between_times(self, span: TopicSpan, begin: int, end: int) -> Interval:
        """The part of [begin, end) in which entries of the wanted time can be, if clocks are within the slack of each other."""
        if self.time is None or begin >= end:
            return begin, end
        low, high = self.time
        slack = self._options.slack_us
        first = self._place(span, low - slack, min) if low > 0 else begin
        last = self._place(span, high + slack, max) if high < _FOREVER else end
        return max(begin, first), min(end, last)

    def _place(self, span: TopicSpan, time_us: int, choose: Callable[[list[int]], int]) -> int:
        """The position of a time in the topic's order: before its first entry in any stream, or behind all of them."""
        places = [
            int(self._origin.find_time(span.name, log_stream, time_us).glsn) for log_stream in span.streams
        ]
        return choose(places) if places else span.end


_FOREVER = 1 << 62


def _times(options: ReadOptions) -> Interval | None:
    if options.starting_us is None and options.ending_us is None:
        return None
    begin = 0 if options.starting_us is None else options.starting_us
    return begin, _FOREVER if options.ending_us is None else options.ending_us
