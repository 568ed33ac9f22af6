"""Disks of real processes that are soon full, or slow while a file says so."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from varlog.cli import serve
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.process import ServerProcess
from varlog.model.limits import MIB

FILLER = "filler"


class NoSmallDisk(Exception):
    """This machine, or this user, may not mount one; the message says what was refused."""


class SmallDisk:
    """A tmpfs of the given size in MiB. Entering mounts it, leaving unmounts it, even if something still has a file of it open."""

    def __init__(self, path: Path, size_mib: int) -> None:
        self.path = path
        self._size_mib = size_mib

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            _run("mount", "-t", "tmpfs", "-o", f"size={self._size_mib}m", "varlog-test", str(self.path))
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoSmallDisk(f"{error}: {getattr(error, 'stderr', '')}".strip()) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _run("umount", "--lazy", str(self.path))

    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """A file of another program takes the space, except for this many bytes."""
        with (self.path / FILLER).open("ab", buffering=0) as filler:
            while (room := self.free_bytes() - leave_bytes) > 0:
                try:
                    filler.write(bytes(min(room, MIB)))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return

    def free(self) -> None:
        """The other's file is gone."""
        (self.path / FILLER).unlink(missing_ok=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)


# A server whose disk is slow while a file says so: each of its syncs takes that many seconds longer.
#
# python -m varlog.testing.faulty_disk FILE vsn start …


@dataclass(frozen=True)
class SlowDiskPlan(ClusterPlan):
    """A cluster whose disks can be made slow, each alone, while it runs."""

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
            name, (str(self._file(name)), *arguments), log, module="varlog.testing.faulty_disk"
        )


if __name__ == "__main__":
    delay_file, sync = Path(sys.argv.pop(1)), os.fdatasync

    def slow_sync(descriptor: int) -> None:
        if delay_file.exists():
            time.sleep(float(delay_file.read_text("utf-8")))
        sync(descriptor)

    os.fdatasync = slow_sync  # type: ignore[assignment]
    getattr(serve, f"run_{sys.argv.pop(1)}")()
