"""Draws what benchmarks/ordering/scale.py measured: entries ordered a second, cut latency and the repository's load, over streams.

Needs matplotlib: pip install 'varlog[plot]'.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")  # no display is needed, and none is looked for
# A line of text stays text, and two runs over the same figures write the same file.
matplotlib.rcParams["svg.fonttype"] = "none"
matplotlib.rcParams["svg.hashsalt"] = "varlog"

from matplotlib import pyplot as plt  # noqa: E402 - the backend is chosen first

PAPER_PER_S = 52e6


def draw(report: dict[str, Any], target: Path) -> None:
    """Three panels side by side over the number of streams; other rates and node counts as points of their own."""
    lines = report["series"].get("streams", [])
    others = [row for name, rows in report["series"].items() if name in ("rates", "nodes") for row in rows]
    figure, panels = plt.subplots(1, 3, figsize=(11.0, 3.6))
    _entries(panels[0], lines, others)
    _latency(panels[1], lines, others)
    _work(panels[2], lines, others)
    for panel in panels:
        panel.set_xscale("log", base=4)
        panel.set_xlabel("log streams, 3 replicas each (emulated)", fontsize=8)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def _entries(panel: Any, lines: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    panel.plot(_streams(lines), [row["entries_per_s"] for row in lines], "o-", color="#4c78a8", markersize=4)
    panel.plot(_streams(others), [row["entries_per_s"] for row in others], "s", color="#f58518", markersize=4)
    for row in others:
        panel.annotate(
            f"{row['load']['rate']:.0f}/s", (row["load"]["streams"], row["entries_per_s"]), fontsize=6,
            xytext=(4, -2), textcoords="offset points",
        )  # fmt: skip
    panel.axhline(PAPER_PER_S, color="#e45756", linewidth=0.8, linestyle="--")
    panel.annotate("52 M/s", (64, PAPER_PER_S), fontsize=7, color="#e45756", va="bottom")
    panel.set_yscale("log")
    panel.set_title("entries ordered a second; line: 15 000/s a stream", fontsize=8, loc="left")


def _latency(panel: Any, lines: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    for figure, colour in (("p50_s", "#4c78a8"), ("p99_s", "#e45756")):
        panel.plot(
            _streams(lines), [row[figure] * 1e3 for row in lines], "o-", color=colour, markersize=4,
            label=figure.partition("_")[0],
        )  # fmt: skip
        panel.plot(
            _streams(others),
            [row[figure] * 1e3 for row in others],
            "s",
            color=colour,
            markersize=3,
            alpha=0.6,
        )
    panel.set_yscale("log")
    panel.legend(fontsize=7)
    panel.set_title("last replica's report to commit, ms", fontsize=8, loc="left")


def _work(panel: Any, lines: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    panel.plot(
        _streams(lines), [row["repository_cores"] for row in lines], "o-", color="#54a24b", markersize=4
    )
    panel.plot(
        _streams(others), [row["repository_cores"] for row in others], "s", color="#54a24b", markersize=3
    )
    panel.set_ylim(0, 1.2)
    panel.set_title("cores of the repository", fontsize=8, loc="left")


def _streams(rows: list[dict[str, Any]]) -> list[int]:
    return [row["load"]["streams"] for row in rows]
