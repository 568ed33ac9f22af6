"""Progress: how a job reports its progress, and how it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.3


class Progress(Protocol):
    """Called with the step, how much of it is done, and the total; a total of 0 is unknown."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


def silent(what: str, done: int, total: int) -> None:
    """Reports nothing."""


@contextmanager
def watching(spark: SparkSession, what: str, progress: Progress) -> Iterator[None]:
    """While Spark works inside the block: how many tasks of the active stages are done.

    Counts the stages of the whole session, which a job usually has to itself.
    """
    if progress is silent:
        yield
        return
    progress(what, 0, 0)
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(spark, what, progress, over), name="varlog-watch", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(spark: SparkSession, what: str, progress: Progress, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(POLL_S):
        infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [info for info in infos if info is not None]  # None: it ended between the two calls
        if running:
            progress(
                what,
                sum(info.numCompletedTasks for info in running),
                sum(info.numTasks for info in running),
            )


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set, to stop a continuous job between two steps; a second signal ends it immediately. Use it
    after the session was created, which installs a handler of its own, and in the main thread only."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def java_ended(spark: SparkSession) -> bool:
    """Whether Spark is gone. A signal to the whole process group ends Java before the job that it asks to stop: errors for that
    reason are no failure of the job."""
    context: Any = spark.sparkContext
    try:
        return bool(context._jsc is None or context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - the JVM is gone
        return True
