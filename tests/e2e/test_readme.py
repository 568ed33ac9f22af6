"""What the README shows is what happens: examples, commands and curl lines run as printed, and print what stands below them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e import pages
from tests.e2e.shell import Shell, alike, typed_in
from varlog.localcluster.ports import free_block
from varlog.testing.processes import PATIENCE_S

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_first_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    example = blocks("python")[0]
    expected = README.split(example, 1)[1].split("```\n", 2)[2].split("```", 1)[0]
    ran = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == (expected, "", 0)


def test_the_first_two_commands_are_demo_and_test() -> None:
    commands = [line.split("#")[0].strip() for line in blocks("sh")[0].splitlines()]
    assert commands == ["make demo", "make test"]


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


# --- `varlog up`, and what is typed beside it -----------------------------------------------------------------------------------

UP = "varlog up --nodes 3 --streams 2"
# The ports that it takes, as the README has them: repository, manager, nodes, sequencer, proxy.
PORTS = (7100, 7101, 7110, 7111, 7112, 7113, 7180)
# Which log stream takes a batch is a matter of chance.
CHANCE = {
    r"(log stream|LLSN) \d+": r"\1 N",
    r"LLSN N to \d+": "LLSN N",
    r'("log_stream"|"llsn"):\d+': r"\1:N",
}
NUMBERS = {r"\d+": "N"}


@contextmanager
def elsewhere() -> Iterator[dict[int, int]]:
    """The same ports in another place: all of them free, and as far from each other."""
    with free_block() as first:
        yield {port: port - PORTS[0] + first for port in PORTS}


@contextmanager
def up(directory: Path, ports: dict[int, int], shell: Shell) -> Iterator[str]:
    """The cluster that the README has, and what it said when it was ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "varlog.cli", *UP.split()[1:], f"--port={ports[PORTS[0]]}"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, "it did not start"
            said += line
        yield shell.as_shown(said)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
def test_what_is_typed_after_up_prints_what_the_readme_says(tmp_path: Path) -> None:
    """R-USE-1, R-USE-2: each command and each curl line as printed, in order; then the recipes, in Python."""
    typed = [typed for block in pages.blocks("README.md") if not block.language for typed in typed_in(block)]
    [told_of_up] = [shown for shown in typed if shown.command == UP]
    rest = [shown for shown in typed if shown.command.startswith(("curl", "varlog"))]
    rest = [shown for shown in rest if not shown.command.startswith(("varlog up", "varlog demo"))]
    assert [shown.command.split()[0] for shown in rest].count("curl") >= 3
    with elsewhere() as ports, up(tmp_path, ports, shell := Shell(tmp_path, ports)) as said:
        assert alike(said, told_of_up.shown), said
        for shown in rest:
            masks = {**CHANCE, **NUMBERS} if shown.command == "varlog status" else CHANCE
            told = shell.run(shown.command)
            assert alike(told, shown.shown, masks=masks), f"{shown.where}\n{told}"
        recipe = next(code for code in blocks("python") if "varlog.recipes" in code)
        expected = README.split(recipe, 1)[1].split("```\n", 2)[2].split("```", 1)[0]
        ran = shell.run_python(recipe)
        assert ran == expected
