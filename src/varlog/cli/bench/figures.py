"""Figures: percentiles, rates and how they are written for people. No measuring here."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest measured value that at least `percent` of all values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values: a percentile of nothing is not a figure")
    if not 0 < percent <= 100:
        raise ValueError(f"a percentile is above 0 and at most 100, not {percent}")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[int(rank) - 1]


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    if not values:
        raise ValueError("no values: a median of nothing is not a figure")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def growth(series: Sequence[float]) -> float:
    """How much higher the last quarter of a series lies than its second quarter (the first is start-up), as medians."""
    if len(series) < 8:
        raise ValueError(f"{len(series)} samples are too few to tell growth from noise: at least 8")
    quarter = len(series) // 4
    return median(series[-quarter:]) - median(series[quarter : 2 * quarter])


def format_count(value: float) -> str:
    """A count or a rate for people: 1 234, 56 789 (three digits count, the rest is noise)."""
    return f"{value:,.0f}".replace(",", " ")


def format_ms(seconds: float) -> str:
    """A duration in milliseconds, three digits."""
    milliseconds = seconds * 1000
    return f"{milliseconds:.2f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def format_mb_s(bytes_per_s: float) -> str:
    """A bandwidth in 10^6 bytes a second."""
    return f"{bytes_per_s / 1e6:.0f} MB/s"


def format_mb(size_bytes: float) -> str:
    """A size in 10^6 bytes."""
    return f"{size_bytes / 1e6:.0f} MB"
