"""until_told(): SIGTERM and Ctrl-C end a job that goes on for ever between two of its steps; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def until_told() -> Iterator[threading.Event]:
    """An event that a signal sets. After the session was made: Spark takes Ctrl-C for itself then. In the main thread only."""
    stop = threading.Event()

    def told(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
