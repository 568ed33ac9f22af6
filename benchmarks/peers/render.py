"""Writes the peers' section of docs/benchmarks.md, between its markers, and the plots beside it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.plots import draw_all
from benchmarks.peers.samples import Findings
from benchmarks.peers.tables import section
from benchmarks.render import rendered

DOCS = Path(__file__).parents[2] / "docs"
SECTION = "peers"


def render(findings: Findings, docs: Path = DOCS) -> None:
    """Replace what an earlier run has written."""
    page = docs / "benchmarks.md"
    plots = "\n\n".join(f"![{caption}]({path.name})" for path, caption in draw_all(findings, docs))
    text = section(findings) + (f"\n\n{plots}" if plots else "")
    page.write_text(rendered(page.read_text("utf-8"), text, SECTION), "utf-8")
