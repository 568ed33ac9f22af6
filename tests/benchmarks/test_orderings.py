"""benchmarks.orderings: how both sides are put side by side, and how they are assessed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.kill import judge_pause
from benchmarks.orderings.in_turns import side_by_side
from benchmarks.orderings.targets import LatencyAgainstCommitted, RateAgainstCommitted, judge_sequencer
from varlog.bench.machine import RawLimits
from varlog.model.cluster import Ordering

ROOT = Path(__file__).parents[2]
RAW = RawLimits(0.0001, 0.0002, 500e6, 4e9)
BOTH = {
    "committed_p50_s": 0.0010,
    "committed_p99_s": 0.0030,
    "committed_entries_per_s": 1000.0,
    "sequenced_p50_s": 0.0012,
    "sequenced_p99_s": 0.0020,
    "sequenced_entries_per_s": 800.0,
    "sequenced_bytes_per_s": 800e3,
}


def test_turns_are_put_side_by_side_by_their_medians() -> None:
    found = {
        Ordering.COMMITTED: [{"p50_s": value} for value in (3.0, 1.0, 2.0)],
        Ordering.SEQUENCED: [{"p50_s": value} for value in (9.0, 5.0)],
    }
    assert side_by_side(found) == {"committed_p50_s": 2.0, "sequenced_p50_s": 7.0}


@pytest.mark.parametrize(("ratio_max", "met"), [(1.3, True), (1.1, False)])
def test_a_latency_is_judged_by_its_ratio_to_the_committed_one(ratio_max: float, met: bool) -> None:
    result = LatencyAgainstCommitted(ratio_max)(BOTH, RAW)
    assert result.met is met
    assert result.ratio == pytest.approx(1.2)
    assert (result.summary, result.against) == (
        "p50 1.20 ms, p99 2.00 ms",
        "committed, p50 1.00 ms, p99 3.00 ms",
    )


@pytest.mark.parametrize(("ratio_min", "met"), [(0.77, True), (1.0, False)])
def test_a_rate_is_judged_by_its_ratio_to_the_committed_one(ratio_min: float, met: bool) -> None:
    result = RateAgainstCommitted(ratio_min)(BOTH, RAW)
    assert result.met is met
    assert result.ratio == pytest.approx(0.8)
    assert result.summary == "800 entries/s, 1 MB/s, p50 1.20 ms"


@pytest.mark.parametrize(("rate", "met"), [(500_000.0, True), (499_999.0, False)])
def test_a_sequencer_gives_half_a_million_positions_a_second(rate: float, met: bool) -> None:
    figures = {"positions_a_call": 100.0, "calls_per_s": rate / 100, "p50_s": 0.001, "p99_s": 0.002}
    assert judge_sequencer(figures | {"positions_per_s": rate}, RAW).met is met


@pytest.mark.parametrize(
    ("pause_s", "failed", "met"), [(1.9, 0.0, True), (2.0, 0.0, False), (0.1, 1.0, False)]
)
def test_a_fault_of_either_ordering_is_judged_by_its_pause_and_its_failed_appends(
    pause_s: float, failed: float, met: bool
) -> None:
    figures = {"before_appends_per_s": 9.0, "back_s": 1.0, "healed_s": 2.0}
    assert judge_pause(figures | {"pause_s": pause_s, "failed": failed}, RAW).met is met


@pytest.mark.process
@pytest.mark.faults
def test_both_orderings_are_measured_in_turns_on_one_cluster(tmp_path: Path) -> None:
    data = tmp_path / "data"
    chosen_ones = ["both-append-1", "both-append-64-alone", "both-read", "sequencer"]
    options = ["--quick", "--seconds", "2", "--json"]
    for name in chosen_ones:
        options += ["-w", name]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.orderings", *options, "--data", str(data)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
        timeout=240,
    )
    report = json.loads(done.stdout)
    results = {result["workload"]: result["measured"] for result in report["results"]}
    assert done.returncode == 0, {result["workload"]: result["note"] for result in report["results"]}
    assert list(results) == chosen_ones
    assert results["both-append-1"]["replicas"] == 3 and results["both-append-64-alone"]["replicas"] == 1
    for name in chosen_ones[:3]:
        assert results[name]["sequenced_p50_s"] > 0 < results[name]["committed_p50_s"]
    assert results["sequencer"]["positions_per_s"] > 0
    assert not data.exists()
