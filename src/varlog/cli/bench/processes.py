"""What the kernel says of a process: memory, processor time, bytes written. Read from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

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
