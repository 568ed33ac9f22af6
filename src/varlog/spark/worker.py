"""prepare_worker(): tunes a Python worker of Spark for running many tasks."""

from __future__ import annotations

import gc
import sys
from functools import cache

from varlog.runtime.process import keep_freed

# The programs that Spark runs as workers.
_WORKERS = ("pyspark.daemon", "pyspark.worker")


def prepare_worker() -> None:
    """To be called by a task when it begins. In a process that is no worker nothing happens.

    Spark collects garbage after every task. Visiting everything that was ever imported takes longer than a short task, and none of
    it is garbage. Not only once: a first task imports much after this call; and what survives a collection is in use.
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
