"""PURE. The page of a report: one self-contained HTML file.

In light and dark; the numbers of every plot are in a table as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from varlog.spark.report.report_rules import (
    Quantiles,
    TopicReport,
    ValueClass,
    bytes_text,
    count_text,
    duration_text,
    share_text,
    time_text,
)

STREAMS_SHOWN = 24

_LIGHT = ("#2563c9", "#d9711c", "#1f8a5f", "#a23fb0", "#b08a12", "#1f94b5", "#c23b52", "#6d7480")
_DARK = ("#6ea8ff", "#f2a25c", "#58c99a", "#d38ae0", "#e0c04f", "#63cbe8", "#f0808f", "#a3abb8")

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --card: #f5f6f8; --ink: #1b1f27; --soft: #565e6c; --line: #d9dde3; LIGHT }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171c; --card: #1d2128; --ink: #e8eaee; --soft: #a4acb9; --line: #343a44; DARK }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px }
h1 { font-size: 1.7rem; margin: 0 0 .3rem } h2 { font-size: 1.15rem; margin: 2.6rem 0 .4rem }
p { margin: .3rem 0 } .soft { color: var(--soft) }
dl.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 1.4rem 0 }
dl.tiles div { background: var(--card); border-radius: 8px; padding: 12px 14px }
dt { color: var(--soft); font-size: .82rem } dd { margin: 0; font-size: 1.3rem; font-variant-numeric: tabular-nums }
figure { margin: .6rem 0 } svg { width: 100%; height: auto; display: block }
figcaption { color: var(--soft); font-size: .9rem }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 0; margin: .4rem 0; font-size: .9rem }
ul.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px }
.label, .marked { font-size: 12.5px; fill: var(--soft) } .marked { fill: var(--ink) }
.grid { stroke: var(--line) } .tick { stroke: var(--soft) } .mark { stroke: var(--ink); stroke-dasharray: 4 3 }
.hover { fill: transparent } .hover:hover { fill: var(--ink); fill-opacity: .12 }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left } thead th { color: var(--soft); font-weight: 600 }
summary { cursor: pointer; color: var(--soft); font-size: .9rem; margin: .3rem 0 }
"""


