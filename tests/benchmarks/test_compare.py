"""benchmarks/compare.py distinguishes two revisions of a small repository, each of which reports its own number."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.compare import (
    DEFAULT_OPTIONS,
    Comparison,
    NotCompared,
    check_own_code,
    check_revision,
    compare,
    compared,
    comparison_table,
    exit_code,
    samples_of,
    source_of,
    turns,
)
from varlog.bench.catalogue import chosen_workloads

ROOT = Path(__file__).parents[2]

# A varlog that measures nothing: it says the number it was committed with, and the options it was given.
_MAIN = """
import json, sys
def run():
    sys.stderr.write(" ".join(sys.argv[1:]) + "\\n")
    print(json.dumps({{"results": [{{"workload": "w", "measured": {{"appends_per_s": {number}}}}}]}}))
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Tags `slow` (100 appends/s) and `fast` (200), and a working tree that says 50."""
    root = tmp_path / "repository"
    package = root / "src" / "varlog" / "cli"
    package.mkdir(parents=True)
    # A package without __init__.py would give way to an installed one, wherever it stands on the path.
    for path in (package / "serve.py", package / "__init__.py", package.parent / "__init__.py"):
        path.write_text("")
    _git(root, "init", "-q")
    for tag, number in (("slow", 100), ("fast", 200)):
        (package / "main.py").write_text(_MAIN.format(number=number))
        _git(root, "add", ".")
        _git(root, "commit", "-q", "-m", tag)
        _git(root, "tag", tag)
    (package / "main.py").write_text(_MAIN.format(number=50))
    return root


def _git(root: Path, *arguments: str) -> str:
    who = {f"GIT_{role}_{what}": "varlog" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-C", root, *arguments],
        env=os.environ | who | quiet,
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    return done.stdout.decode()


def test_each_revision_runs_its_own_code_and_the_working_tree_its_own(repository: Path) -> None:
    (faster,) = compare("slow", "fast", 2, [], repository)
    assert (faster.before, faster.after, faster.outcome) == (100.0, 200.0, "better")
    (slower,) = compare("fast", ".", 1, [], repository)
    assert (slower.before, slower.after, slower.outcome) == (200.0, 50.0, "worse")


def test_comparing_leaves_nothing_behind(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(places))
    before = _git(repository, "status", "--porcelain")
    compare("slow", "fast", 1, [], repository)
    assert list(places.iterdir()) == []
    assert _git(repository, "status", "--porcelain") == before
    assert _git(repository, "worktree", "list").count("\n") == 1


def test_a_missing_revision_is_named_with_the_remedy(repository: Path) -> None:
    check_revision("slow", repository)
    with pytest.raises(NotCompared, match="no revision 'never' here: name a commit, a tag or a branch"):
        compare("never", ".", 1, [], repository)


def test_a_revision_without_this_package_is_refused_before_anything_is_measured(repository: Path) -> None:
    (repository / "src" / "varlog" / "cli" / "serve.py").unlink()
    with pytest.raises(NotCompared, match="does not run the code at"):
        check_own_code(repository / "src")


def test_an_older_source_comes_before_the_installed_one_also_in_servers(repository: Path) -> None:
    """A server is started as `python -m varlog.cli.serve` and inherits the environment: see varlog/localcluster/process.py."""
    with source_of("slow", repository) as source:
        check_own_code(source)
        assert source != repository / "src"
    assert not source.exists()


@pytest.mark.parametrize(
    ("ratios", "code"), [((1.0, 1.0), 0), ((0.5, 1.0), 1), ((2.0, 1.0), 0), ((0.95, 1.0), 0), ((), 2)]
)
def test_only_what_is_worse_beyond_its_spread_fails(ratios: tuple[float, ...], code: int) -> None:
    comparisons = [Comparison("w", "appends_per_s", 100.0, 100.0 * ratio, 1.1, 1.1) for ratio in ratios]
    assert exit_code(comparisons) == code


def test_the_table_has_ratio_spread_and_conclusion() -> None:
    table = comparison_table([Comparison("append-1", "p50_s", 1.0, 1.5, 1.1, 1.2)])
    assert table.splitlines()[1].split() == ["append-1", "p50_s", "1.50", "1.10,", "1.20", "worse"]


def test_neither_side_always_goes_first() -> None:
    assert list(turns(3)) == [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]


def test_the_default_workloads_are_those_of_the_bench() -> None:
    names = [option for flag, option in pairwise(DEFAULT_OPTIONS) if flag == "-w"]
    assert [workload.name for workload in chosen_workloads(names)] == names


@pytest.mark.parametrize("arguments", [["BASE="], ["BASE=never-a-revision"]])
def test_make_names_what_base_must_be(arguments: list[str]) -> None:
    command = [
        "make",
        "--no-print-directory",
        "-o",
        ".venv",
        f"PY={sys.executable}",
        f"CORE={sys.executable}",
    ]
    done = subprocess.run(
        [*command, "bench-compare", *arguments], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert b"BASE=<commit, tag or branch>" in done.stderr or b"no revision 'never-a-revision'" in done.stderr


def _round(**figures: float) -> dict[str, object]:
    return {"results": [{"workload": "append-1", "measured": figures}]}


def test_two_revisions_are_compared_by_the_medians_of_their_rounds() -> None:
    before = samples_of([_round(appends_per_s=value, calls=1.0) for value in (90.0, 100.0, 110.0)])
    after = samples_of([_round(appends_per_s=value, other=2.0) for value in (210.0, 200.0, 190.0)])
    (one,) = compared(before, after)
    assert (one.workload, one.figure, one.ratio, one.outcome) == ("append-1", "appends_per_s", 2.0, "better")


def test_a_difference_within_the_spread_of_one_side_is_none() -> None:
    assert Comparison("w", "p50_s", 1.0, 1.2, 1.3, 1.0).outcome == "within the spread"
    assert Comparison("w", "p50_s", 1.0, 1.2, 1.1, 1.0).outcome == "worse"
    assert Comparison("w", "p50_s", 1.0, 0.8, 1.1, 1.0).outcome == "better"
