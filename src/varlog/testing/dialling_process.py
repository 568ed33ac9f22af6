"""DiallingProcess: which process of ours has opened a connection, found by the two ends of it as the kernel lists them."""

from __future__ import annotations

import psutil


def dialling_process(near: tuple[str, int], far: tuple[str, int]) -> int | None:
    """The id of the one that has `near` as its own end and `far` as the other: a process that this one has started, or
    this one itself. None if there is none: it is gone."""
    own = psutil.Process()
    for process in [*own.children(recursive=True), own]:
        try:
            found = process.net_connections("tcp")
        except psutil.Error:
            continue  # it has just ended
        if any((one.laddr, one.raddr) == (near, far) for one in found):
            return process.pid
    return None
