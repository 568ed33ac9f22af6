"""Progress: how a job says how far it is; and `watching`, which says it for a Spark action from the tasks that are done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_EVERY_S = 0.3


class Progress(Protocol):
    """Takes what is being done, how much of it is done, and of how much; a total of 0 is not known."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


def silent(what: str, done: int, total: int) -> None:
    """For who does not watch."""


@contextmanager
def watching(spark: SparkSession, what: str, progress: Progress) -> Iterator[None]:
    """While Spark works inside the block: how many tasks of the stages that run now are done.

    Counts the stages of the whole session: a job usually has it to itself.
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
    while not over.wait(LOOK_EVERY_S):
        infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [info for info in infos if info is not None]  # None: it ended between the two calls
        if running:
            progress(
                what,
                sum(info.numCompletedTasks for info in running),
                sum(info.numTasks for info in running),
            )
