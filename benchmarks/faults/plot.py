"""Draws throughput over time around each fault, from a JSON report of benchmarks.faults.

    python benchmarks/faults/plot.py REPORT.json docs/faults.svg

Needs matplotlib: pip install 'varlog[plot]'.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")  # no display is needed, and none is looked for
# A line of text stays text, and two runs over the same figures write the same file.
matplotlib.rcParams["svg.fonttype"] = "none"
matplotlib.rcParams["svg.hashsalt"] = "varlog"

from matplotlib import pyplot as plt  # noqa: E402 - the backend is chosen first

WIDTH_IN, PANEL_IN = 9.0, 2.1


def with_series(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The results that have something to draw."""
    return [result for result in report["results"] if result.get("series")]


def draw(report: dict[str, Any], target: Path) -> None:
    """One panel per fault, one below the other, over the seconds since the kill."""
    results = with_series(report)
    if not results:
        raise ValueError("the report has no series: it must be one of `python -m benchmarks.faults --json`")
    figure, panels = plt.subplots(
        len(results), 1, figsize=(WIDTH_IN, PANEL_IN * len(results)), sharex=True, squeeze=False
    )
    for panel, result in zip(panels[:, 0], results, strict=True):
        _draw_one(panel, result)
    panels[-1, 0].set_xlabel("seconds since kill -9")
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def _draw_one(panel: Any, result: dict[str, Any]) -> None:
    series, measured = result["series"], result["measured"]
    panel.fill_between(series["second"], series["appends_per_s"], step="mid", color="#4c78a8", linewidth=0)
    panel.axvline(0, color="#e45756", linewidth=1.2)
    # One on each side of its line: they may lie close to each other.
    for figure, words, side in (
        ("back_s", "process back", "right"),
        ("healed_s", "all replicas run", "left"),
    ):
        panel.axvline(measured[figure], color="#888888", linewidth=0.8, linestyle=":")
        panel.annotate(
            words, (measured[figure], 1), xycoords=("data", "axes fraction"), fontsize=7, rotation=90,
            ha=side, va="top", color="#222222",
        )  # fmt: skip
    panel.axhline(measured["before_appends_per_s"], color="#888888", linewidth=0.6)
    panel.set_title(
        f"{result['title']}: {measured['pause_s']:.2f} s without an append", fontsize=9, loc="left"
    )
    panel.set_ylabel("appends/s", fontsize=8)
    panel.set_ylim(bottom=0)
    panel.margins(x=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    draw(json.loads(arguments.report.read_text("utf-8")), arguments.target)


if __name__ == "__main__":
    main()
