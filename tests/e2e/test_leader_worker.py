"""examples/leader_worker.py: a leader is stopped, the next one is killed, and every job is done once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "leader_worker.py"


@pytest.mark.process
def test_every_job_is_done_once_whatever_becomes_of_the_leader(tmp_path: Path) -> None:
    """R-USE-2: one leader a term, on real processes: one that stands still for long, and one that dies."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    told = done.stdout
    assert done.returncode == 0, told + done.stderr
    assert told.endswith("done\n")
    terms = [int(term) for term in re.findall(r"leads in term (\d+)", told)]
    assert len(terms) >= 3
    assert terms == sorted(set(terms))
    stopped = re.search(r"--- (\S+) is stopped in its tracks", told)
    assert stopped is not None
    assert f"{stopped[1]} leads no more" in told
    assert "jobs were done, each once:" in told
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
