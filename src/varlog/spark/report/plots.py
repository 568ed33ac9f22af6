"""PURE. The plots of a report's page as SVG: columns, distributions, shares.

Their colours come from the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from varlog.spark.report.number_text import share_text, time_text
from varlog.spark.report.report_rules import ValueClass

WIDTH, HEIGHT = 960, 260
LEFT, RIGHT, TOP, BOTTOM = 84, 16, 14, 34
COLOURS = 8  # of the page: more streams than that share the last one
Text = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Column:
    """One interval: its begin, and the value of each series in it."""

    begin_us: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlotArea:
    """Maps values to coordinates of the plot."""

    high: float

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / self.high if self.high else 0.0)

    def x(self, share: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * share


def columns_plot(
    name: str,
    description: str,
    columns: Sequence[Column],
    width_us: int,
    series: Sequence[str],
    text: Text,
    unit: int = 1000,
) -> str:
    """Stacked columns over time. A bucket without a column is empty."""
    if not columns:
        return ""
    begin, end = columns[0].begin_us, columns[-1].begin_us + width_us
    steps = nice_steps(max(sum(column.values) for column in columns), unit)
    frame = PlotArea(steps[-1])
    parts = [_grid(frame, steps, text), _time_axis(frame, begin, end, width_us)]
    parts += [_column(frame, column, begin, end, width_us, series, text) for column in columns]
    return _svg(name, description, HEIGHT, parts)


def _column(
    frame: PlotArea, column: Column, begin: int, end: int, width_us: int, series: Sequence[str], text: Text
) -> str:
    left = frame.x((column.begin_us - begin) / (end - begin))
    wide = max(frame.x((column.begin_us - begin + width_us) / (end - begin)) - left - 0.8, 0.6)
    parts, below = [], 0.0
    for number, value in enumerate(column.values):
        if value:
            top, bottom = frame.y(below + value), frame.y(below)
            parts.append(_rect(left, top, wide, bottom - top, f"s{min(number, COLOURS - 1)}"))
            below += value
    description = [f"{time_text(column.begin_us, width_us)}: {text(sum(column.values))}"]
    if len(series) > 1:
        description += [
            f"{one}: {text(value)}" for one, value in zip(series, column.values, strict=True) if value
        ]
    hover = _rect(left, TOP, wide, HEIGHT - TOP - BOTTOM, "hover", "\n".join(description))
    return "".join([*parts, hover])


def distribution_plot(
    name: str,
    description: str,
    classes: Sequence[ValueClass],
    text: Text,
    base: float,
    marks: Sequence[tuple[str, int]],
) -> str:
    """How many values there are of each size, on a scale of powers of `base`. Marks: quantiles."""
    filled = [found for found in classes if found.high > 0]
    if not filled:
        return ""
    doublings = _by_half_doubling(filled)
    low, high = min(doublings) / 2, (max(doublings) + 1) / 2
    steps = nice_steps(max(doublings.values()))
    frame = PlotArea(steps[-1])

    def x(value: float) -> float:
        return frame.x((math.log2(value) - low) / (high - low))

    parts = [_grid(frame, steps, lambda value: f"{value:,.0f}"), _power_axis(frame, low, high, base, text)]
    for half, count in sorted(doublings.items()):
        left, right = x(2 ** (half / 2)), x(2 ** ((half + 1) / 2))
        told_of = f"{text(2 ** (half / 2))} to {text(2 ** ((half + 1) / 2))}: {count:,}"
        parts.append(
            _rect(
                left + 0.4,
                frame.y(count),
                right - left - 0.8,
                HEIGHT - BOTTOM - frame.y(count),
                "s0",
                told_of,
            )
        )
    parts += [_mark(label, x(max(value, 1)), row) for row, (label, value) in enumerate(marks)]
    return _svg(name, description, HEIGHT, parts)


def _by_half_doubling(classes: Sequence[ValueClass]) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in classes:
        half = math.floor(math.log2(max(one.low, 1)) * 2)
        found[half] = found.get(half, 0) + one.count
    return found


def shares_plot(name: str, description: str, rows: Sequence[tuple[str, float, float]], equal: float) -> str:
    """Two bars per row: its share of the entries, and of the bytes. A line marks equal shares."""
    height, widest = TOP + 30 * len(rows) + BOTTOM, max((max(a, b) for _, a, b in rows), default=0.0)
    steps = nice_steps(widest)
    frame = PlotArea(steps[-1])
    parts = []
    for step in steps:
        x = frame.x(step / frame.high)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        parts.append(_label(x, height - BOTTOM + 18, share_text(step), _anchor(x)))
    for number, (label, entries, size) in enumerate(rows):
        top = TOP + 30 * number + 4
        parts.append(_label(LEFT - 8, top + 15, label, "end"))
        for at, (value, colour, of) in enumerate(((entries, "s0", "entries"), (size, "s1", "bytes"))):
            wide = frame.x(value / frame.high) - LEFT
            parts.append(
                _rect(LEFT, top + 11 * at, wide, 10, colour, f"{label}: {share_text(value)} of the {of}")
            )
    if len(rows) > 1:
        fair = frame.x(equal / frame.high)
        parts.append(
            f'<line class="mark" x1="{fair:.1f}" x2="{fair:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>'
        )
    return _svg(name, description, height, parts)


def nice_steps(high: float, unit: int = 1000) -> list[float]:
    """0, and round steps up to `high` or just above it; round in thousands, or in powers of another `unit`."""
    if high <= 0:
        return [0.0, 1.0]
    if unit != 1000 and high >= unit:
        scale = unit ** math.floor(math.log(high, unit))
        return [step * scale for step in nice_steps(high / scale)]
    rough = high / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [step * number for number in range(math.ceil(high / step * (1 - 1e-9)) + 1)]


def _grid(frame: PlotArea, steps: Sequence[float], text: Text) -> str:
    lines = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{frame.y(step):.1f}" y2="{frame.y(step):.1f}"/>'
        + _label(LEFT - 8, frame.y(step) + 4, text(step), "end")
        for step in steps
    ]
    return "".join(lines)


def _time_axis(frame: PlotArea, begin: int, end: int, width_us: int) -> str:
    """Begin, end, and three times between, each at the beginning of a column."""
    count = max(round((end - begin) / width_us), 1)
    numbers = sorted({round(count * part / 4) for part in range(5)})
    labels = []
    for number in numbers:
        x = frame.x(number / count)
        labels.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}"/>'
        )
        labels.append(
            _label(x, HEIGHT - BOTTOM + 20, time_text(begin + number * width_us, width_us), _anchor(x))
        )
    return "".join(labels)


def _power_axis(frame: PlotArea, low: float, high: float, base: float, text: Text) -> str:
    per_power = math.log2(base)
    stride = max(1, math.ceil((high - low) / per_power / 10))
    powers = [
        power
        for power in range(math.ceil(low / per_power), math.floor(high / per_power) + 1)
        if power % stride == 0
    ]
    if len(powers) < 2:  # all values are close together
        powers = [low / per_power, high / per_power]  # type: ignore[list-item]
    parts = []
    for power in powers:
        x = frame.x((power * per_power - low) / (high - low))
        parts.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}"/>'
        )
        parts.append(_label(x, HEIGHT - BOTTOM + 20, text(base**power), _anchor(x)))
    return "".join(parts)


def _anchor(x: float) -> str:
    """A label at the edge of the plot stays inside it."""
    return "start" if x < LEFT + 1 else "end" if x > WIDTH - RIGHT - 30 else "middle"


def _mark(label: str, x: float, row: int) -> str:
    """A line with its name; names of lines that are close to each other are in different rows."""
    y = TOP + 10 + 15 * row
    right = x > WIDTH - 160
    return f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>' + _label(
        x - 5 if right else x + 5, y, label, "end" if right else "start", "marked"
    )


def _rect(x: float, y: float, width: float, height: float, colour: str, description: str = "") -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    if not description:
        return f'<rect class="{colour}" {size}/>'
    return f'<rect class="{colour}" {size}><title>{escape(description)}</title></rect>'


def _label(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(name: str, description: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-labelledby="{name}-title {name}-description" viewBox="0 0 {WIDTH} {height}" '
        f'xmlns="http://www.w3.org/2000/svg"><title id="{name}-title">{escape(name.replace("-", " "))}</title>'
        f'<desc id="{name}-description">{escape(description)}</desc>{"".join(parts)}</svg>'
    )
