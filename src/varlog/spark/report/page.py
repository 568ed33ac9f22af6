"""PURE. The page of a report: one self-contained HTML file.

In light and dark; the numbers of every plot are in a table as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from varlog.spark.report.number_text import bytes_text, count_text, duration_text, share_text, time_text
from varlog.spark.report.plots import COLOURS, Column, Text, columns_plot, distribution_plot, shares_plot
from varlog.spark.report.report_rules import Quantiles, TopicReport

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
