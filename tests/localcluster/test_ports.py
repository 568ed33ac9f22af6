"""Free ports: different, free, and nobody else's while the process that asked for them lives."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from varlog.localcluster import ports
from varlog.localcluster.ports import BLOCK, HOST, RANGE, free_block, free_ports, is_free
from varlog.model.errors import StartupError

OTHERS = 4
TAKEN = 150
# Asks for ports, says which, and keeps them until its input ends.
ASK = f"import sys; from varlog.localcluster.ports import free_ports; print(*free_ports({TAKEN}), flush=True); sys.stdin.read()"


def block_of(port: int) -> int:
    return (port - RANGE.start) // BLOCK


def test_they_are_different_and_free_and_the_kernel_gives_them_to_nobody() -> None:
    found = free_ports(250)
    assert len(set(found)) == 250
    assert all(port in RANGE and is_free(port) for port in found)


def test_processes_that_reserve_ports_at_the_same_time_get_different_ones() -> None:
    """None of them listens yet: a process that only checks for listeners would pick a port that another has just reserved."""
    others = [
        subprocess.Popen(
            [sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(OTHERS)
    ]
    try:
        theirs = []
        for other in others:
            assert other.stdout is not None
            theirs.append([int(port) for port in other.stdout.readline().split()])
        given = [port for found in [*theirs, list(free_ports(TAKEN))] for port in found]
        assert len(given) == len(set(given)) == (OTHERS + 1) * TAKEN
    finally:
        for other in others:
            other.communicate("")


def test_a_port_that_was_given_comes_again_after_all_others() -> None:
    """A server that died is started again where it was: nobody is given its port meanwhile."""
    first = free_ports(1)[0]
    assert first not in free_ports(BLOCK // 2)


def test_a_port_in_use_is_skipped() -> None:
    claimed = ports._Claimed()
    try:
        [port] = claimed.allocate(1)
        claimed.ports.rotate(1)
        with socket.create_server((HOST, port)):
            assert claimed.allocate(1) != (port,)
    finally:
        claimed.release()


def test_a_forked_child_gives_out_none_of_its_parents_ports() -> None:
    parent, child = ports._Claimed(), ports._Claimed()
    try:
        parent.allocate(1)
        # What a fork leaves the child with, but for the sockets, which the parent keeps open.
        child.owner, child.ports = parent.owner + 1, parent.ports.copy()
        assert block_of(child.allocate(1)[0]) != block_of(parent.allocate(1)[0])
    finally:
        parent.release()
        child.release()


def test_a_block_is_one_owners_and_is_given_back() -> None:
    with free_block() as first, free_block() as other:
        assert first != other and first in RANGE
        assert all(map(is_free, range(first, first + BLOCK)))
        with pytest.raises(OSError, match="in use"), socket.socket(type=socket.SOCK_DGRAM) as claim:
            claim.bind((HOST, first))
    with socket.socket(type=socket.SOCK_DGRAM) as claim:
        claim.bind((HOST, first))


def test_where_all_are_taken_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with free_block() as first:
        monkeypatch.setattr(ports, "RANGE", range(first, first + BLOCK))
        with pytest.raises(StartupError, match="stop some clusters"):
            ports._claim()
