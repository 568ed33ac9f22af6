"""What is loaded is no garbage: a worker of Spark is told so once, and no other process is touched."""

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
    worker_process._settle_once.cache_clear()
    try:
        worker_process.settle()
        frozen = gc.get_freeze_count()
        assert (frozen > 0) is settles
        kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
        worker_process.settle()
        assert gc.get_freeze_count() <= frozen, "once is enough"
        assert len(kept) == 1000
    finally:
        gc.unfreeze()
