"""What is imported is no garbage: only a worker of Spark is tuned for that, and no other process is touched."""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest

from varlog.spark import connection


@pytest.mark.parametrize(("program", "prepares"), [("pyspark.daemon", True), ("pytest.__main__", False)])
def test_only_a_worker_of_spark_is_prepared(
    program: str, prepares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=program)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    connection._keep_freed_once.cache_clear()
    try:
        connection.prepare_worker()
        loaded_later: list[object] = []
        assert _is_walked_over(loaded_later)
        connection.prepare_worker()
        assert _is_walked_over(loaded_later) is not prepares
    finally:
        gc.unfreeze()


def _is_walked_over(thing: object) -> bool:
    """By a collection. The number of frozen objects would show less: others come and go meanwhile."""
    return any(known is thing for known in gc.get_objects())
