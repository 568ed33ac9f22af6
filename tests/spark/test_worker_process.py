"""What is loaded is no garbage: a worker of Spark is told so, and no other process is touched."""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest

from varlog.spark import worker_process


@pytest.mark.parametrize(("program", "settles"), [("pyspark.daemon", True), ("pytest.__main__", False)])
def test_only_a_worker_of_spark_is_settled(
    program: str, settles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=program)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    worker_process._keep_freed_once.cache_clear()
    try:
        worker_process.settle()
        frozen = gc.get_freeze_count()
        assert (frozen > 0) is settles
        loaded_later = [[] for _ in range(1000)]  # type: ignore[var-annotated]
        worker_process.settle()
        assert (gc.get_freeze_count() >= frozen + len(loaded_later)) is settles
    finally:
        gc.unfreeze()
