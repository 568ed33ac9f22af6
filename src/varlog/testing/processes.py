"""Real processes for tests: run a command to its end, and see who is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import psutil

# What a test waits for, only so that nothing hangs: a machine with other work may stand still for ten seconds, and more than once.
PATIENCE_S = 120.0


def command(
    module: str, arguments: Sequence[str], *, timeout_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """Run `python -m varlog.cli…` to its end."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
    )


def children_of(pid: int) -> list[psutil.Process]:
    """The processes that this one has started."""
    return psutil.Process(pid).children(recursive=True)


def living(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended: neither gone nor waiting to be buried."""
    return [found for found in processes if found.is_running() and _status(found) != psutil.STATUS_ZOMBIE]


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE
