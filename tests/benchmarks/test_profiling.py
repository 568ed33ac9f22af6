"""benchmarks/profiling: what it patches exists."""

from __future__ import annotations

from importlib import import_module

import pytest

from benchmarks.profiling.sitecustomize import TRACE_POINTS


@pytest.mark.parametrize(("module", "owner", "method"), [point[:3] for point in TRACE_POINTS])
def test_every_method_that_a_trace_records_exists(module: str, owner: str, method: str) -> None:
    assert callable(getattr(getattr(import_module(module), owner), method))
