"""Tables."""

from __future__ import annotations
from benchmarks.peers.samples import Findings


def section(findings: Findings) -> str:
    return ""
