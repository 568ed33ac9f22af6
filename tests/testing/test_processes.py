"""A paused process stops all of its threads before anything else is done to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from varlog.testing.processes import pause_process

# Each thread writes a byte again and again, into a pipe that is always empty enough.
BUSY = """
import os, threading
def write():
    while True:
        os.write(1, b".")
for _ in range(4):
    threading.Thread(target=write).start()
"""


@pytest.mark.process
def test_a_paused_process_writes_nothing_until_it_is_resumed() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, bufsize=0) as child:
        try:
            assert child.stdout is not None and child.stdout.read(1) == b"."
            pause_process(child.pid)
            os.set_blocking(child.stdout.fileno(), False)
            while child.stdout.read(1 << 16):
                pass
            assert child.stdout.read(1) is None, "what it had written was all"
            os.kill(child.pid, signal.SIGCONT)
            os.set_blocking(child.stdout.fileno(), True)
            assert child.stdout.read(1) == b"."
        finally:
            child.kill()
