"""benchmarks.faults: its tables, its targets and its plot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.catalogue import BOTH, COMMITTED, FAULTS, SEQUENCED
from benchmarks.faults.kill import judge_node, judge_repository
from varlog.bench.machine import Conditions, RawLimits
from varlog.bench.workload import failed

ROOT = Path(__file__).parents[2]
RAW = RawLimits(sync_p50_s=0.0002, sync_p99_s=0.001, write_bytes_per_s=400e6, loopback_bytes_per_s=2e9)
CONDITIONS = Conditions(
    2, 0.1, "a processor", 8 * 10**9, "6.1", "ext4", "3.11.9", {"varlog": "0.1.0"}, "here", "sync on"
)


def test_each_ordering_has_its_faults_and_both_have_those_of_either() -> None:
    assert (FAULTS["committed"], FAULTS["sequenced"], FAULTS["both"]) == (COMMITTED, SEQUENCED, BOTH)
    assert set(SEQUENCED) < set(BOTH)
    for table in FAULTS.values():
        names = [workload.name for workload in table]
        assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    ("module", "arguments", "listed"),
    [
        ("faults", ["--ordering", "both"], "both-kill-backup"),
        ("orderings", [], "both-append-1"),
        ("spark", [], "spark-stream"),
    ],
)
def test_a_benchmark_lists_its_workloads_and_refuses_a_name_that_it_does_not_have(
    module: str, arguments: list[str], listed: str
) -> None:
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run([*command, "--list"], cwd=ROOT, capture_output=True, check=False, timeout=240)
    assert done.returncode == 0
    assert listed in {line.split()[0].decode() for line in done.stdout.splitlines()}
    done = subprocess.run(
        [*command, "-w", "nothing"], cwd=ROOT, capture_output=True, check=False, timeout=240
    )
    assert done.returncode == 2
    assert b"no workload is called nothing" in done.stderr


def _series_report() -> dict[str, object]:
    measured = {"pause_s": 0.5, "back_s": 0.4, "healed_s": 0.6, "before_appends_per_s": 100.0, "failed": 0.0}
    series = {"second": [-0.1, 0.0, 0.1], "appends_per_s": [100.0, 0.0, 90.0]}
    result = failed(COMMITTED[0], "").as_json() | {"measured": measured, "series": series, "met": True}
    return {"conditions": CONDITIONS.as_json(), "results": [result]}


@pytest.mark.parametrize(
    ("figures", "met"),
    [
        ({}, True),
        ({"pause_s": 2.1}, False),
        ({"failed": 1.0}, False),
        ({"reopening_s": 0.048}, False),
    ],
)
def test_a_killed_node_may_be_felt_for_two_seconds_and_fail_nothing(
    figures: dict[str, float], met: bool
) -> None:
    measured = {
        "before_appends_per_s": 1000.0,
        "pause_s": 1.2,
        "back_s": 0.8,
        "healed_s": 1.1,
        "failed": 0.0,
        "sealing_s": 0.005,
        "reopening_s": 0.02,
        "recovered_s": 1.4,
    }
    result = judge_node(measured | figures, RAW)
    assert result.met is met
    assert "until the old throughput" in result.summary


def test_a_repair_that_nobody_saw_meets_no_target() -> None:
    measured = {"before_appends_per_s": 1.0, "pause_s": 1.0, "back_s": 1.0, "healed_s": 1.0, "failed": 0.0}
    assert not judge_node(measured, RAW).met
    assert not judge_repository(measured, RAW).met
    assert "did not come back" in judge_repository(measured, RAW).summary


def test_the_plot_has_a_panel_for_each_fault_and_is_the_same_each_time(tmp_path: Path) -> None:
    draw = pytest.importorskip("benchmarks.faults.plot", reason="NOT TESTED: pip install -e '.[plot]'").draw
    for name in ("a.svg", "b.svg"):
        draw(_series_report(), tmp_path / name)
    drawing = (tmp_path / "a.svg").read_text("utf-8")
    assert "a backup killed: 0.50 s without an append" in drawing
    assert drawing == (tmp_path / "b.svg").read_text("utf-8")


def test_a_report_without_series_cannot_be_drawn(tmp_path: Path) -> None:
    draw = pytest.importorskip("benchmarks.faults.plot", reason="NOT TESTED: pip install -e '.[plot]'").draw
    with pytest.raises(ValueError, match="the report has no series"):
        draw({"results": [failed(COMMITTED[0], "no etcd").as_json()]}, tmp_path / "a.svg")


@pytest.mark.process
def test_a_backup_is_killed_and_the_pause_is_measured(tmp_path: Path) -> None:
    options = ["--quick", "--json", "-w", "kill-backup", "--appenders", "4", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
        timeout=240,
    )
    [result] = json.loads(done.stdout)["results"]
    assert (done.returncode, result["workload"]) == (0, "kill-backup"), result["note"]
    assert result["measured"]["failed"] == 0
    assert len(result["series"]["second"]) == len(result["series"]["appends_per_s"])
    assert not (tmp_path / "data").exists()
