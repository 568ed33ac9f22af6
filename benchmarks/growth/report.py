"""The report for people: for each sweep a table, and in a sentence how it goes and what bounds it, by what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.growth.cliffs import Cliff, cliffs_of
from benchmarks.growth.cluster import CLIENT, MACHINE
from benchmarks.growth.sweeps import SWEEPS, Point, Sweep, points_of
from varlog.bench.figures import format_count, format_ms
from varlog.bench.machine import Conditions
from varlog.model.limits import GIB, KIB, MIB

COPIES = 3
# From these shares on something is as good as used up: what is left is lost in waiting for it.
CORES_FULL, PROCESS_FULL, DISK_FULL = 0.85, 0.85, 0.6

# Figure -> its head in a table, how it is written.
_RATE, _MS, _MB, _S = "rate", "ms", "mb", "s"
FIGURES = {
    "appends_per_s": ("appends/s", _RATE),
    "entries_per_s": ("entries/s", _RATE),
    "bytes_per_s": ("MB/s", _MB),
    "raw_bytes_per_s": ("the disk then, MB/s", _MB),
    "batch_p50_s": ("batch p50", _MS),
    "batch_p99_s": ("p99", _MS),
    "p50_s": ("append p50", _MS),
    "p99_s": ("p99", _MS),
    "topics_made_per_s": ("topics made/s", _RATE),
    "made_s": ("made in", _S),
    "read_p50_s": ("read p50", _MS),
    "read_p99_s": ("p99", _MS),
    "reopen_s": ("back after kill -9", _S),
    "live_per_s": ("entries/s live", _RATE),
    "live_p50_s": ("seen after, p50", _MS),
    "live_p99_s": ("p99", _MS),
}
# A sweep's own columns; what is a constant of the load says nothing.
COLUMNS = {
    "streams": ("appends_per_s", "bytes_per_s", "p50_s", "p99_s", "made_s"),
    "topics": (
        *("entries_per_s", "batch_p50_s", "batch_p99_s", "appends_per_s", "p50_s", "p99_s"),
        "topics_made_per_s",
    ),
    "appenders": ("appends_per_s", "bytes_per_s", "p50_s", "p99_s"),
    "entry": ("appends_per_s", "bytes_per_s", "p50_s", "p99_s"),
    "size": ("bytes_per_s", "raw_bytes_per_s", "p50_s", "p99_s", "read_p50_s", "read_p99_s", "reopen_s"),
    "readers": ("entries_per_s", "live_per_s", "live_p50_s", "live_p99_s"),
}


def report_text(report: Mapping[str, Any]) -> str:
    """The whole report as Markdown."""
    found = points_of(report)
    cliffs = cliffs_in(report)
    lines = [f"- {line}" for line in Conditions(**report["conditions"]).lines()]
    lines.append(
        f"- raw limits: 1 KiB write+fdatasync p50 {format_ms(report['raw']['sync_p50_s'])}, 1 MiB write+fdatasync "
        f"{report['raw']['write_bytes_per_s'] / 1e6:.0f} MB/s"
    )
    lines.append(f"- cliffs: {'; '.join(map(str, cliffs)) or 'none'}")
    for name, points in found.items():
        lines += ["", f"### {SWEEPS[name].title}", "", *sweep_told(SWEEPS[name], points, report)]
    return "\n".join(lines) + "\n"


def cliffs_in(report: Mapping[str, Any]) -> list[Cliff]:
    return [cliff for name, points in points_of(report).items() for cliff in cliffs_of(SWEEPS[name], points)]


def sweep_told(sweep: Sweep, points: Sequence[Point], report: Mapping[str, Any]) -> list[str]:
    columns = [column for column in COLUMNS[sweep.name] if column in points[0].figures]
    heads = [
        sweep.load,
        *(FIGURES[column][0] for column in columns),
        "cores: all, client, most loaded server",
    ]
    lines = [f"{sweep.what[0].upper()}{sweep.what[1:]}.", ""]
    lines.append("| " + " | ".join(heads) + " |")
    lines.append("|" + "--:|" * len(heads))
    for point in points:
        cells = [load_text(sweep, point.load), *(_cell(point, column) for column in columns), _cores(point)]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", f"{course(sweep, points)} {bound(points[-1], report)}"]


def load_text(sweep: Sweep, load: int) -> str:
    """Sizes in their units, counts as they are."""
    if sweep.name not in ("entry", "size"):
        return format_count(load)
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if load >= unit:
            return f"{load / unit:g} {name}"
    return f"{load} B"


def _cell(point: Point, column: str) -> str:
    value, kind = point.figures[column], FIGURES[column][1]
    if kind == _MS:
        return format_ms(value)
    if kind == _MB:
        return f"{value / 1e6:.3g}"
    return f"{value:.2f} s" if kind == _S else format_count(value)


def _cores(point: Point) -> str:
    server = _most_loaded(point)
    return f"{point.busy[MACHINE]:.1f}, {point.busy[CLIENT]:.1f}, {server} {point.busy[server]:.1f}"


def _most_loaded(point: Point) -> str:
    servers = [name for name in point.busy if name not in (CLIENT, MACHINE)]
    return max(servers, key=lambda name: point.busy[name])


def course(sweep: Sweep, points: Sequence[Point]) -> str:
    """From the first to the last point, and the best one between them."""
    figure = sweep.rates[0]
    first, last = points[0], points[-1]
    best = max(points, key=lambda point: point.figures[figure])
    head = FIGURES[figure][0]
    latency = sweep.latencies[0]
    return (
        f"From {load_text(sweep, first.load)} to {load_text(sweep, last.load)}: {head} {_cell(first, figure)} to "
        f"{_cell(last, figure)}, most of all {_cell(best, figure)} at {load_text(sweep, best.load)}; {FIGURES[latency][0]} "
        f"{_cell(first, latency)} to {_cell(last, latency)}."
    )


def bound(point: Point, report: Mapping[str, Any]) -> str:
    """What is used up at this point, by what was measured there."""
    cores, busy = report["conditions"]["cores"], point.busy
    server = _most_loaded(point)
    raw = point.figures.get("raw_bytes_per_s", report["raw"]["write_bytes_per_s"])
    written = COPIES * point.figures.get("bytes_per_s", 0.0) / raw
    if written >= DISK_FULL:
        return f"At the end the disk bounds it: the copies together write {written:.2f} of what one thread can write and sync."
    if busy[MACHINE] >= CORES_FULL * cores:
        return (
            f"At the end the processor bounds it: {busy[MACHINE]:.1f} of {cores} cores are at work, {busy[CLIENT]:.1f} of them for "
            f"the client, {busy[server]:.1f} for {server}."
        )
    for name, which in ((CLIENT, "the client process"), (server, f"the process {server}")):
        if busy[name] >= PROCESS_FULL:
            return f"At the end {which} bounds it: it has {busy[name]:.1f} of a core."
    return (
        f"At the end nothing is used up ({busy[MACHINE]:.1f} of {cores} cores, {written:.2f} of the disk's bandwidth): calls wait "
        "for syncs and messages, one after the other."
    )
