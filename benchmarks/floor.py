"""The floor of one append on this machine: the same messages and syncs between as many processes, and nothing else.

    python benchmarks/floor.py [--appends 3000] [--data DIR]

A client, a primary, two backups and a repository: plain blocking sockets, no event loop, no framing, no checks. The client sends
1 KiB to the primary; it forwards to the backups; each of the three writes and syncs, then reports to the repository; the repository
writes and syncs, then notifies the primary, which answers. What varlog takes longer than this is what varlog does; what this takes
longer than one write and sync is what the machine takes for the messages.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ENTRY_BYTES = 1088
REPORT = b"r" * 40
COMMIT = b"c" * 56
ANSWER = b"a" * 27


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of one loopback connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


def take(end: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes."""
    data = end.recv(size, socket.MSG_WAITALL)
    if len(data) != size:
        raise SystemExit(0)  # the other side has ended
    return data


def writer(path: Path) -> Callable[[bytes], None]:
    """Writes and syncs behind what it wrote before, into reserved space, as a replica does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, 64 * 1024 * 1024)
    os.fsync(fd)
    offset = 0

    def write(data: bytes) -> None:
        nonlocal offset
        os.pwrite(fd, data, offset)
        os.fdatasync(fd)
        offset += len(data)

    return write


def run(directory: Path, appends: int) -> list[float]:
    """Seconds of each append."""
    client, primary = pair()
    to_backups, from_primary = zip(*(pair() for _ in range(2)), strict=True)
    to_repository, from_replicas = zip(*(pair() for _ in range(3)), strict=True)

    def backup(number: int) -> None:
        write = writer(directory / f"backup{number}")
        while True:
            write(take(from_primary[number], ENTRY_BYTES))
            to_repository[number + 1].sendall(REPORT)

    def lead() -> None:
        write = writer(directory / "primary")
        while True:
            data = take(primary, ENTRY_BYTES)
            for end in to_backups:
                end.sendall(data)
            write(data)
            to_repository[0].sendall(REPORT)
            take(to_repository[0], len(COMMIT))
            primary.sendall(ANSWER)

    def order() -> None:
        write = writer(directory / "repository")
        while True:
            for end in from_replicas:
                take(end, len(REPORT))
            write(COMMIT)
            from_replicas[0].sendall(COMMIT)

    children = [fork(lambda: backup(0)), fork(lambda: backup(1)), fork(lead), fork(order)]
    try:
        data, took = os.urandom(ENTRY_BYTES), []
        for _ in range(appends):
            begin = time.perf_counter()
            client.sendall(data)
            take(client, len(ANSWER))
            took.append(time.perf_counter() - begin)
        return took[appends // 10 :]
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--appends", type=int, default=3000)
    parser.add_argument("--data", type=Path, default=Path())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.data) as directory:
        alone = writer(Path(directory) / "alone")
        raw = []
        for _ in range(1000):
            begin = time.perf_counter()
            alone(bytes(1024))
            raw.append(time.perf_counter() - begin)
        took = run(Path(directory), options.appends)
    raw_s, floor_s = statistics.median(raw), statistics.median(took)
    sys.stdout.write(
        f"one write+fdatasync p50 {raw_s * 1e3:.2f} ms; one bare append p50 {floor_s * 1e3:.2f} ms, {floor_s / raw_s:.1f} of it\n"
    )


if __name__ == "__main__":
    main()
