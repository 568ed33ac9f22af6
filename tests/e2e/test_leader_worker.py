"""examples/leader_worker.py: every job is done once.

A leader is stopped, and the next one is killed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "leader_worker.py"


@pytest.mark.process
def test_every_job_is_done_once_whatever_happens_to_the_leader(tmp_path: Path) -> None:
    """R-USE-2: one leader per term, on real processes: one that pauses for long, and one that dies."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    printed = done.stdout
    assert done.returncode == 0, printed + done.stderr
    assert printed.endswith("done\n")
    terms = [int(term) for term in re.findall(r"leads in term (\d+)", printed)]
    assert len(terms) >= 3
    assert terms == sorted(set(terms))
    stopped = re.search(r"--- (\S+) is stopped in its tracks", printed)
    assert stopped is not None
    assert f"{stopped[1]} leads no more" in printed
    assert "jobs were done, each once:" in printed
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
