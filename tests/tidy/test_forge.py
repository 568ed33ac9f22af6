"""Files for the forge: continuous integration runs make targets alone, on the Python versions that the package names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.tidy.test_makefile import TARGETS

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.name: path.read_text("utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_each_step_is_a_make_target_or_an_action_pinned_by_its_commit(name: str) -> None:
    steps = re.findall(r"^ *(?:- )?(run|uses): (.*)$", WORKFLOWS[name], re.MULTILINE)
    assert steps
    for kind, words in steps:
        if kind == "uses":
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", words), words
        else:
            found = re.fullmatch(r"make (?:[A-Z]+=\w+ )*([a-z-]+)(?: [A-Z]+=\w+)*", words)
            assert found and found[1] in TARGETS, words


def test_the_checks_run_on_the_python_versions_that_the_package_names() -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    matrix = re.search(r"python: \[(.*)\]", WORKFLOWS["ci.yml"])
    assert matrix is not None
    assert re.findall(r"3\.\d+", matrix[1]) == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_what_takes_hours_runs_at_night() -> None:
    runs = re.findall(r"run: (make .*)$", WORKFLOWS["nightly.yml"], re.MULTILINE)
    assert "make faults" in runs
    assert any(run.startswith("make sim-nightly") for run in runs)


def test_all_that_runs_before_a_merge_includes_the_whole_test() -> None:
    assert "- run: make test\n" in WORKFLOWS["ci.yml"]
