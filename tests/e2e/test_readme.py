"""README and first pages do what they say.

Programs, commands and curl lines are run as printed, and outputs are compared.
"""

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


def test_the_first_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    example = next(block for block in pages.blocks("README.md") if block.language == "python")
    ran = subprocess.run(
        [sys.executable, "-c", example.code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == (example.prints, "", 0)


def test_the_first_two_commands_are_demo_and_test() -> None:
    first = next(block for block in pages.blocks("README.md") if block.language == "sh")
    commands = [line.split("#")[0].strip() for line in first.code.splitlines()]
    assert commands == ["make demo", "make test"]


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


# --- `varlog up`, and what is typed beside it -----------------------------------------------------------------------------------

UP = "varlog up --nodes 3 --streams 2"
ADDRESS = "127.0.0.1:7100"
# Its ports on the pages: repository, manager, nodes, sequencer, proxy.
PORTS = (7100, 7101, 7110, 7111, 7112, 7113, 7180)
# Which log stream accepts a batch is random.
CHANCE = {
    r"(log stream|LLSN) \d+": r"\1 N",
    r"LLSN N to \d+": "LLSN N",
    r'("log_stream"|"llsn"):\d+': r"\1:N",
}
NUMBERS = {r"\d+": "N"}


@contextmanager
def elsewhere() -> Iterator[dict[int, int]]:
    """The same ports elsewhere: all of them free, and at the same distances."""
    with free_block() as first:
        yield {port: port - PORTS[0] + first for port in PORTS}


@contextmanager
def up(directory: Path, ports: dict[int, int], shell: Shell) -> Iterator[str]:
    """The cluster of the pages, and what it printed when it was ready."""
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


def run_page(name: str, shell: Shell) -> int:
    """Run what is typed beside `varlog up`, and the programs that connect to it, in the order of the page; returns how
    many."""
    ran = 0
    for block in pages.blocks(name):
        if block.language == "python" and ADDRESS in block.code and "varlog.spark" not in block.code:
            assert shell.run_python(block.code) == block.prints, str(block)
            ran += 1
        for typed in typed_in(block) if block.language in ("", "console") else ():
            if typed.command.startswith(("varlog up", "varlog demo")):
                continue
            masks = {**CHANCE, **NUMBERS} if typed.command == "varlog status" else CHANCE
            printed = shell.run(typed.command)
            assert alike(printed, typed.shown, masks=masks), f"{typed.where}\n{printed}"
            ran += 1
    return ran


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "ran_min"), [("README.md", 3), ("docs/getting-started.md", 9), ("docs/guide/cluster.md", 10)]
)
def test_what_is_typed_after_up_prints_what_the_page_says(tmp_path: Path, name: str, ran_min: int) -> None:
    """R-USE-1, R-USE-2: each command, each curl line and each program as printed, in order."""
    starts = [typed for block in pages.blocks(name) for typed in typed_in(block) if typed.command == UP]
    with elsewhere() as ports, up(tmp_path, ports, shell := Shell(tmp_path, ports)) as printed:
        assert all(alike(printed, start.shown) for start in starts) and starts, printed
        assert run_page(name, shell) >= ran_min
