"""Conditions: on what a run was measured. Printed with every result: figures without them mean nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

_PACKAGES = ("varlog", "uvloop", "msgspec", "numpy", "pyarrow", "pyspark")
# File systems that live in memory: a sync costs nothing there, so ratios to the raw limits say nothing.
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
BUSY_CORES_MAX = 0.3


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine, the software, the cluster."""

    cores: int
    busy_cores: float
    processor: str
    memory_bytes: int
    kernel: str
    file_system: str
    python: str
    versions: dict[str, str]
    where: str
    sync: str

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    @property
    def quiet(self) -> bool:
        """True where nothing else ran: a process that has to wait for a core measures the others' work."""
        return self.busy_cores < BUSY_CORES_MAX

    def lines(self) -> list[str]:
        """For people."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [
            f"{self.cores} cores ({self.processor}), {self.memory_bytes / 1e9:.0f} GB memory",
            f"Linux {self.kernel}, data on {self.file_system}",
            f"Python {self.python}, {versions}",
            f"{self.where}; {self.sync}",
        ]
        if not self.quiet:
            lines.append(
                f"other work took {self.busy_cores:.1f} cores before the run: figures are too low, ratios mean nothing"
            )
        if self.file_system in _IN_MEMORY:
            lines.append(f"the data directory is in memory ({self.file_system}): give --data on a real disk")
        return lines


def conditions_of(directory: Path, *, where: str, sync: str) -> Conditions:
    """What holds on this machine now."""
    return Conditions(
        cores=len(os.sched_getaffinity(0)),
        busy_cores=busy_cores(),
        processor=_processor(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        file_system=file_system_of(directory, Path("/proc/self/mounts").read_text("utf-8")),
        python=platform.python_version(),
        versions=_versions(),
        where=where,
        sync=sync,
    )


def busy_cores(seconds: float = 0.5) -> float:
    """How many cores were at work during the next `seconds`, on the whole machine."""
    before = busy_s(Path("/proc/stat").read_text("utf-8"))
    begin = time.perf_counter()
    time.sleep(seconds)
    after = busy_s(Path("/proc/stat").read_text("utf-8"))
    return (after - before) / (time.perf_counter() - begin)


def busy_s(stat: str) -> float:
    """Seconds that all cores together have worked, out of the text of /proc/stat. Waiting for a disk is not work."""
    user, nice, system, _idle, _waiting, *others = map(int, stat.split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def file_system_of(directory: Path, mounts: str) -> str:
    """The type of the file system that holds `directory`, out of the text of /proc/self/mounts."""
    resolved = directory.resolve()
    best, found = -1, "unknown"
    for line in mounts.splitlines():
        fields = line.split(" ")
        mounted = Path(fields[1].replace("\\040", " "))
        # The last mount on a place hides the earlier ones, so an equal length wins.
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, found = len(mounted.parts), fields[2]
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed as a package"
    return versions
