"""Ports of this machine that are free, and stay so: no two processes that look for some at the same time get the same ones.

A port that was only looked at is anybody's until its server listens, which may be seconds later, and again while a server that
died is started anew. So a process first claims a block of ports, and gives out those of its own blocks alone. The claim is a
UDP socket on the block's first port: nobody else can have it, on any system, and it ends with the process, however that ends.
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
# Below those that the kernel gives to outgoing connections: a process that is restarted finds its own free again.
RANGE = range(12_000, 32_000)
BLOCK = 100


def is_free(port: int) -> bool:
    """Nobody listens there now."""
    # As a server would: a port that only waits for old packets to die is free.
    return _can_be_had(port, reuse=True)


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that nobody listens at now, and that are given to nobody else while this process lives."""
    return _claimed.take(count)


@contextmanager
def free_block() -> Iterator[int]:
    """The first of `BLOCK` ports, all free: for whoever names one port and takes others by their distance from it."""
    with _claim(whole=True) as claim:
        yield claim.getsockname()[1]


@dataclass
class _Claimed:
    """The blocks of this process, and their ports in the order in which they were given out: the oldest come first."""

    owner: int = 0
    claims: list[socket.socket] = field(default_factory=list)
    ports: deque[int] = field(default_factory=deque)

    def take(self, count: int) -> tuple[int, ...]:
        if self.owner != os.getpid():
            # A child that was forked has its parent's claims, and must not give out the same ports.
            self.let_go()
        found: list[int] = []
        looks = len(self.ports)
        while len(found) < count:
            if not looks:
                looks = self._claim_another()
            looks -= 1
            port = self.ports.popleft()
            if _can_be_had(port):
                found.append(port)
            self.ports.append(port)
        return tuple(found)

    def let_go(self) -> None:
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
atexit.register(_claimed.let_go)


def _claim(*, whole: bool = False) -> socket.socket:
    """A block that nobody has claimed; with `whole`, one of which every port is free."""
    blocks = list(RANGE[::BLOCK])
    random.shuffle(blocks)
    for first in blocks:
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind((HOST, first))
        except OSError:
            claim.close()
            continue
        if not whole or all(map(_can_be_had, range(first, first + BLOCK))):
            return claim
        claim.close()
    raise StartupError(f"no ports between {RANGE.start} and {RANGE.stop} are free: stop a few clusters")


def _can_be_had(port: int, *, reuse: bool = False) -> bool:
    with socket.socket() as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True
