"""examples/replicated_bank.py: the sum is always the same.

Branches transfer money concurrently, and one is killed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "replicated_bank.py"


@pytest.mark.process
def test_no_money_is_lost_when_a_branch_dies(tmp_path: Path) -> None:
    """R-USE-2: transactions over a key/value store, on real processes."""
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
    assert "--- branch-1 is killed" in printed
    transfers = re.search(r"(\d+) transfers were made, and the accounts have 1000 together", printed)
    assert transfers is not None and int(transfers[1]) >= 150
    assert "a new branch has begun with what was saved" in printed
    assert "snapshot: they have -60 together" in printed
    assert "serializable: they have 20 together" in printed
    assert "key 'shared/ann' in the range" in printed
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
