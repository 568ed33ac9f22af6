"""The examples with Spark in them run from their first line to their last, on clusters that they start and end themselves."""

from __future__ import annotations

import atexit
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import varlog.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "spark_walkthrough.py"


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an example runs: its files go here. A session of its own would be one more Java; the one of the tests must live on."""
    monkeypatch.setattr(varlog.spark, "session", lambda *_: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.process
def test_the_walkthrough_runs_by_itself_and_leaves_nothing_behind(
    stage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(EXAMPLE.read_text("utf-8"), str(EXAMPLE), "exec"), names)
    finally:
        end: Callable[[], None] | None = names.get("end")
        if end is not None:
            end()
            atexit.unregister(end)
    assert capsys.readouterr().out.endswith("done\n")
    assert list(stage.iterdir()) == []


@pytest.mark.process
def test_the_shop_sells_nothing_twice_and_its_views_agree(
    stage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-USE-2: commands are decided by their order, events are published at least once and seen once, by Spark as well."""
    runpy.run_path(str(EXAMPLES / "event_sourced_shop.py"), run_name="__main__")
    output = capsys.readouterr().out
    assert "refused: 21 of mug are not in stock, 20 are" in output
    twice = re.search(r"another one published (\d+): (\d+) entries, (\d+) events", output)
    assert twice is not None
    again, entries, events = map(int, twice.groups())
    assert entries == 2 * events and again == events > 50
    assert re.search(r"were too late for [1-9]", output)
    assert "Spark says the same" in output and output.endswith("done\n")
    assert list(stage.iterdir()) == []
