"""PURE. What a report says: nouns without behaviour, for the job that finds them, the page and the command that show them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ValueClass:
    """`count` values between `low` and `high`, both inclusive; classes do not overlap."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, slots=True)
class Quantiles:
    """How values are spread."""

    mean: float = 0.0
    min: int = 0
    p50: int = 0
    p90: int = 0
    p99: int = 0
    p999: int = 0
    max: int = 0


NO_VALUES = Quantiles()


@dataclass(frozen=True, slots=True)
class Bucket:
    """What one log stream got in one stretch of time."""

    number: int
    log_stream: int
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Busy:
    """A stretch of time in which something arrived: its first and last arrival."""

    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class Silence:
    """A stretch of time in which nothing arrived."""

    begin_us: int
    end_us: int

    @property
    def length_us(self) -> int:
        return self.end_us - self.begin_us


@dataclass(frozen=True, slots=True)
class Skew:
    """How uneven streams are: `variation` is the standard deviation over the mean (0: all equal), `largest` the largest one over
    the mean."""

    variation: float = 0.0
    largest: float = 0.0


NO_SKEW = Skew()


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One log stream's part of the topic."""

    log_stream: int
    entries: int
    bytes: int
    entries_share: float
    bytes_share: float
    first_us: int
    last_us: int
    size: Quantiles


@dataclass(frozen=True, slots=True)
class TopicReport:
    """What was appended to a topic, and when. Positions [begin, end); times in microseconds since 1970; rates a second.

    An arrival is a time at which something was appended: a batch has one. `peak_entries`, `peak_bytes`: of the fullest second.
    """

    topic: str
    cluster: int
    begin: int
    end: int
    entries: int = 0
    bytes: int = 0
    first_us: int = 0
    last_us: int = 0
    entries_rate: float = 0.0
    bytes_rate: float = 0.0
    peak_entries: int = 0
    peak_bytes: int = 0
    burst: float = 0.0
    size: Quantiles = NO_VALUES
    sizes: tuple[ValueClass, ...] = ()
    arrivals: int = 0
    between_arrivals_us: Quantiles = NO_VALUES
    waits: tuple[ValueClass, ...] = ()
    silences: tuple[Silence, ...] = ()
    entries_skew: Skew = NO_SKEW
    bytes_skew: Skew = NO_SKEW
    streams: tuple[StreamFigures, ...] = ()
    bucket_us: int = 0
    bucket_begin_us: int = 0
    buckets: tuple[Bucket, ...] = ()
    page: str = ""
