"""PURE. TopicRange: which topics, positions and times a read covers.

Entries that were deleted on purpose (trimmed) and entries that are missing for no known reason are different errors: only the
first has a remedy in the options.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from varlog.model.errors import VarlogError
from varlog.spark.options import EARLIEST, LATEST, OffsetSpec, OptionError

# Names listed in an error; a log may have thousands.
NAMES_LISTED_MAX = 10


class TrimmedOffsets(VarlogError):
    """What is to be read was trimmed. `begin` 0: which position it was is not known."""

    def __init__(self, topic: str, begin: int, oldest: int) -> None:
        super().__init__(topic, begin, oldest)
        self.topic = topic
        self.begin = begin
        self.oldest = oldest

    def message(self) -> str:
        asked = f"position {self.begin} is" if self.begin else "entries before that are"
        return (
            f"topic {self.topic!r} is trimmed up to position {self.oldest - 1}, and {asked} to be read: "
            f"set option startingOffsets to 'earliest' or to {self.oldest} or more, set failOnDataLoss=false to read what is "
            f"left, or read its archive as well with option archive=PATH"
        )


class MissingOffsets(VarlogError):
    """What is to be read does not exist, and was not trimmed either: the wrong log, or lost entries."""

    def __init__(self, topic: str, what: str) -> None:
        super().__init__(topic, what)
        self.topic = topic
        self.what = what

    def message(self) -> str:
        return f"topic {self.topic!r}: {self.what}"


@dataclass(frozen=True, slots=True)
class TopicSpan:
    """A topic as it is now: positions [oldest, end) can be read, from these log streams. `topic` is its number."""

    name: str
    topic: int
    oldest: int
    end: int
    streams: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Positions [begin, end) of a topic, all of which exist."""

    span: TopicSpan
    begin: int
    end: int


def chosen_topics(names: Sequence[str], pattern: str, known: Sequence[str]) -> tuple[str, ...]:
    """The topics that options 'topic' or 'topicPattern' name, each once."""
    if pattern:
        matching = tuple(sorted(name for name in known if re.fullmatch(pattern, name)))
        if not matching:
            raise OptionError(f"option 'topicPattern' {pattern!r} matches no topic: {_listed(known)}")
        return matching
    for name in names:
        if name not in known:
            raise OptionError(f"option 'topic': there is no topic {name!r}: {_listed(known)}")
    return tuple(dict.fromkeys(names))


def check_places(option: str, place: OffsetSpec, topics: Sequence[str]) -> None:
    """Refuse positions of topics that are not read: a typing error would read the wrong entries."""
    for name in place if isinstance(place, dict) else ():
        if name not in topics:
            raise OptionError(
                f"option '{option}' has a position for topic {name!r}, which is not read: {_listed(topics)}"
            )


def begin_of(place: OffsetSpec, span: TopicSpan, *, fail_on_data_loss: bool) -> int:
    """Where a read begins in a topic."""
    at = place.get(span.name, EARLIEST) if isinstance(place, dict) else place
    if not isinstance(at, int):
        return span.oldest if at == EARLIEST else span.end
    if at > span.end and fail_on_data_loss:
        raise MissingOffsets(span.name, _beyond("startingOffsets", at, span))
    if at < span.oldest and fail_on_data_loss:
        raise TrimmedOffsets(span.name, at, span.oldest)
    return min(max(at, span.oldest), span.end)


def end_of(place: OffsetSpec, span: TopicSpan, *, fail_on_data_loss: bool) -> int:
    """Where it ends: the first position that is not read."""
    at = place.get(span.name, LATEST) if isinstance(place, dict) else place
    if not isinstance(at, int):
        return span.end if at == LATEST else span.oldest
    if at > span.end and fail_on_data_loss:
        raise MissingOffsets(span.name, _beyond("endingOffsets", at, span))
    return min(at, span.end)


def check_dense(topic: str, begin: int, end: int, counts: Sequence[int]) -> None:
    """Positions are dense: the streams together have as many entries of a range as the range is long."""
    if sum(counts) != end - begin:
        raise MissingOffsets(
            topic,
            f"of the {end - begin} positions from {begin} to {end - 1} its log streams have {sum(counts)}: entries are lost, or a "
            f"log stream was created in the meantime; read again, and see `varlog status` and `varlog spark audit`",
        )


def _beyond(option: str, at: int, span: TopicSpan) -> str:
    newest = f"the newest is {span.end - 1}" if span.end > span.oldest else "it is empty"
    return (
        f"option '{option}' is {at}, and {newest}: position {span.end} is the furthest that can be named, or say '{LATEST}'. If "
        f"it was there before, this is another log, or one that lost entries"
    )


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "there is none"
    more = f" and {len(names) - NAMES_LISTED_MAX} more" if len(names) > NAMES_LISTED_MAX else ""
    return f"there are {', '.join(sorted(names)[:NAMES_LISTED_MAX])}{more}"


# --- filters ------------------------------------------------------------------------------------------------------------

T = TypeVar("T")

# Half-open. Time is in microseconds since 1970.
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows with one of these topics and log streams, a position in one of these intervals, and a time in this one; None: any.
    `empty`: no row at all."""

    topics: frozenset[str] | None = None
    log_streams: frozenset[int] | None = None
    positions: tuple[Interval, ...] | None = None
    time: Interval | None = None
    empty: bool = False

    def and_(self, other: Selection) -> Selection:
        """Rows that both select."""
        return Selection(
            _both(self.topics, other.topics),
            _both(self.log_streams, other.log_streams),
            _common(self.positions, other.positions),
            _overlap(self.time, other.time),
            self.empty or other.empty,
        )

    def within(self, begin: int, end: int) -> list[Interval]:
        """Which positions of [begin, end) are left, in order."""
        found = _common(self.positions, ((begin, end),)) or ()
        return [] if self.empty else [(low, high) for low, high in found if low < high]


def _both(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _overlap(one: Interval | None, other: Interval | None) -> Interval | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one[0], other[0]), min(one[1], other[1])


def _common(one: Sequence[Interval] | None, other: Sequence[Interval] | None) -> tuple[Interval, ...] | None:
    """Intervals are in order and apart, in each of the two and in what they have in common."""
    if one is None or other is None:
        rest = other if one is None else one
        return None if rest is None else tuple(rest)
    pairs = [(max(a[0], b[0]), min(a[1], b[1])) for a in one for b in other]
    return tuple(sorted(pair for pair in pairs if pair[0] < pair[1]))
