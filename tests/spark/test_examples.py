"""examples/spark_walkthrough.py runs from its first cell to its last, on a cluster that it starts and ends itself."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import varlog.spark

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_walkthrough.py"


@pytest.mark.process
def test_the_walkthrough_runs_by_itself_and_leaves_nothing_behind(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A session of its own would be one more Java; the one of the tests must live on.
    monkeypatch.setattr(varlog.spark, "session", lambda *_: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(EXAMPLE.read_text("utf-8"), str(EXAMPLE), "exec"), names)
    finally:
        end: Callable[[], None] | None = names.get("end")
        if end is not None:
            end()
            atexit.unregister(end)
    assert capsys.readouterr().out.endswith("done\n")
    assert list(tmp_path.iterdir()) == []
