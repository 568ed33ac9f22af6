"""examples/replicated_bank.py: branches transfer money at once, one is killed, and the sum is always the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "replicated_bank.py"


@pytest.mark.process
def test_no_money_is_lost_whoever_dies(tmp_path: Path) -> None:
    """R-USE-2: transactions over a key/value store, on real processes."""
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
    assert "--- branch-1 is killed" in told
    transfers = re.search(r"(\d+) transfers were made, and the accounts have 1000 together", told)
    assert transfers is not None and int(transfers[1]) >= 150
    assert "a new branch has begun with what was saved" in told
    assert "snapshot: they have -60 together" in told
    assert "serializable: they have 20 together" in told
    assert "key 'shared/ann' in the range" in told
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
