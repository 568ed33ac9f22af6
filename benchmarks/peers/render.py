"""Writes the peers' section of benchmarks/journal.md, between its markers, and its plots into docs/."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.plots import draw_all
from benchmarks.peers.samples import Findings
from benchmarks.peers.tables import section
from benchmarks.render import JOURNAL, plot_link, rendered

DOCS = Path(__file__).parents[2] / "docs"
SECTION = "peers"


def render(findings: Findings, page: Path = JOURNAL, docs: Path = DOCS) -> None:
    """Replace what an earlier run has written."""
    plots = "\n\n".join(plot_link(caption, path, page) for path, caption in draw_all(findings, docs))
    text = section(findings) + (f"\n\n{plots}" if plots else "")
    page.write_text(rendered(page.read_text("utf-8"), text, SECTION), "utf-8")
