"""How a service's process ends: by a signal, or by itself with an exit code when its service cannot go on."""

from __future__ import annotations

import subprocess
import sys

from varlog.testing.processes import PATIENCE_S

SCRIPT = """
import sys
from varlog.cli import serve

class Service:
    address = "here"
    async def start(self): pass
    async def stop(self): print("stopped", flush=True)
    async def wait_failed(self): return OSError("the disk is gone")

serve.run_service("vmr", "warning", Service)
"""


def test_a_service_that_cannot_go_on_ends_its_process_and_says_why() -> None:
    """A supervisor restarts what exits; a process that stays up without serving would never be noticed (law 10)."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout.split() == ["ready", "here", "stopped"]
    assert "the disk is gone" in ended.stderr
