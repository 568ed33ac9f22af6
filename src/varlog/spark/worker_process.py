"""settle(): makes a Python process of Spark's own fit for task after task: what is loaded stays, what is freed is kept."""

from __future__ import annotations

import gc
import sys
from functools import cache

from varlog.runtime.memory import keep_freed

# What Spark runs as a program to have workers.
_WORKERS = ("pyspark.daemon", "pyspark.worker")


def prepare_worker() -> None:
    """To be called by a task when it begins. In any other process than a worker nothing happens.

    Spark collects garbage behind every task. Walking over everything that was ever imported takes longer than many a task; and
    none of that is garbage. Not once only: a first task loads much after this; and what is left behind a collection is in use.
    """
    if _is_worker():
        _keep_freed_once()
        gc.freeze()


@cache
def _keep_freed_once() -> None:
    keep_freed()
    gc.collect()


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name in _WORKERS
