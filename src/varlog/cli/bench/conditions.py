"""Conditions: on what a run was measured. Printed with every result: figures without them mean nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

_PACKAGES = ("varlog", "uvloop", "msgspec", "numpy", "pyarrow")
# File systems that live in memory: a sync costs nothing there, so ratios to the raw limits say nothing.
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine, the software, the cluster."""

    cores: int
    load: float
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

    def lines(self) -> list[str]:
        """For people."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [
            f"{self.cores} cores ({self.processor}), {self.memory_bytes / 1e9:.0f} GB memory",
            f"load before the run {self.load:.1f} (other work on the machine); Linux {self.kernel}, {self.file_system}",
            f"Python {self.python}, {versions}",
            f"{self.where}; {self.sync}",
        ]
        if self.file_system in _IN_MEMORY:
            lines.append(f"the data directory is in memory ({self.file_system}): give --data on a real disk")
        return lines


def conditions_of(directory: Path, *, where: str, sync: str) -> Conditions:
    """What holds on this machine now."""
    return Conditions(
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        processor=_processor(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        file_system=file_system_of(directory, Path("/proc/self/mounts").read_text("utf-8")),
        python=platform.python_version(),
        versions=_versions(),
        where=where,
        sync=sync,
    )


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
