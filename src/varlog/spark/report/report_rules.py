"""PURE. TopicReport: the figures of a report, and how they are computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise


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
    """What one log stream got in one interval."""

    number: int
    log_stream: int
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Busy:
    """A interval in which something arrived: its first and last arrival."""

    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class Silence:
    """A interval in which nothing arrived."""

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
    """What was appended to a topic, and when. Positions [begin, end); times in microseconds since 1970; rates per second.

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


# PURE. The figures of a report: quantiles from classes of values, widths of buckets, silences, and how uneven streams are.

# Values are counted in classes, a fixed number per doubling: a quantile is wrong by less than a class, and by nothing where a class
# holds one value.
CLASSES_PER_DOUBLING = 16
GAPS_MAX = 10

_WIDTHS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)
_WIDTHS_H = (1, 2, 3, 6, 12, 24, 48, 96, 168)
_WIDTHS_US = (
    *(width * 1000 for width in _WIDTHS_MS),
    *(width * 1_000_000 for width in _WIDTHS_S),
    *(width * 3_600_000_000 for width in _WIDTHS_H),
)
DAY_US = 86_400_000_000


def class_sql(value: str) -> str:
    """SQL for the number of a value's class; 0 and less have one of their own."""
    return (
        f"CASE WHEN {value} < 1 THEN -1 ELSE CAST(floor(log2({value}) * {CLASSES_PER_DOUBLING}) AS INT) END"
    )


def class_of(value: int) -> int:
    """The same number, here."""
    return -1 if value < 1 else math.floor(math.log2(value) * CLASSES_PER_DOUBLING)


def bucket_width_us(first_us: int, last_us: int, buckets: int) -> int:
    """The smallest width that people count in, of which `buckets` cover the time."""
    for width in _WIDTHS_US:
        # One more than needed: the first bucket begins at a round time, which is before the first arrival.
        if (last_us - first_us) // width + 1 < buckets:
            return width
    return DAY_US * math.ceil((last_us - first_us + 1) / DAY_US / max(buckets - 1, 1))


def quantiles(classes: Iterable[ValueClass], total: int) -> Quantiles:
    """Of all values; `total` is their sum."""
    ordered = sorted(classes)
    count = sum(found.count for found in ordered)
    if not count:
        return Quantiles()
    p50, p90, p99, p999 = (quantile(ordered, share) for share in (0.5, 0.9, 0.99, 0.999))
    return Quantiles(total / count, ordered[0].low, p50, p90, p99, p999, ordered[-1].high)


def quantile(ordered: Sequence[ValueClass], share: float) -> int:
    """The smallest value that `share` of the values do not exceed; inside a class as if it were evenly filled."""
    rank = max(1, math.ceil(share * sum(found.count for found in ordered)))
    for found in ordered:
        if rank <= found.count:
            inside = (rank - 1) / (found.count - 1) if found.count > 1 else 0.0
            return round(found.low + (found.high - found.low) * inside)
        rank -= found.count
    return ordered[-1].high if ordered else 0


def merged_classes(classes: Iterable[tuple[int, ValueClass]]) -> list[ValueClass]:
    """One class for each number, over all streams."""
    found: dict[int, ValueClass] = {}
    for number, one in classes:
        had = found.get(number)
        found[number] = (
            one
            if had is None
            else ValueClass(min(had.low, one.low), max(had.high, one.high), had.count + one.count)
        )
    return [found[number] for number in sorted(found)]


def between(busy: Sequence[Busy]) -> Iterator[Silence]:
    """The silences between intervals in which something arrived."""
    ordered = sorted(busy, key=lambda one: one.first_us)
    for before, after in pairwise(ordered):
        if after.first_us > before.last_us:
            yield Silence(before.last_us, after.first_us)


def longest(silences: Iterable[Silence], count: int = GAPS_MAX) -> tuple[Silence, ...]:
    return tuple(sorted(silences, key=lambda gap: (-gap.length_us, gap.begin_us))[:count])


def skew(values: Sequence[int]) -> Skew:
    """Over all streams, those without an entry too."""
    if not values or not sum(values):
        return Skew()
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return Skew(deviation / mean, max(values) / mean)


# PURE. Numbers as people read them: counts, bytes, times and durations.

_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_DURATIONS_US = ((86_400e6, "d"), (3_600e6, "h"), (60e6, "min"), (1e6, "s"), (1e3, "ms"))


def count_text(value: float) -> str:
    return _scaled(value, _COUNTS, "")


def bytes_text(value: float) -> str:
    return _scaled(value, _BYTES, "B")


def duration_text(value_us: float) -> str:
    return _scaled(value_us, _DURATIONS_US, "µs")


def time_text(time_us: int, width_us: int = 1) -> str:
    """UTC, as exactly as steps of `width_us` need."""
    time = datetime.fromtimestamp(time_us / 1_000_000, UTC)
    if width_us >= 86_400_000_000:
        return f"{time:%Y-%m-%d}"
    if width_us >= 60_000_000:
        return f"{time:%Y-%m-%d %H:%M}"
    if width_us >= 1_000_000:
        return f"{time:%Y-%m-%d %H:%M:%S}"
    return f"{time:%Y-%m-%d %H:%M:%S}.{time_us % 1_000_000 // 1000:03d}"


def share_text(share: float) -> str:
    return f"{share * 100:.1f} %"


def _scaled(value: float, units: tuple[tuple[float, str], ...], smallest: str) -> str:
    for size, unit in units:
        if value >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{_three_digits(value)} {smallest}".rstrip()


def _three_digits(value: float) -> str:
    if value >= 100 or value == round(value):
        return f"{value:.0f}"
    digits = f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return digits.rstrip("0").rstrip(".")
