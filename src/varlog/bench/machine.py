"""The machine under test: raw limits, conditions, usage of its processes.

The disk is written through the same interface and in the same way as a replica writes: into space reserved before, at
explicit offsets, fdatasync after each write. Nothing else of varlog takes part.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from varlog.bench.figures import median, percentile
from varlog.model.limits import KIB, MIB
from varlog.runtime.disk import OsDisk

SMALL_BYTES = 1 * KIB
BLOCK_BYTES = 1 * MIB
# One write and one sync at a time, one after the other, from one thread.
DEFINITION = (
    "raw: into a file whose space was reserved before, from one thread, fdatasync after each write: "
    "1 KiB at a time (latency), 1 MiB at a time (bandwidth = bytes / time); loopback: one TCP connection, "
    "one process to another, 1 MiB sends. MB = 10^6 bytes"
)


@dataclass(frozen=True, slots=True)
class RawLimits:
    """One round of measurement, or the median of several."""

    sync_p50_s: float
    sync_p99_s: float
    write_bytes_per_s: float
    loopback_bytes_per_s: float

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def combined(rounds: Sequence[RawLimits]) -> RawLimits:
    """The median of each figure: a round that fell into another program's burst of work does not count."""
    return RawLimits(
        median([one.sync_p50_s for one in rounds]),
        median([one.sync_p99_s for one in rounds]),
        median([one.write_bytes_per_s for one in rounds]),
        median([one.loopback_bytes_per_s for one in rounds]),
    )


def measure_raw(directory: Path, seconds: float) -> RawLimits:
    """One round, in about `seconds`."""
    latencies = sync_latencies(directory, seconds * 0.4)
    return RawLimits(
        percentile(latencies, 50),
        percentile(latencies, 99),
        write_bandwidth(directory, seconds * 0.4),
        loopback_bandwidth(seconds * 0.2),
    )


def sync_latencies(directory: Path, seconds: float, *, writes_max: int = 20_000) -> list[float]:
    """Seconds of each 1 KiB write + fdatasync."""
    data = os.urandom(SMALL_BYTES)
    path = directory / f"raw-latency-{os.getpid()}"
    file = OsDisk().open(path, create=True)
    try:
        file.reserve(writes_max * SMALL_BYTES)
        file.sync()
        latencies: list[float] = []
        end = time.perf_counter() + seconds
        while len(latencies) < writes_max and (begin := time.perf_counter()) < end:
            file.write_at([data], len(latencies) * SMALL_BYTES)
            file.sync()
            latencies.append(time.perf_counter() - begin)
    finally:
        file.close()
        path.unlink()
    warm_up = min(10, len(latencies) // 2)
    return latencies[warm_up:]


def write_bandwidth(directory: Path, seconds: float, *, blocks_max: int = 1024) -> float:
    """Bytes a second of 1 MiB writes, each with its fdatasync."""
    data = os.urandom(BLOCK_BYTES)
    path = directory / f"raw-bandwidth-{os.getpid()}"
    file = OsDisk().open(path, create=True)
    try:
        file.reserve(blocks_max * BLOCK_BYTES)
        file.sync()
        blocks = 0
        begin = time.perf_counter()
        while blocks < blocks_max and (blocks == 0 or time.perf_counter() < begin + seconds):
            file.write_at([data], blocks * BLOCK_BYTES)
            file.sync()
            blocks += 1
        elapsed = time.perf_counter() - begin
    finally:
        file.close()
        path.unlink()
    return blocks * BLOCK_BYTES / elapsed


# The sink takes everything and, once the sender has closed its side, says how much it was: the clock stops there.
_SINK = """
import socket, sys
taken, buffer = 0, bytearray(1 << 20)
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30) as connection:
    while got := connection.recv_into(buffer):
        taken += got
    connection.sendall(taken.to_bytes(8, "little"))
"""


def loopback_bandwidth(seconds: float) -> float:
    """Bytes a second through one TCP connection to another process on this machine."""
    data = memoryview(os.urandom(BLOCK_BYTES))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        port = str(server.getsockname()[1])
        with subprocess.Popen([sys.executable, "-S", "-c", _SINK, port]) as sink:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(30)
                begin = time.perf_counter()
                while time.perf_counter() < begin + seconds:
                    connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                taken = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
                elapsed = time.perf_counter() - begin
            sink.wait(timeout=30)
    return taken / elapsed


# Conditions: on what a run was measured. Printed with every result: figures without them mean nothing.

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


# What the kernel says of a process: memory, processor time, bytes written. Read from /proc.

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """One look at one process. `written_bytes` is what it made the kernel write to disk, since its start."""

    cpu_s: float
    written_bytes: int
    resident_bytes: int
    peak_bytes: int


def usage_of(pid: int) -> Usage:
    """Raises ProcessLookupError if the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
        io = Path(f"/proc/{pid}/io").read_text("utf-8")
    except FileNotFoundError as gone:
        raise ProcessLookupError(f"process {pid} has ended while it was measured") from gone
    return parse_usage(stat, status, io)


def parse_usage(stat: str, status: str, io: str) -> Usage:
    """Out of the texts of stat, status and io."""
    # The name in parentheses may hold spaces and parentheses itself: the fields start behind the last one.
    fields = stat[stat.rindex(")") + 2 :].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    sizes = _keyed(status)
    return Usage(
        cpu_s=cpu_s,
        written_bytes=int(_keyed(io)["write_bytes"]),
        resident_bytes=_kib(sizes.get("VmRSS", "0 kB")),
        peak_bytes=_kib(sizes.get("VmHWM", "0 kB")),
    )


def _keyed(text: str) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def _kib(size: str) -> int:
    return int(size.split()[0]) * 1024
