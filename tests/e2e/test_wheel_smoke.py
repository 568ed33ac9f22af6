"""The program that `make release-check` runs on a wheel works here as well.

It must not fail for the first time at a release.
"""

from __future__ import annotations

import pytest

import varlog
from tests.e2e import wheel_smoke


def test_the_smoke_test_of_a_wheel_passes_on_this_source(capsys: pytest.CaptureFixture[str]) -> None:
    wheel_smoke.main()
    assert f"varlog {varlog.__version__} from" in capsys.readouterr().out
