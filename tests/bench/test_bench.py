"""`varlog bench`: its arithmetic, its targets, the shapes of its report. What a machine measures is never asserted."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from varlog.bench.catalogue import EVERYTHING, UNITS, WORKLOADS, chosen_workloads
from varlog.bench.context import BenchContext, BenchSettings, LiveDisplay, QuietDisplay, display_for
from varlog.bench.figures import format_count, format_mb_s, format_ms, growth, median, percentile
from varlog.bench.machine import (
    Conditions,
    RawLimits,
    busy_s,
    combined,
    conditions_of,
    file_system_of,
    loopback_bandwidth,
    measure_raw,
    parse_usage,
    sync_latencies,
    usage_of,
)
from varlog.bench.run import JSON_VERSION, BenchReport, BenchRun, expected
from varlog.bench.workload import (
    Measured,
    Meter,
    Workload,
    WorkloadPlace,
    appends_judge,
    bandwidth_judge,
    failed,
    judge_batches,
    judge_idle,
    judge_latency,
    judge_memory,
    judge_open,
    judge_sync,
    judged,
    metered,
)
from varlog.cli.bench import bench_command
from varlog.model.cluster import Ordering
from varlog.model.errors import Unavailable

RAW = RawLimits(sync_p50_s=0.0002, sync_p99_s=0.001, write_bytes_per_s=400e6, loopback_bytes_per_s=2e9)
CONDITIONS = Conditions(
    2, 0.1, "a processor", 8 * 10**9, "6.1", "ext4", "3.11.9", {"varlog": "0.1.0"}, "here", "sync on"
)


# --- figures


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.1, 100))
def test_a_percentile_is_a_measured_value_that_enough_values_do_not_exceed(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100
    assert sum(value < found for value in values) < max(1.0, len(values) * percent / 100)


@pytest.mark.parametrize(("percent", "found"), [(50, 50), (99, 99), (100, 100), (0.5, 1), (99.5, 100)])
def test_percentiles_of_one_to_a_hundred(percent: float, found: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == found


def test_the_median_of_an_even_number_lies_between_the_middle_two() -> None:
    assert (median([4, 1, 3, 2]), median([9, 1, 5])) == (2.5, 5)


@pytest.mark.parametrize("percent", [0, -1, 100.1])
def test_an_impossible_percentile_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 100"):
        percentile([1.0], percent)


def test_figures_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="percentile of nothing"):
        percentile([], 50)
    with pytest.raises(ValueError, match="median of nothing"):
        median([])
    with pytest.raises(ValueError, match="too few"):
        growth([1.0] * 7)


def test_growth_leaves_the_start_up_out_and_ignores_one_outlier() -> None:
    start_up = [10.0, 50.0, 90.0, 100.0]
    assert growth([*start_up, *[100.0] * 12]) == 0
    assert growth([*start_up, *[100.0] * 8, 100.0, 500.0, 100.0, 100.0]) == 0
    assert growth([float(value) for value in range(16)]) == 8


def test_figures_are_rendered_with_units() -> None:
    assert format_count(1234567.4) == "1 234 567"
    assert (format_ms(0.00123), format_ms(0.0456)) == ("1.23 ms", "46 ms")
    assert format_mb_s(123.4e6) == "123 MB/s"


# --- the meter


def test_the_meter_counts_only_what_ends_inside_its_window() -> None:
    meter = Meter(warm_up_s=100.0, seconds=50.0)
    for started, ended in [(-5, -1), (-1, 0), (0, 10), (10, 49.9), (49, 50)]:
        meter.record(meter.begin + started, meter.begin + ended)
    assert list(meter.latencies) == pytest.approx([1, 10, 39.9])
    measured = meter.measured(entries=1000, entry_bytes=100)
    assert measured["calls"] == 3
    assert measured["entries_per_s"] == pytest.approx(1000 * measured["appends_per_s"])
    assert measured["bytes_per_s"] == pytest.approx(100 * measured["entries_per_s"])
    assert (measured["p50_s"], measured["p99_s"]) == pytest.approx((10, 39.9))


def test_a_window_in_which_nothing_ended_is_no_figure() -> None:
    with pytest.raises(TimeoutError, match="not one call ended"):
        Meter(0.0, 1.0).measured(entries=1, entry_bytes=1)


def test_a_window_in_which_nothing_ends_is_open_until_the_first_call_does() -> None:
    """On a machine that stalls for longer than a short window there is still a figure: a bad one."""
    meter = Meter(warm_up_s=100.0, seconds=50.0)
    for started, ended in [(-5, -1), (0, 80), (0, 90)]:
        meter.record(meter.begin + started, meter.begin + ended)
    measured = meter.measured(entries=1, entry_bytes=1)
    assert measured["calls"] == 1
    assert (measured["p50_s"], measured["appends_per_s"]) == pytest.approx((80, 1 / 80))


def test_every_caller_calls_until_the_window_is_over() -> None:
    calls: list[asyncio.Task[object] | None] = []

    async def call() -> None:
        calls.append(asyncio.current_task())
        await asyncio.sleep(0)

    async def body() -> Meter:
        meter = Meter(0.0, 0.05)
        await metered(meter, QuietDisplay(), 3, call, each=1)
        return meter

    meter = asyncio.run(body())
    assert len(set(calls)) == 3, "each at least once, however late it comes to it"
    assert 0 < len(meter.latencies) <= len(calls)


# --- targets


def test_one_appender_is_judged_by_its_ratio_to_the_raw_latency() -> None:
    measured = {"p50_s": 0.0012, "p99_s": 0.01, "appends_per_s": 800.0}
    result = judge_latency(measured, RAW)
    assert result.ratio == pytest.approx(6.0)
    assert result.met == (result.ratio is not None and result.ratio <= 6)
    assert not judge_latency(measured | {"p50_s": 0.00125}, RAW).met


def test_batches_are_judged_by_all_copies_together() -> None:
    measured = {"entries_per_s": 95_000.0, "bytes_per_s": 95e6, "copies": 3.0, "p50_s": 0.05}
    result = judge_batches(measured, RAW)
    assert result.met
    assert result.ratio == pytest.approx(95 * 3 / 400)
    assert not judge_batches(measured | {"copies": 1.0}, RAW).met


def test_rates_are_judged_by_their_floor() -> None:
    judge = appends_judge(10_000)
    assert judge({"appends_per_s": 10_000.0}, RAW).met
    assert not judge({"appends_per_s": 9_999.0}, RAW).met
    bandwidth = bandwidth_judge(400e6)({"bytes_per_s": 500e6, "entries_per_s": 1.0}, RAW)
    assert (bandwidth.met, bandwidth.ratio) == (True, 0.25)


def test_an_idle_cluster_that_writes_one_byte_is_not_idle() -> None:
    assert judge_idle({"core_max": 0.009, "written_bytes": 0.0}, RAW).met
    assert not judge_idle({"core_max": 0.009, "written_bytes": 1.0}, RAW).met
    assert not judge_idle({"core_max": 0.01, "written_bytes": 0.0}, RAW).met


def test_opening_is_judged_by_time_and_peak_memory() -> None:
    measured = {
        "open_s": 0.5,
        "open_warm_s": 0.2,
        "peak_bytes": 60e6,
        "before_bytes": 40e6,
        "replica_bytes": 2e9,
    }
    assert judge_open(measured, RAW).met
    assert not judge_open(measured | {"open_s": 1.0}, RAW).met
    assert not judge_open(measured | {"peak_bytes": 100e6}, RAW).met


def test_a_sync_is_held_against_what_the_disk_takes() -> None:
    measured = {"bytes_per_s": 200e6, "entries_per_s": 2e5, "seconds": 2.5}
    result = judge_sync(measured, RAW)
    assert (result.met, result.ratio) == (True, 0.5)
    assert not judge_sync(measured | {"bytes_per_s": 199e6}, RAW).met


def test_memory_is_judged_by_size_and_growth() -> None:
    measured = {"resident_max_bytes": 200e6, "growth_bytes": 1e6, "seconds": 20.0, "bytes_per_s": 1e8}
    assert judge_memory(measured, RAW).met
    assert not judge_memory(measured | {"growth_bytes": 50e6}, RAW).met
    assert not judge_memory(measured | {"resident_max_bytes": 300e6}, RAW).met


# --- what the machine says


def test_a_machine_with_other_work_is_reported_and_waiting_for_a_disk_is_no_work() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert busy_s(f"cpu  {ticks} {ticks} {ticks} 999 999 {ticks} 0 0 0 0\ncpu0 7\n") == 4
    assert CONDITIONS.quiet
    busy = dataclasses.replace(CONDITIONS, busy_cores=1.5)
    assert not busy.quiet and "1.5 cores" in busy.lines()[-1]


def test_a_process_is_read_even_if_its_name_holds_parentheses() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = f"7 (a) b) S {' '.join('0' * 10)} {3 * ticks} {2 * ticks} 0 0\n"
    usage = parse_usage(stat, "VmHWM:\t  30 kB\nVmRSS:\t  20 kB\n", "write_bytes: 4096\n")
    assert (usage.cpu_s, usage.resident_bytes, usage.peak_bytes, usage.written_bytes) == (
        5,
        20480,
        30720,
        4096,
    )


def test_this_process_can_be_read_and_an_ended_one_is_named() -> None:
    assert usage_of(os.getpid()).resident_bytes > 0
    with pytest.raises(ProcessLookupError, match="has ended"):
        usage_of(2**22 + 1)


def test_the_file_system_is_that_of_the_longest_and_last_mount() -> None:
    mounts = "a / ext4 rw 0 0\nb /mnt xfs rw 0 0\nc /mnt/my\\040disk btrfs rw 0 0\nd /mnt tmpfs rw 0 0\n"
    assert file_system_of(Path("/home"), mounts) == "ext4"
    assert file_system_of(Path("/mnt/other"), mounts) == "tmpfs"
    assert file_system_of(Path("/mnt/my disk/data"), mounts) == "btrfs"


def test_conditions_name_the_machine_and_warn_of_a_disk_in_memory(tmp_path: Path) -> None:
    here = conditions_of(tmp_path, where="somewhere", sync="on")
    assert here.cores >= 1 and here.kernel and here.python and here.busy_cores >= 0
    in_memory = Conditions(2, 0.5, "p", 1, "k", "tmpfs", "3.11", {}, "w", "s")
    assert "--data" in in_memory.lines()[-1]


def test_raw_limits_leave_no_file_behind(tmp_path: Path) -> None:
    raw = measure_raw(tmp_path, 0.05)
    assert min(raw.as_json().values()) > 0
    assert raw.sync_p50_s <= raw.sync_p99_s
    assert len(sync_latencies(tmp_path, 60.0, writes_max=4)) == 2  # half of so few is warm-up
    assert list(tmp_path.iterdir()) == []
    assert loopback_bandwidth(0.01) > 0


def test_rounds_of_raw_limits_are_combined_by_their_medians() -> None:
    slow = RawLimits(1.0, 1.0, 1.0, 1.0)
    assert combined([RAW, slow, RAW]) == RAW


# --- report


async def _measure(context: BenchContext) -> Measured:
    return {"appends_per_s": 12.0}


def _workload(
    run: Callable[[BenchContext], Awaitable[Measured]] = _measure, *, beside_raw: bool = False
) -> Workload:
    return Workload(
        "mine", "my workload", "10 | more", WorkloadPlace.DISK, run, appends_judge(10), beside_raw
    )


def _report() -> BenchReport:
    met = judged(_workload(), {"appends_per_s": 12.0}, RAW, applies=True)
    open_ = judged(_workload(), {"appends_per_s": 12.0}, RAW, applies=False, note="another load")
    return BenchReport(CONDITIONS, (RAW, RAW), (met, open_, failed(_workload(), "no cluster")), took_s=3.0)


def test_the_json_report_has_figures_by_name_and_lists_what_was_not_measured() -> None:
    report = json.loads(_report().as_json())
    assert set(report) == {"version", "conditions", "raw", "raw_rounds", "results", "took_s"}
    assert report["version"] == JSON_VERSION
    assert report["raw"]["sync_p50_s"] == RAW.sync_p50_s
    assert [result["met"] for result in report["results"]] == [True, None, None]
    assert report["results"][0]["measured"] == {"appends_per_s": 12.0}
    assert report["results"][2]["note"] == "no cluster"
    assert not _report().all_measured


def test_the_markdown_report_is_one_row_a_result_with_bars_escaped() -> None:
    lines = _report().markdown().splitlines()
    rows = [line for line in lines if line.startswith("| my workload")]
    assert len(rows) == 3
    assert all("10 \\| more" in row for row in rows)
    assert rows[0].endswith("| yes |") and rows[2].endswith("| no cluster |")


def test_the_table_shows_every_result_and_the_conditions() -> None:
    console = Console(record=True, width=160, file=open(os.devnull, "w"))  # noqa: SIM115
    _report().show(console)
    console.file.close()
    text = console.export_text()
    assert text.count("my workload") == 3
    for word in ("ext4", "sync on", "median of 2 rounds", "another load"):
        assert word in text


# --- settings, catalogue, run


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"replicas": 4}, "--replicas"),
        ({"streams": 0}, "--streams"),
        ({"seconds": 0.0}, "--seconds"),
        ({"batch": 0}, "--batch"),
        ({"cluster": "a:1", "embedded": True}, "--embedded"),
    ],
)
def test_impossible_settings_are_refused_by_the_name_of_their_option(
    options: dict[str, object], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        BenchSettings(data=Path("x"), **options)  # type: ignore[arg-type]


def test_workloads_are_chosen_by_name_in_the_order_of_the_table() -> None:
    assert [one.name for one in chosen_workloads(["batch-1000", "append-1"])] == ["append-1", "batch-1000"]
    assert chosen_workloads([]) == list(WORKLOADS)
    sequenced = [one.name for one in chosen_workloads([], Ordering.SEQUENCED)]
    assert set(sequenced) == {one.name for one in (*WORKLOADS, *UNITS)} - {"open", "sync"}
    with pytest.raises(ValueError, match="no workload is called append-2"):
        chosen_workloads(["append-2"])


def test_workload_names_are_unique() -> None:
    names = [workload.name for workload in EVERYTHING]
    assert sorted(set(names)) == sorted(names)


def test_a_run_measures_raw_limits_around_a_workload_that_is_compared_with_them(tmp_path: Path) -> None:
    settings = BenchSettings(data=tmp_path, seconds=0.01, quick=True)
    report = asyncio.run(BenchRun(settings, [_workload(beside_raw=True)], QuietDisplay()).report())
    assert len(report.rounds) == 4  # before and after the run, before and after the workload
    assert report.results[0].met is (True if report.conditions.quiet else None)


def test_a_workload_that_fails_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    async def fails(context: BenchContext) -> Measured:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_raise(Unavailable("nobody is there")), name="fails")
        return {}

    settings = BenchSettings(data=tmp_path, quick=True)
    other = Workload("other", "other", "t", WorkloadPlace.DISK, _measure, appends_judge(1))
    report = asyncio.run(BenchRun(settings, [_workload(fails), other], QuietDisplay()).report())
    assert "nobody is there" in report.results[0].note
    assert report.results[1].met is True


async def _raise(error: Exception) -> None:
    raise error


def test_a_bug_is_not_taken_for_a_failed_workload() -> None:
    with pytest.raises(ExceptionGroup, match="group"):
        expected(ExceptionGroup("group", [Unavailable("x"), TypeError("bug")]))


def test_a_terminal_gets_a_live_display_and_a_pipe_none() -> None:
    with open(os.devnull, "w") as nowhere:
        assert isinstance(display_for(Console(file=nowhere)), QuietDisplay)
        with display_for(Console(file=nowhere, force_terminal=True)) as live:
            assert isinstance(live, LiveDisplay)
            live.begin("first")
            live.advance(0.5, "12 entries/s")
            live.begin("second")
            live.result("first: done [not markup]")


# --- the command


def _app() -> typer.Typer:
    app = typer.Typer()
    app.command("bench")(bench_command)
    return app


def test_list_names_every_workload_with_its_target() -> None:
    done = CliRunner().invoke(_app(), ["--list"])
    assert done.exit_code == 0
    everything = [workload.name for workload in EVERYTHING]
    assert [line.split()[0] for line in done.stdout.splitlines()] == everything


@pytest.mark.parametrize(
    "options", [["--workload", "nothing"], ["--nodes", "2", "--replicas", "3"], ["--batch", "0"]]
)
def test_wrong_options_end_with_exit_code_2_and_leave_nothing_behind(
    options: list[str], tmp_path: Path
) -> None:
    done = CliRunner().invoke(_app(), ["--data", str(tmp_path), *options])
    assert done.exit_code == 2
    assert done.stderr.startswith("varlog: error: ")
    assert list(tmp_path.iterdir()) == []


# --- with real processes


@pytest.mark.process
def test_bench_starts_a_cluster_measures_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ["--quick", "--seconds", "0.2", "--json", "-w", "append-1", "-w", "append-64", "-w", "embedded"]
    done = subprocess.run(
        [sys.executable, "-m", "varlog.cli", "bench", *options, "--data", str(data)],
        stdout=subprocess.PIPE,
        check=False,
        timeout=240,
    )
    report = json.loads(done.stdout)
    assert done.returncode == 0, {result["workload"]: result["note"] for result in report["results"]}
    assert [result["workload"] for result in report["results"]] == ["append-1", "append-64", "embedded"]
    assert all(result["measured"]["calls"] > 0 for result in report["results"])
    assert not data.exists()


@pytest.mark.process
def test_one_stream_with_one_copy_is_measured_against_the_raw_disk(tmp_path: Path) -> None:
    """R-USE-3. How much of the disk it uses is a figure of the machine: docs/benchmarks.md has it."""
    shape = ["--nodes", "1", "--replicas", "1", "--streams", "1", "-w", "batch-1000"]
    options = ["--quick", "--seconds", "0.2", "--json", "--data", str(tmp_path / "data"), *shape]
    done = subprocess.run(
        [sys.executable, "-m", "varlog.cli", "bench", *options],
        stdout=subprocess.PIPE,
        check=False,
        timeout=240,
    )
    report = json.loads(done.stdout)
    [result] = report["results"]
    assert (done.returncode, result["workload"]) == (0, "batch-1000"), result["note"]
    assert "1 replicas, 1 log stream per topic" in report["conditions"]["where"]
    assert result["measured"]["copies"] == 1
    beside = [limits["write_bytes_per_s"] for limits in report["raw_rounds"][1:3]]
    assert result["ratio"] == pytest.approx(result["measured"]["bytes_per_s"] / median(beside))


def test_a_series_is_kept_for_the_plot_and_left_out_where_there_is_none() -> None:
    plain = judged(WORKLOADS[1], {"appends_per_s": 1.0}, RAW, applies=True)
    drawn = judged(WORKLOADS[1], {"appends_per_s": 1.0}, RAW, applies=True, series={"second": [1.0]})
    assert "series" not in plain.as_json()
    assert drawn.as_json()["series"] == {"second": [1.0]}
