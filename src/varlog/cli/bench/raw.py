"""Raw limits of the machine: what the data directory and loopback can do at best. Results are told as ratios to these.

The disk is written through the same door and in the same way as a replica writes: into space reserved before, at
explicit offsets, fdatasync after each write. Nothing else of varlog takes part.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from varlog.cli.bench.figures import median, percentile
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
    """The median of each figure: a round that fell into somebody else's burst of work does not count."""
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
