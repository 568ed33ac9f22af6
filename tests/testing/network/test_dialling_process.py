"""The process that opened a connection is found: one that we have started, our own, or none any more."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from varlog.testing.network.proxied_network import dialling_process

pytestmark = pytest.mark.process

DIAL = (
    "import socket, sys; wire = socket.create_connection((sys.argv[1], int(sys.argv[2]))); sys.stdin.read()"
)
TIMEOUT_S = 90.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT_S)
        yield listening


def test_a_process_that_we_have_started_is_found_until_it_ends(listener: socket.socket) -> None:
    far = listener.getsockname()
    command = [sys.executable, "-c", DIAL, *map(str, far)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        wire, near = listener.accept()
        with wire:
            assert dialling_process(near, far) == child.pid
            child.communicate(timeout=TIMEOUT_S)
            assert dialling_process(near, far) is None


def test_we_ourselves_are_found_by_the_end_that_is_ours(listener: socket.socket) -> None:
    far = listener.getsockname()
    with socket.create_connection(far) as dialled:
        wire, near = listener.accept()
        with wire:
            assert near == dialled.getsockname()
            assert dialling_process(near, far) == os.getpid()
