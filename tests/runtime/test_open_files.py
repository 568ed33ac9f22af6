"""allow_open_files: the bound grows to what the system allows, and never shrinks."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

_ASK = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from varlog.runtime.process import allow_open_files
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "allowed"), [(256, 512), (512, 512)])
def test_a_process_may_open_what_its_system_allows(soft: int, allowed: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < allowed:
        pytest.fail(f"this machine allows {hard} open files: too few to run varlog at all")
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(soft), str(allowed)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == [str(allowed), str(allowed)]
