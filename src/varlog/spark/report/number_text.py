"""PURE. Numbers as people read them: counts, bytes, times and durations."""

from __future__ import annotations

from datetime import UTC, datetime

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
