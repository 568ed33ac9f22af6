"""A server whose disk is slow while a file says so: each of its syncs takes so many seconds longer.

python -m varlog.testing.slow_disk FILE vsn start …
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from varlog.cli import serve
from varlog.cli.cluster_plan import ClusterPlan
from varlog.cli.process import ServerProcess


@dataclass(frozen=True)
class SlowDiskPlan(ClusterPlan):
    """A cluster whose disks can be made slow, one by one, while it runs."""

    def slow_down(self, name: str, seconds: float) -> None:
        """From now on; 0: no longer."""
        path = self._file(name)
        path.with_suffix(".new").write_text(str(seconds), "utf-8")
        path.with_suffix(".new").replace(path)

    def _file(self, name: str) -> Path:
        return self.data / f"{name}.slow"

    def _process(self, name: str, *arguments: str) -> ServerProcess:
        log = self.data / "logs" / f"{name}.log"
        return ServerProcess(
            name, (str(self._file(name)), *arguments), log, module="varlog.testing.slow_disk"
        )


if __name__ == "__main__":
    told, sync = Path(sys.argv.pop(1)), os.fdatasync

    def slow_sync(descriptor: int) -> None:
        if told.exists():
            time.sleep(float(told.read_text("utf-8")))
        sync(descriptor)

    os.fdatasync = slow_sync  # type: ignore[assignment]
    getattr(serve, f"run_{sys.argv.pop(1)}")()