def page(report: TopicReport) -> str:
    """The whole file."""
    parts = [_head(report)]
    if report.entries:
        parts += [_tiles(report), _over_time(report), _sizes(report), _arrivals(report), _streams(report)]
    else:
        parts.append("<p>There are no entries.</p>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>varlog: {escape(report.topic)}</title><style>{_style()}</style></head>\n"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _style() -> str:
    light, dark = (" ".join(f"--s{n}: {value};" for n, value in enumerate(c)) for c in (_LIGHT, _DARK))
    fills = " ".join(f".s{n} {{ fill: var(--s{n}); background: var(--s{n}) }}" for n in range(COLOURS))
    return _STYLE.replace("LIGHT", light).replace("DARK", dark) + fills


def _head(report: TopicReport) -> str:
    where = f"Cluster {report.cluster}, positions {report.begin} to {report.end - 1}"
    when = (
        f", appended from {time_text(report.first_us)} to {time_text(report.last_us)} UTC"
        if report.entries
        else ""
    )
    return f'<h1>Topic {escape(report.topic)}</h1><p class="soft">{where}{when}.</p>'


def _tiles(report: TopicReport) -> str:
    tiles = (
        ("Entries", f"{report.entries:,}"),
        ("Bytes", bytes_text(report.bytes)),
        ("Time", duration_text(report.last_us - report.first_us)),
        ("Entries a second", count_text(report.entries_rate)),
        ("Bytes a second", bytes_text(report.bytes_rate)),
        ("Fullest second", f"{report.peak_entries:,}"),
        ("Fullest over mean", f"{report.burst:.1f} ×"),
        ("Median entry", bytes_text(report.size.p50)),
    )
    return (
        f'<dl class="tiles">{"".join(f"<div><dt>{n}</dt><dd>{escape(v)}</dd></div>" for n, v in tiles)}</dl>'
    )


def _over_time(report: TopicReport) -> str:
    names = [f"stream {one.log_stream}" for one in report.streams]
    seconds = report.bucket_us / 1e6
    entries = _columns(report, [(b.number, b.log_stream, b.entries / seconds) for b in report.buckets])
    size = _columns(report, [(b.number, b.log_stream, b.bytes / seconds) for b in report.buckets])
    width = duration_text(report.bucket_us)
    top, most = max(sum(one.values) for one in entries), max(sum(one.values) for one in size)
    rows = [
        (time_text(a.begin_us, report.bucket_us), count_text(sum(a.values)), bytes_text(sum(b.values)))
        for a, b in zip(entries, size, strict=True)
    ]
    plot = columns_plot(
        "entries-per-second",
        f"Entries a second in steps of {width}; the most is {count_text(top)}.",
        entries,
        report.bucket_us,
        names,
        count_text,
    )
    more = columns_plot(
        "bytes-per-second",
        f"Bytes a second in steps of {width}; the most is {bytes_text(most)}.",
        size,
        report.bucket_us,
        names,
        bytes_text,
        1024,
    )
    return (
        f"<h2>Entries a second</h2>{_figure(plot, f'Each column is {width}. Times are UTC.')}{_legend(names)}"
        f"<h2>Bytes a second</h2>{_figure(more, f'Each column is {width}.')}"
        + _folded("These columns as a table", _table(("begin", "entries/s", "bytes/s"), rows))
    )


def _columns(report: TopicReport, cells: Iterable[tuple[int, int, float]]) -> list[Column]:
    """A column for each interval between the first and the last, also for those without an entry."""
    place = {one.log_stream: number for number, one in enumerate(report.streams)}
    last = max(bucket.number for bucket in report.buckets)
    values = [[0.0] * len(place) for _ in range(last + 1)]
    for number, log_stream, value in cells:
        values[number][place[log_stream]] += value
    begin, width = report.bucket_begin_us, report.bucket_us
    return [Column(begin + number * width, tuple(found)) for number, found in enumerate(values)]


def _sizes(report: TopicReport) -> str:
    size = report.size
    marks = _marks(size, bytes_text)
    description = (
        f"Entry sizes: median {bytes_text(size.p50)}, 99 percent up to {bytes_text(size.p99)}, "
        f"largest {bytes_text(size.max)}."
    )
    plot = distribution_plot("entry-sizes", description, report.sizes, bytes_text, 2.0, marks)
    row = [bytes_text(v) for v in (size.min, size.mean, size.p50, size.p90, size.p99, size.p999, size.max)]
    return (
        f"<h2>Entry sizes</h2>{_figure(plot, description)}{_table(_QUANTILES, [('bytes of an entry', *row)])}"
    )


_QUANTILES = ("", "min", "mean", "p50", "p90", "p99", "p99.9", "max")


def _arrivals(report: TopicReport) -> str:
    wait = report.between_arrivals_us
    marks = _marks(wait, duration_text)
    description = (
        f"Time between one append and the next: {report.arrivals:,} arrivals, median {duration_text(wait.p50)}, 99 percent within "
        f"{duration_text(wait.p99)}, longest {duration_text(wait.max)}."
    )
    plot = distribution_plot("time-between-arrivals", description, report.waits, duration_text, 10.0, marks)
    row = [duration_text(v) for v in (wait.min, wait.mean, wait.p50, wait.p90, wait.p99, wait.p999, wait.max)]
    gaps = [
        (time_text(gap.begin_us), time_text(gap.end_us), duration_text(gap.length_us))
        for gap in report.silences
    ]
    return (
        f"<h2>Arrivals</h2>{_figure(plot, description)}{_table(_QUANTILES, [('between arrivals', *row)])}"
        f"<h2>Longest silences</h2>{_table(('from', 'to', 'length'), gaps)}"
    )


def _streams(report: TopicReport) -> str:
    shown = sorted(report.streams, key=lambda one: -one.bytes)[:STREAMS_SHOWN]
    rows = [(f"stream {one.log_stream}", one.entries_share, one.bytes_share) for one in shown]
    description = (
        f"Entries vary between streams by {share_text(report.entries_skew.variation)} of the mean, bytes by "
        f"{share_text(report.bytes_skew.variation)}; the largest stream has {report.bytes_skew.largest:.2f} times the mean's "
        "bytes. The dashed line is an equal share."
    )
    table = [
        (
            f"stream {one.log_stream}",
            f"{one.entries:,}",
            share_text(one.entries_share),
            bytes_text(one.bytes),
            share_text(one.bytes_share),
            bytes_text(one.size.p50),
            bytes_text(one.size.p99),
            time_text(one.last_us) if one.entries else "never",
        )
        for one in report.streams
    ]
    head = ("", "entries", "share", "bytes", "share", "p50", "p99", "last append")
    return (
        f"<h2>Log streams</h2>{_figure(shares_plot('shares-of-streams', description, rows, 1 / len(report.streams)), description)}"
        f"{_legend(['entries', 'bytes'])}{_table(head, table)}"
    )


def _marks(values: Quantiles, text: Text) -> list[tuple[str, int]]:
    return [(f"p50 {text(values.p50)}", values.p50), (f"p99 {text(values.p99)}", values.p99)]


def _figure(plot: str, caption: str) -> str:
    return f"<figure>{plot}<figcaption>{escape(caption)}</figcaption></figure>"


def _legend(names: Sequence[str]) -> str:
    shown = list(names[: COLOURS - 1]) + (["others"] if len(names) > COLOURS else list(names[COLOURS - 1 :]))
    items = "".join(f'<li><i class="s{n}"></i>{escape(name)}</li>' for n, name in enumerate(shown))
    return f'<ul class="legend">{items}</ul>' if len(names) > 1 else ""


def _folded(name: str, content: str) -> str:
    return f"<details><summary>{escape(name)}</summary>{content}</details>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>'


# PURE. The plots of a report's page as SVG: columns, distributions, shares.
#
# Their colours come from the page.

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
        label = f"{text(2 ** (half / 2))} to {text(2 ** ((half + 1) / 2))}: {count:,}"
        parts.append(
            _rect(
                left + 0.4,
                frame.y(count),
                right - left - 0.8,
                HEIGHT - BOTTOM - frame.y(count),
                "s0",
                label,
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
