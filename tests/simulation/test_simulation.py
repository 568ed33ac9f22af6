"""Whole clusters in the simulator: a few fixed seeds keep every law, a run is the same everywhere, and it can fail."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from varlog.manager.admin import AdminService, Caller
from varlog.model.cluster import Ordering
from varlog.rpc.messages import AddStream, Message
from varlog.testing.sim.__main__ import main
from varlog.testing.sim.core import limits
from varlog.testing.sim.core.plan import SimPlan
from varlog.testing.sim.ending import EndingCheck
from varlog.testing.sim.mutants import patch
from varlog.testing.sim.mutants.catalog import MUTANTS, RARE, plant
from varlog.testing.sim.runner import search_mutants
from varlog.testing.sim.simulate import RunResult, simulate
from varlog.testing.sim.users.user import User
from varlog.verify.history import AppendCall, CallOutcome, TrimCall

SEEDS = range(1, 13)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_keeps_every_law(seed: int) -> None:
    """`make sim` searches further; these run with every `make check`."""
    result, _ = simulate(seed)
    replay = f"replay with: python -m varlog.testing.sim replay {seed}"
    assert result.violations == (), replay


def test_the_same_seed_is_the_same_history_twice_in_one_process() -> None:
    assert [simulate(seed)[0].digest for seed in (3, 4)] == [simulate(seed)[0].digest for seed in (3, 4)]


def test_the_same_seed_is_the_same_history_in_processes_with_other_hash_seeds() -> None:
    """Nothing depends on PYTHONHASHSEED, on addresses, or on what ran before."""
    script = (
        "import sys; from varlog.testing.sim.simulate import simulate; "
        "print(*(simulate(int(seed))[0].digest for seed in sys.argv[1:]))"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", script, *seeds],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.split()
        for hash_seed, seeds in (("1", ["5", "6", "7"]), ("2", ["6", "7", "5"]))
    ]
    assert digests[0] == [digests[1][2], digests[1][0], digests[1][1]]


def test_a_client_that_dies_before_its_first_step_leaves_no_coroutine_that_nobody_awaited() -> None:
    called: list[int] = []

    async def work() -> None:
        called.append(1)

    user = User.__new__(User)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        user._watched(work).close()
        gc.collect()
    assert not warned and not called


# What the trace of a run says where a fault strikes, or is repaired.
TRACED = (
    "crashes",
    "blackout",
    " stops",
    "is paused for",
    "connection cut",
    "straggles",
    "swallows everything",
    "is cut off from",
    "does not reach",
    "comes again",
    "syncs of",
    "is full for",
    "a bit flips",
    "its directory is deleted",
    "in the middle of a commit",
    "event=seal_stream",
    "sync complete",
    "event=change_replicas",
    "event=remove_orphan",
    "positions from 1000001 on",
    "the registry client has read",
    "the registry client trimmed",
    "the registry client began batch",
    "the registry client ended batch",
)


def test_what_an_operator_gave_up_is_over_before_a_cluster_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager finishes what it has begun. A log stream that it makes after all was well is not known to the judge."""
    add_stream, heal = AdminService._add_stream, EndingCheck.heal
    well: list[float] = []
    done: list[float] = []

    async def late(service: AdminService, request: AddStream, caller: Caller) -> Message:
        loop = asyncio.get_running_loop()
        end = loop.time() + 30.0
        while not well and loop.time() < end:
            await asyncio.sleep(0.05)
        answer = await add_stream(service, request, Caller(None, 0))
        done.append(loop.time())
        return answer

    async def healed(judge: EndingCheck) -> bool:
        is_well = await heal(judge)
        well.append(asyncio.get_running_loop().time())
        return is_well

    monkeypatch.setattr(AdminService, "_add_stream", late)
    monkeypatch.setattr(EndingCheck, "heal", healed)
    calm = (seed for seed in range(1, 2000) if (plan := SimPlan.of(seed)).calm and plan.new_streams)
    result, _ = simulate(next(calm))
    assert done
    assert well
    assert max(done) < min(well)
    assert result.violations == ()


def test_seeds_cover_what_they_are_for() -> None:
    """A simulation in which nothing crashes, nothing is repaired and nothing is unknown proves nothing."""
    wanted = {*TRACED, "trim", "append done", "append unknown", "append rejected", "append open"}
    seen: set[str] = set()
    for seed in range(1, 101):
        if wanted <= seen:
            break
        lines: list[str] = []
        _, world = simulate(seed, trace=lines.append)
        text = "\n".join(lines)
        seen |= {what for what in TRACED if what in text}
        for operation in world.history.operations:
            if isinstance(operation, AppendCall):
                seen.add(f"append {operation.outcome}")
            elif isinstance(operation, TrimCall) and operation.outcome is CallOutcome.DONE:
                seen.add("trim")
    assert wanted - seen == set()


