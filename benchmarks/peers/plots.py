"""The plots of the peers' section: latency against throughput, entry sizes, streams, copies, processor time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")  # no display is needed, and none is looked for
# A line of text stays text, and two runs over the same figures write the same file.
matplotlib.rcParams["svg.fonttype"] = "none"
matplotlib.rcParams["svg.hashsalt"] = "varlog"

from matplotlib import pyplot as plt  # noqa: E402 - the backend is chosen first

from benchmarks.peers.samples import Findings  # noqa: E402
from benchmarks.peers.systems import SYSTEMS, System  # noqa: E402
from benchmarks.peers.tables import APPENDERS, COPIED, SIZES, STREAMS, best_batch  # noqa: E402

WIDTH_IN, HEIGHT_IN = 9.0, 5.0
_COLOURS = {"varlog": "#4c78a8", "nats": "#e45756", "redis": "#f58518", "etcd": "#54a24b"}
_SIZE_BYTES = (100, 1024, 4096, 16384, 65536)


def draw_all(findings: Findings, directory: Path) -> list[tuple[Path, str]]:
    """The plots that there are figures for, each with its caption."""
    plots: Sequence[tuple[str, str, Callable[[Any, Findings], bool]]] = (
        ("peers-latency.svg", "Latency against throughput: 1, 4, 16, 64 and 256 appenders, 1 KiB", _latency),
        ("peers-sizes.svg", "Throughput against entry size: 64 appenders", _sizes),
        ("peers-streams.svg", "Throughput against streams: 64 appenders, 1 KiB", _streams),
        ("peers-copies.svg", "One copy and three: 64 appenders, 1 KiB", _copies),
        ("peers-cpu.svg", "Processor time of an entry, servers and client: 64 appenders, and batches", _cpu),
    )
    drawn = []
    for name, caption, draw in plots:
        figure = plt.figure(figsize=(WIDTH_IN, HEIGHT_IN))
        if draw(figure, findings):
            figure.suptitle(caption, fontsize=10, x=0.01, ha="left")
            figure.tight_layout()
            figure.savefig(directory / name, metadata={"Date": None})
            drawn.append((directory / name, caption))
        plt.close(figure)
    return drawn


def _style(system: System) -> dict[str, Any]:
    """A colour a family; solid: three synced copies, dashed: one, dotted: answered before the disk has it."""
    family = system.name.partition("-")[0]
    line = ":" if not system.synced else "-" if system.copies > 1 else "--"
    marker = {"varlog-sequenced-3": "s", "varlog-embedded": "^"}.get(system.name, "o")
    fill = "full" if system.copies > 1 else "none"
    return {
        "color": _COLOURS[family],
        "linestyle": line,
        "marker": marker,
        "fillstyle": fill,
        "markersize": 4,
        "linewidth": 1.4,
    }


def _lines(panel: Any, findings: Findings, points: Callable[[System], list[tuple[float, float]]]) -> bool:
    """One line a system that has two points at least."""
    drawn = False
    for system in SYSTEMS:
        found = points(system)
        if len(found) > 1:
            panel.plot(*zip(*found, strict=True), label=system.title, **_style(system))
            drawn = True
    panel.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    if drawn:
        panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return drawn


def _latency(figure: Any, findings: Findings) -> bool:
    panel = figure.subplots()

    def points(system: System) -> list[tuple[float, float]]:
        found = []
        for appenders in APPENDERS:
            rate = findings.spread(system.name, f"append-{appenders}", "entries_per_s")
            latency = findings.spread(system.name, f"append-{appenders}", "p50_s")
            if rate is not None and latency is not None:
                found.append((rate.median, latency.median * 1e3))
        return found if findings.values(system.name, "append-16", "p50_s") else []

    panel.set(xscale="log", yscale="log", xlabel="entries/s", ylabel="p50 of an append, ms")
    return _lines(panel, findings, points)


def _sizes(figure: Any, findings: Findings) -> bool:
    panel = figure.subplots()

    def points(system: System) -> list[tuple[float, float]]:
        found = []
        for size, (_, workload) in zip(_SIZE_BYTES, SIZES, strict=True):
            rate = findings.spread(system.name, workload, "bytes_per_s")
            if rate is not None:
                found.append((float(size), rate.median / 1e6))
        return found

    panel.set(xscale="log", yscale="log", xlabel="bytes an entry", ylabel="MB/s")
    panel.set_xticks(_SIZE_BYTES, [size for size, _ in SIZES])
    panel.minorticks_off()
    return _lines(panel, findings, points)


def _streams(figure: Any, findings: Findings) -> bool:
    panel = figure.subplots()

    def points(system: System) -> list[tuple[float, float]]:
        found = []
        for count, workload in STREAMS:
            rate = findings.spread(system.name, workload, "entries_per_s")
            if rate is not None:
                found.append((float(count), rate.median))
        return found

    panel.set(xscale="log", xlabel="streams", ylabel="entries/s")
    panel.set_xticks([count for count, _ in STREAMS], [str(count) for count, _ in STREAMS])
    panel.minorticks_off()
    drawn = _lines(panel, findings, points)
    panel.set_ylim(bottom=0)
    return drawn


def _copies(figure: Any, findings: Findings) -> bool:
    panel = figure.subplots()
    rows: list[tuple[str, float, float]] = []
    for title, one, three in COPIED:
        alone = findings.spread(one, "append-64", "entries_per_s")
        copied = findings.spread(three, "append-64", "entries_per_s")
        if alone is not None and copied is not None:
            rows.append((title, alone.median, copied.median))
    for number, (_, alone_rate, copied_rate) in enumerate(rows):
        panel.bar(number - 0.2, alone_rate, 0.38, color="#9ecae9", label="1 copy" if number == 0 else None)
        panel.bar(number + 0.2, copied_rate, 0.38, color="#4c78a8", label="3 copies" if number == 0 else None)
    if rows:
        panel.set_xticks(range(len(rows)), [title for title, _, _ in rows], fontsize=7)
        panel.set_ylabel("entries/s")
        panel.legend(fontsize=7)
    return bool(rows)


def _cpu(figure: Any, findings: Findings) -> bool:
    loads = (("append-64", "64 appenders"), ("batch", "batches of 1000"))
    rows = [
        system for system in SYSTEMS if findings.values(system.name, "append-64", "client_cpu_s_per_entry")
    ]
    if not rows:
        return False
    figure.set_figheight(0.25 * len(rows) + 1.2)
    panels = figure.subplots(1, len(loads), sharey=True)
    for panel, (load, title) in zip(panels, loads, strict=True):
        for number, system in enumerate(reversed(rows)):
            workload = best_batch(findings, system)[0] if load == "batch" else load
            servers = findings.spread(system.name, workload, "server_cpu_s_per_entry")
            client = findings.spread(system.name, workload, "client_cpu_s_per_entry")
            if servers is None or client is None:
                continue
            servers_us, client_us = servers.median * 1e6, client.median * 1e6
            label = ("servers", "client") if number == 0 else (None, None)
            panel.barh(number, servers_us, color="#4c78a8", label=label[0])
            panel.barh(number, client_us, left=servers_us, color="#f58518", label=label[1])
        panel.set(xlabel="µs an entry")
        panel.set_title(title, fontsize=8)
        panel.set_yticks(range(len(rows)), [system.title for system in reversed(rows)], fontsize=7)
    panels[0].legend(fontsize=7)
    return True
