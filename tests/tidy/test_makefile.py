"""The Makefile: every target sets up the part of .venv that it needs, once, and every target that a document names exists.

make is run for real, in a directory of its own, with an interpreter that records how it is called and does nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from varlog.testing.processes import PATIENCE_S

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = re.findall(r"^([a-z][a-z-]*):(?:.*) ## ", MAKEFILE, re.MULTILINE)
# They run without an interpreter.
BARE = {"help", "chromium", "clean"}
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob(".github/**/*.md"),
    ROOT / "tests/README.md",
    ROOT / "benchmarks/README.md",
]

INTERPRETER = """#!/bin/sh
echo "$*" >> "$RECORD"
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-c "*) echo 1 ;;
esac
"""


@dataclass(frozen=True)
class Checkout:
    """A directory with the Makefile, pyproject.toml and nothing else."""

    path: Path

    def make(self, *arguments: str) -> str:
        """What make prints."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        # `command -v` finds sh, so that nothing looks for a browser.
        environment |= {"RECORD": str(self.path / "record"), "VARLOG_CHROMIUM": "sh"}
        done = subprocess.run(
            ["make", f"PYTHON={self.path / 'interpreter'}", *arguments],
            cwd=self.path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def calls(self) -> list[str]:
        """How the interpreter was called since the last time, without the search for it."""
        record = self.path / "record"
        lines = record.read_text("utf-8").splitlines() if record.exists() else []
        record.unlink(missing_ok=True)
        return [line for line in lines if line.startswith("-m ")]

    def installed(self) -> list[str]:
        """Extras that were installed since the last time."""
        return [found[1] for call in self.calls() if (found := re.search(r"-m pip .*-e \.\[(.*)\]", call))]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    (tmp_path / "Makefile").write_text(MAKEFILE, "utf-8")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"), "utf-8")
    interpreter = tmp_path / "interpreter"
    interpreter.write_text(INTERPRETER, "utf-8")
    interpreter.chmod(0o755)
    return Checkout(tmp_path)


def test_check_installs_the_core_alone_and_once(checkout: Checkout) -> None:
    checkout.make("check")
    assert checkout.installed() == ["test"]
    checkout.make("check")
    assert checkout.installed() == []


def test_test_adds_everything_to_a_core_and_once(checkout: Checkout) -> None:
    checkout.make("check")
    checkout.calls()
    checkout.make("test")
    assert checkout.installed() == ["test-all"]
    checkout.make("test", "check", "bench-peers")
    assert checkout.installed() == []


def test_a_first_test_sets_up_everything_before_it_runs_anything(checkout: Checkout) -> None:
    checkout.make("test")
    calls = checkout.calls()
    tools = [call.split()[1] for call in calls]
    assert tools[:6] == ["venv", "pip", "pip", "ruff", "ruff", "mypy"]
    assert set(tools[6:]) == {"pytest", "varlog.testing.sim"}


def test_a_target_installs_only_the_extra_that_it_needs(checkout: Checkout) -> None:
    checkout.make("bench-peers")
    assert checkout.installed() == ["test", "test-peers"]


@pytest.mark.parametrize("target", ["check", "venv"])
def test_what_is_installed_is_installed_again_for_another_pyproject(checkout: Checkout, target: str) -> None:
    checkout.make("venv")
    checkout.calls()
    with (checkout.path / "pyproject.toml").open("a") as file:
        file.write("# another dependency\n")
    checkout.make(target)
    assert checkout.installed() == (["test"] if target == "check" else ["test", "test-all"])
    checkout.make("test")
    assert checkout.installed() == (["test-all"] if target == "check" else [])


def test_types_are_checked_as_far_as_their_packages_are_installed(checkout: Checkout) -> None:
    assert "run `make venv`" in checkout.make("types")
    assert "--exclude" in checkout.calls()[-1]
    checkout.make("venv")
    assert "run `make venv`" not in checkout.make("types")
    assert checkout.calls()[-1] == "-m mypy"


@pytest.mark.parametrize("target", sorted({*TARGETS} - BARE))
def test_every_target_sets_up_its_environment(checkout: Checkout, target: str) -> None:
    assert "setting up .venv" in checkout.make("-n", target, "BASE=main")


def test_every_target_that_a_document_names_exists() -> None:
    named = {
        f"{path.relative_to(ROOT)}: make {target}"
        for path in DOCUMENTS
        for target in re.findall(
            r"(?:`|^\s*)make (?:[A-Z]+=\S+ )*([a-z][a-z-]*)", path.read_text("utf-8"), re.MULTILINE
        )
        if target not in TARGETS
    }
    assert named == set()


def test_the_entry_point_of_continuous_integration_is_make_test() -> None:
    assert (ROOT / ".ci/run").read_text("utf-8").splitlines()[-1] == "exec make test"
