"""DiallingProcess: which process of ours has opened a connection, found by the two ends of it as the kernel lists them."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

import psutil

_TABLE = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _INODE = 1, 2, 9


def dialling_process(near: tuple[str, int], far: tuple[str, int]) -> int | None:
    """The id of the one that has `near` as its own end and `far` as the other: a process that this one has started, or
    this one itself. None if there is none: it is gone.

    The table of connections is read once: for each process by itself it took so long on a busy machine that clients gave up first.
    """
    inode = _inode_of(_listed(near), _listed(far))
    if inode is None:
        return None
    own = psutil.Process()
    for process in [*own.children(recursive=True), own]:
        if _has(process.pid, f"socket:[{inode}]"):
            return process.pid
    return None


def _listed(end: tuple[str, int]) -> str:
    """As the table has it: the address in the byte order of this machine."""
    (address,) = struct.unpack("=I", socket.inet_aton(end[0]))
    return f"{address:08X}:{end[1]:04X}"


def _inode_of(near: str, far: str) -> str | None:
    for line in _TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[_LOCAL] == near and fields[_REMOTE] == far:
            return fields[_INODE]
    return None


def _has(pid: int, target: str) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return False  # it has just ended
    for name in names:
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"{directory}/{name}") == target:
                return True
    return False
