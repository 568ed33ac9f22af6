"""benchmarks/growth: cliffs are found where they are, parts become one report, and tables and charts show what was measured."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import xml.etree.ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.growth.__main__ import sweeps_named, write_docs
from benchmarks.growth.cliffs import cliffs_of
from benchmarks.growth.cluster import CLIENT, MACHINE
from benchmarks.growth.loads import LOADS, LostEntries, Pace, check
from benchmarks.growth.report import COLUMNS, FIGURES, bound, cliffs_in, load_text, report_text
from benchmarks.growth.sweeps import SWEEPS, Point, as_json, merged, points_of
from benchmarks.render import JOURNAL, rendered
from varlog.model.limits import GIB, KIB

ROOT = Path(__file__).parents[2]
RAW = {"sync_p50_s": 1e-4, "sync_p99_s": 2e-4, "write_bytes_per_s": 3e8, "loopback_bytes_per_s": 4e9}
BUSY = {MACHINE: 1.0, CLIENT: 0.5, "vsn-1": 0.2, "vmr": 0.1}
CONDITIONS: dict[str, Any] = {
    "cores": 2,
    "busy_cores": 0.0,
    "processor": "p",
    "memory_bytes": 10**9,
    "kernel": "k",
    "file_system": "ext4",
    "python": "3.11",
    "versions": {},
    "where": "somewhere",
    "sync": "synced",
}


def _point(load: int, busy: dict[str, float] | None = None, **figures: float) -> Point:
    return Point(load, figures, busy or BUSY)


def _appends(*steps: tuple[int, float, float]) -> list[Point]:
    return [_point(load, appends_per_s=rate, p50_s=p50, p99_s=p50) for load, rate, p50 in steps]


def _whole(name: str, rate: float = 1000.0) -> list[Point]:
    """Two points with every figure that the sweep must have."""
    sweep = SWEEPS[name]
    figures = dict.fromkeys({*sweep.rates, *sweep.shares, *sweep.latencies, *COLUMNS[name]}, 0.002)
    return [Point(load, figures | {sweep.rates[0]: rate}, BUSY) for load in sweep.loads[:2]]


def _report(*names: str, rate: float = 1000.0) -> dict[str, Any]:
    return as_json(CONDITIONS, RAW, {name: _whole(name, rate) for name in names})


# --- cliffs


def test_half_the_throughput_may_go_and_no_more() -> None:
    assert cliffs_of(SWEEPS["appenders"], _appends((64, 1000, 0.01), (256, 500, 0.04))) == []
    (cliff,) = cliffs_of(SWEEPS["appenders"], _appends((64, 1000, 0.01), (256, 499, 0.04)))
    assert (cliff.figure, cliff.load, cliff.next_load) == ("appends_per_s", 64, 256)
    assert str(cliff) == "appenders: appends_per_s is 0.50 of what it was, from 64 to 256"


def test_a_latency_may_grow_with_the_load_and_not_far_beyond_it() -> None:
    assert cliffs_of(SWEEPS["appenders"], _appends((64, 1000, 0.01), (256, 1000, 0.08))) == []
    found = cliffs_of(SWEEPS["appenders"], _appends((64, 1000, 0.01), (256, 1000, 0.081)))
    assert [cliff.figure for cliff in found] == ["p50_s", "p99_s"]


def test_a_few_milliseconds_are_no_cliff() -> None:
    assert cliffs_of(SWEEPS["streams"], _appends((1, 1000, 0.0005), (2, 1000, 0.0099))) == []


def test_a_share_may_fall_as_the_load_grows_and_no_faster() -> None:
    """Ten entries in a batch of one topic are two and a half in a batch of each of four."""

    def steps(last: float) -> list[Point]:
        return [
            _point(16, entries_per_s=9.0, appends_per_s=1000),
            _point(64, entries_per_s=9.0, appends_per_s=last),
        ]

    assert cliffs_of(SWEEPS["topics"], steps(125)) == []
    (cliff,) = cliffs_of(SWEEPS["topics"], steps(124))
    assert cliff.figure == "appends_per_s"


def test_only_neighbours_are_compared() -> None:
    """A slow decline is not a cliff; it is what the plot is for."""
    steps = [(4**power, 1000 / 1.9**power, 0.001) for power in range(6)]
    assert cliffs_of(SWEEPS["appenders"], _appends(*steps)) == []


def test_a_cliff_is_in_the_report_and_in_its_exit_code(tmp_path: Path) -> None:
    report = as_json(CONDITIONS, RAW, {"streams": _appends((1, 1000, 0.001), (2, 100, 0.001))})
    assert [cliff.sweep for cliff in cliffs_in(report)] == ["streams"]
    part = tmp_path / "part.json"
    part.write_text(json.dumps(report))
    done = _growth("--from", str(part))
    assert done.returncode == 1
    assert "cliffs: streams: appends_per_s is 0.10" in done.stdout


def test_missing_acknowledged_entries_end_the_run() -> None:
    check(5, 5)
    check(5, 6)  # one whose answer was lost
    with pytest.raises(LostEntries, match="5 appends were acknowledged and 4"):
        check(5, 4)


# --- parts


def test_parts_become_one_report_in_the_order_of_the_sweeps() -> None:
    whole = merged([_report("topics"), _report("streams"), _report("topics", rate=5.0)])
    assert list(whole["sweeps"]) == ["streams", "topics"]
    assert points_of(whole)["topics"][0].figures["entries_per_s"] == 5.0


def test_a_report_survives_json() -> None:
    report = _report(*SWEEPS)
    assert points_of(json.loads(json.dumps(report))) == points_of(report)


def test_a_part_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="measure it again"):
        merged([_report("streams") | {"version": 0}])


def test_sweeps_are_chosen_by_name() -> None:
    assert [sweep.name for sweep in sweeps_named("topics, streams")] == ["streams", "topics"]
    with pytest.raises(argparse.ArgumentTypeError, match="no sweep 'nodes': choose from streams, topics"):
        sweeps_named("nodes")


def test_every_sweep_has_a_load_and_figures_that_can_be_rendered() -> None:
    assert list(LOADS) == list(SWEEPS) == list(COLUMNS)
    for sweep in SWEEPS.values():
        assert set(COLUMNS[sweep.name]) | {*sweep.rates, *sweep.latencies} <= set(FIGURES)
        assert list(sweep.loads) == sorted(sweep.loads)
        assert all(after <= 4 * before for before, after in pairwise(sweep.loads))


def test_the_log_grows_no_further_than_configured() -> None:
    assert Pace(log_bytes_max=GIB).loads(SWEEPS["size"])[-1] == GIB
    assert max(Pace(log_bytes_max=16 * GIB).loads(SWEEPS["size"])) == 16 * GIB
    assert max(Pace(log_bytes_max=1).loads(SWEEPS["streams"])) == 64


# --- tables and charts


def test_each_sweep_has_its_table_and_what_bounds_it() -> None:
    text = report_text(_report(*SWEEPS))
    for sweep in SWEEPS.values():
        assert f"### {sweep.title}" in text
    assert text.count("At the end") == len(SWEEPS)
    assert "cliffs: none" in text


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (_point(1, bytes_per_s=7e7), "the disk bounds it: the copies together write 0.70"),
        (_point(1, BUSY | {MACHINE: 1.9}, bytes_per_s=1e6), "the processor bounds it: 1.9 of 2 cores"),
        (_point(1, BUSY | {CLIENT: 0.95}, bytes_per_s=1e6), "the client process bounds it"),
        (_point(1, BUSY | {"vmr": 0.9}, bytes_per_s=1e6), "the process vmr bounds it"),
        (_point(1, bytes_per_s=1e6), "nothing is used up"),
    ],
)
def test_what_bounds_a_point_is_what_is_used_up_there(point: Point, words: str) -> None:
    assert words in bound(point, {"conditions": CONDITIONS, "raw": RAW})


def test_sizes_are_rendered_in_their_units_and_counts_as_counts() -> None:
    assert load_text(SWEEPS["entry"], 16) == "16 B"
    assert load_text(SWEEPS["entry"], 4 * KIB) == "4 KiB"
    assert load_text(SWEEPS["size"], 4 * GIB) == "4 GiB"
    assert load_text(SWEEPS["appenders"], 4096) == "4 096"


def test_the_plot_has_a_panel_a_sweep_and_is_the_same_twice(tmp_path: Path) -> None:
    draw = pytest.importorskip("benchmarks.growth.plot", reason="NOT TESTED: pip install -e '.[plot]'").draw
    report = _report(*SWEEPS)
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    draw(report, first)
    draw(report, second)
    xml.etree.ElementTree.parse(first)
    text = first.read_text("utf-8")
    assert all(sweep.title in text for sweep in SWEEPS.values())
    assert text == second.read_text("utf-8")


def test_half_a_report_is_not_rendered() -> None:
    with pytest.raises(ValueError, match="lacks topics, appenders"):
        write_docs(_report("streams", "entry", "size", "readers"))


def test_rough_figures_are_not_rendered() -> None:
    rough = _report("topics") | {"quick": True}
    with pytest.raises(ValueError, match="measure without --quick"):
        write_docs(merged([rough, _report(*SWEEPS)]))


def test_the_page_has_a_place_for_the_section() -> None:
    assert "MARK" in rendered(JOURNAL.read_text("utf-8"), "MARK", "growth")


# --- with real processes


def _growth(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.growth", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.process
@pytest.mark.parametrize("names", ["topics,entry", pytest.param("readers", marks=pytest.mark.faults)])
def test_a_cluster_is_measured_every_entry_is_found_and_nothing_is_left(names: str, tmp_path: Path) -> None:
    """How fast it is, is not asked: only that there are figures. Exit code 1 would be a cliff, on a machine that may be busy."""
    done = _growth("--quick", "--seconds", "0.2", "--only", names, "--json", "--data", str(tmp_path))
    assert done.returncode in (0, 1)
    report = json.loads(done.stdout)
    for name, points in points_of(report).items():
        sweep = SWEEPS[name]
        assert [point.load for point in points] == list(sweep.quick_loads)
        for point in points:
            assert all(point.figures[figure] > 0 for figure in (*sweep.rates, *sweep.latencies))
            assert {CLIENT, MACHINE, "vmr", "vsn-1", "vsn-2", "vsn-3"} <= set(point.busy)
    assert set(report["sweeps"]) == set(names.split(","))
    assert list(tmp_path.iterdir()) == []
