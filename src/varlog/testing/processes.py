"""Real processes for tests: run a command, wait until ready, find survivors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

# What a test waits for, only so that nothing hangs: a busy machine may pause for ten seconds, and more than once.
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


@contextmanager
def started(
    arguments: Sequence[str], until: str, *, module: str = "varlog.cli"
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`varlog ARGUMENTS` that has printed a line with `until` in it, and everything up to there. Killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output = ""
        while until not in output:
            line = process.stdout.readline() if process.stdout is not None else ""
            if not line:
                raise AssertionError(process.communicate()[1])
            output += line
        yield process, output
    finally:
        process.kill()
        process.communicate()


def children_of(pid: int) -> list[psutil.Process]:
    """The processes that this one has started."""
    return psutil.Process(pid).children(recursive=True)


def living(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended: neither gone nor waiting to be buried."""
    return [found for found in processes if found.is_running() and _status(found) != psutil.STATUS_ZOMBIE]


def pause_process(pid: int) -> None:
    """SIGSTOP, and back once no thread of the process runs any more: until then it may still do what it was asked before."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE_S
    while not _stands_still(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} was stopped, and still runs")
        time.sleep(0.001)


def _stands_still(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task")
    if not threads.exists():
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    try:
        # The state is behind the name, which is in brackets and may have some in it.
        states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()]
    except OSError:
        return False  # one has just ended: they still run
    return all(state in "Tt" for state in states)


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE
