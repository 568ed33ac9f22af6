"""Ends of jobs that go on for ever: SIGTERM and Ctrl-C ask them to stop between two steps, a second one ends them at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
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


def java_ended(spark: SparkSession) -> bool:
    """Whether Spark is gone. A signal to the whole process group ends Java before the job that it asks to stop: what fails for that
    reason is no failure of the job."""
    context: Any = spark.sparkContext
    try:
        return bool(context._jsc is None or context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - nobody answers there any more
        return True
