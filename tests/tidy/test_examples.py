"""Every example is run by a test: one that nobody runs is wrong before long."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_example_is_named_by_a_test_that_runs_it() -> None:
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert examples
    sources = [
        path.read_text("utf-8") for path in (ROOT / "tests").glob("*/test_*.py") if path != Path(__file__)
    ]
    assert {name for name in examples if not any(f'"{name}"' in source for source in sources)} == set()