def test_plans_differ_from_seed_to_seed() -> None:
    plans = [SimPlan.seeded(random.Random(seed)) for seed in range(60)]
    assert {plan.replicas for plan in plans} == {1, 2, 3}
    assert {plan.nodes for plan in plans} == {1, 2, 3, 4, 5}
    assert {plan.calm for plan in plans} == {True, False}


# Each in a process of its own, forked from one that has everything loaded: nothing of a bug may stay, and nothing is loaded twice.
_PLANT_ALL = """
import os, sys
import varlog.testing.sim.simulate
from varlog.testing.sim.mutants.catalog import MUTANTS, plant
for mutant in MUTANTS:
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        print(plant(mutant.name).name, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_every_planted_bug_still_has_its_place_in_the_code() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PLANT_ALL], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.stdout.split() == [mutant.name for mutant in MUTANTS], done.stderr


def test_the_list_of_planted_bugs_is_long_enough_and_each_describes_what_is_wrong() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 40
    assert all(mutant.wrong.endswith(".") and mutant.edits for mutant in MUTANTS)
    assert set(names) > RARE


def test_a_planted_bug_that_does_not_exist_is_refused() -> None:
    with pytest.raises(LookupError, match="no planted bug 'none'"):
        plant("none")


def test_a_patch_whose_place_is_gone_fails_loudly() -> None:
    with pytest.raises(patch.PatchGone, match="is gone"):
        patch.edit("varlog.model.epoch:nobody", "a", "b")
    with pytest.raises(patch.PatchGone, match="0 times"):
        patch.edit("varlog.model.ids:check_id", "no such text", "b")


def test_a_bound_whose_place_is_gone_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BOUNDS", (("varlog.model.limits", "NOBODY", (1,)),))
    with pytest.raises(LookupError, match="NOBODY is gone"), limits.tight_limits(random.Random(1)):
        raise AssertionError("not reached")


def test_tight_limits_are_loosened_again() -> None:
    from varlog.metarepo.ordering import commit_loop

    before = commit_loop.CUTS_PER_BASE
    for seed in range(20):
        with limits.tight_limits(random.Random(seed)):
            assert commit_loop.CUTS_PER_BASE in (3, 10, 512)
    assert before == commit_loop.CUTS_PER_BASE


def test_the_command_prints_a_violation_and_how_to_replay_it() -> None:
    """Exit code 1, the law, and the one command. Which seed shows the planted bug moves with every new kind of fault."""
    bug = "ack-before-commit"
    found = next(search_mutants([bug], 40, 1, {}))
    assert found.seed is not None, f"{bug} is not found in 40 seeds"
    replay = subprocess.run(
        [sys.executable, "-m", "varlog.testing.sim", "replay", str(found.seed), "--mutant", bug],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert replay.returncode == 1, replay.stderr
    assert "violated: " in replay.stdout and "planted: " in replay.stdout


def test_a_nightly_search_ends_when_its_time_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = tmp_path / "failures.txt"
    assert main(["nightly", "--hours", "0", "--jobs", "1", "--failures", str(failures)]) == 0
    assert "no violation" in capsys.readouterr().out and not failures.exists()


def test_a_seed_that_fails_by_night_is_kept_with_its_replay_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = RunResult(7, Ordering.SEQUENCED, "", (("Dense", "law 4", "a gap"),), 1, 1, 1.0, {})

    def one(*_: object, **__: object) -> Iterator[RunResult]:
        yield bad

    monkeypatch.setattr("varlog.testing.sim.__main__.run_seeds", one)
    failures = tmp_path / "failures.txt"
    assert main(["nightly", "--hours", "0", "--failures", str(failures)]) == 1
    assert main(["nightly", "--hours", "0", "--failures", str(failures)]) == 1
    text = failures.read_text()
    assert text.count("replay 7 --ordering sequenced") == 2 and "Dense (law 4): a gap" in text


def test_the_commands_exit_codes_show_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--seeds", "2", "--jobs", "1", "--ordering", "committed"]) == 0
    assert "2 seeds (committed)" in capsys.readouterr().out
    assert main(["run", "--seeds", "1", "--jobs", "1"]) == 0
    assert "2 seeds (committed, sequenced)" in capsys.readouterr().out
    assert main(["replay", "1"]) == 0
    assert "no violation" in capsys.readouterr().out
    assert main(["mutants", "--only", "nobody"]) == 2
    assert main(["mutants", "--only", "trim-one-too-many", "--seeds", "20", "--jobs", "1"]) == 0
    assert "1 of 1 planted bugs found" in capsys.readouterr().out
