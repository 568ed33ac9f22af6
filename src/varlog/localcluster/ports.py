"""Free ports of this machine, reserved so that no two processes get the same ones.

A port that was only probed can be taken by anyone until its server listens, which may be seconds later, and again while a server
restarts. So a process first claims a block of ports, and hands out ports of its own blocks only. The claim is a UDP socket on the
block's first port: it is exclusive on every system, and ends with the process, however that ends.
"""

from __future__ import annotations

import atexit
import os
import random
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from varlog.model.errors import StartupError

HOST = "127.0.0.1"
# Below the ephemeral ports: a process that restarts finds its own port still free.
RANGE = range(12_000, 32_000)
BLOCK = 100


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    # As a server does: a port in TIME_WAIT is free.
    return _can_bind(port, reuse=True)


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that are free now, and that no other process gets from here while this one lives."""
    return _claimed.allocate(count)


@contextmanager
def free_block() -> Iterator[int]:
    """The first of `BLOCK` ports, all free, for a caller that derives other ports by their distance from it."""
    with _claim(whole=True) as claim:
        yield claim.getsockname()[1]


@dataclass
class _Claimed:
    """The blocks of this process, and their ports, least recently allocated first."""

    owner: int = 0
    claims: list[socket.socket] = field(default_factory=list)
    ports: deque[int] = field(default_factory=deque)

    def allocate(self, count: int) -> tuple[int, ...]:
        if self.owner != os.getpid():
            # A forked child inherits its parent's claims, and must not hand out the same ports.
            self.release()
        found: list[int] = []
        unprobed = len(self.ports)
        while len(found) < count:
            if not unprobed:
                unprobed = self._claim_another()
            unprobed -= 1
            port = self.ports.popleft()
            if _can_bind(port):
                found.append(port)
            self.ports.append(port)
        return tuple(found)

    def release(self) -> None:
        for claim in self.claims:
            claim.close()
        self.owner, self.claims, self.ports = os.getpid(), [], deque()

    def _claim_another(self) -> int:
        claim = _claim()
        self.claims.append(claim)
        first = claim.getsockname()[1]
        self.ports.extendleft(reversed(range(first, first + BLOCK)))
        return BLOCK


_claimed = _Claimed()
atexit.register(_claimed.release)


def _claim(*, whole: bool = False) -> socket.socket:
    """A block that no other process has claimed; with `whole`, one of which every port is free."""
    blocks = list(RANGE[::BLOCK])
    random.shuffle(blocks)
    for first in blocks:
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind((HOST, first))
        except OSError:
            claim.close()
            continue
        if not whole or all(map(_can_bind, range(first, first + BLOCK))):
            return claim
        claim.close()
    raise StartupError(f"no ports between {RANGE.start} and {RANGE.stop} are free: stop some clusters")


def _can_bind(port: int, *, reuse: bool = False) -> bool:
    with socket.socket() as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True
