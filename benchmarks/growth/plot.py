"""Draws a report about growth: a panel a sweep, throughput and latencies against the load, on log axes.

Needs matplotlib: pip install 'varlog[plot]'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")  # no display is needed, and none is looked for
# A line of text stays text, and two runs over the same figures write the same file.
matplotlib.rcParams["svg.fonttype"] = "none"
matplotlib.rcParams["svg.hashsalt"] = "varlog"

from matplotlib import pyplot as plt  # noqa: E402 - the backend is chosen first
from matplotlib.ticker import NullFormatter  # noqa: E402

from benchmarks.growth.cliffs import cliffs_of  # noqa: E402
from benchmarks.growth.report import FIGURES, load_text  # noqa: E402
from benchmarks.growth.sweeps import SWEEPS, Point, Sweep, points_of  # noqa: E402

WIDTH_IN, PANEL_IN, COLUMNS = 11.0, 3.0, 2
RATE_COLOURS = ("#4c78a8", "#72b7b2", "#54a24b")
LATENCY_COLOURS = ("#e45756", "#f2a0a0", "#9d755d", "#d6b5a5", "#888888")
CLIFF_COLOUR = "#b279a2"


def draw(report: Mapping[str, Any], target: Path) -> None:
    """Throughput as full lines on the left axis, latencies as dashed ones on the right; a cliff is a band across its step."""
    found = points_of(report)
    if not found:
        raise ValueError("the report has no sweep: measure one first")
    rows = -(-len(found) // COLUMNS)
    figure, panels = plt.subplots(rows, COLUMNS, figsize=(WIDTH_IN, PANEL_IN * rows), squeeze=False)
    for panel in panels.flat[len(found) :]:
        panel.set_visible(False)
    for panel, (name, points) in zip(panels.flat, found.items(), strict=False):
        _draw_one(panel, SWEEPS[name], points)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def _draw_one(panel: Any, sweep: Sweep, points: Sequence[Point]) -> None:
    loads = [point.load for point in points]
    other = panel.twinx()
    lines = []
    for axis, figures, colours, style in (
        (panel, (*sweep.rates, *sweep.shares), RATE_COLOURS, "o-"),
        (other, sweep.latencies, LATENCY_COLOURS, "s--"),
    ):
        for figure, colour in zip(figures, colours, strict=False):
            scale = 1e-6 if figure == "bytes_per_s" else 1e3 if figure in sweep.latencies else 1
            values = [point.figures[figure] * scale for point in points]
            label = _label(sweep, figure)
            lines += axis.plot(loads, values, style, color=colour, linewidth=1.2, markersize=3, label=label)
        axis.set_yscale("log")
        _open_up(axis)
        axis.tick_params(labelsize=7, which="both")
    for cliff in cliffs_of(sweep, points):
        panel.axvspan(cliff.load, cliff.next_load, color=CLIFF_COLOUR, alpha=0.25, linewidth=0)
    panel.set_xscale("log")
    panel.set_xticks(loads, [load_text(sweep, load) for load in loads], fontsize=7)
    panel.minorticks_off()
    panel.set_title(sweep.title, fontsize=9, loc="left")
    panel.set_xlabel(sweep.load, fontsize=8)
    panel.set_ylabel("a second", fontsize=8)
    other.set_ylabel("ms", fontsize=8)
    panel.legend(handles=lines, fontsize=6, loc="best", framealpha=0.7)


def _open_up(axis: Any) -> None:
    """At least two decades high: else a few percent would look like a cliff."""
    low, high = axis.get_ylim()
    if high < 100 * low:
        middle = math.sqrt(low * high)
        axis.set_ylim(middle / 10, middle * 10)
    axis.yaxis.set_minor_formatter(NullFormatter())


def _label(sweep: Sweep, figure: str) -> str:
    """`p99` alone says nothing in a legend."""
    head, _ = FIGURES[figure]
    if head != "p99":
        return head
    before = sweep.latencies[sweep.latencies.index(figure) - 1]
    return FIGURES[before][0].replace("p50", "p99")
