"""`varlog demo --faults` as a user runs it, without a terminal.

Its lines, its summary and its JSON; no process is left behind.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from varlog.testing.processes import command

pytestmark = [pytest.mark.process, pytest.mark.faults]

TIMEOUT_S = 240.0


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_it_prints_what_happens_and_accounts_for_every_entry(tmp_path: Path) -> None:
    done = command("varlog.cli", ["demo", "--faults"], timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill -9") == 3
    assert "Nothing was lost." in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_sequenced_topic_loses_a_head_a_tail_its_sequencer_and_the_repository(tmp_path: Path) -> None:
    """R-SEQ-2, R-SEQ-10."""
    options = ["demo", "--faults", "--ordering", "sequenced", "--json"]
    done = command("varlog.cli", options, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["holds"] and report["acknowledged"] == report["present"] > 0
    killed = [fault["killed"].split(" of ")[0] for fault in report["faults"]]
    assert killed[:3] == ["the head", "the tail", "the sequencer"] and len(killed) == 4
    assert list(tmp_path.iterdir()) == []


def test_it_prints_json_for_programs(tmp_path: Path) -> None:
    done = command("varlog.cli", ["demo", "--faults", "--json"], timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["holds"] and report["acknowledged"] == report["present"] > 0
    assert (report["lost"], report["duplicated"], report["out_of_order"]) == (0, 0, 0)
    assert [len(fault["killed"]) > 0 for fault in report["faults"]] == [True] * 3
