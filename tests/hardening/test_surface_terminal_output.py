"""Attack surface: terminals.

An entry, a name or an error from someone else could control the terminal of the person who displayed it: escape
sequences, lines that look like others, and markup of tables were printed unescaped.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from varlog.cli.output import complain, make_console, make_table
from varlog.embedded import EmbeddedCluster
from varlog.runtime.environment import system_environment
from varlog.testing.processes import PATIENCE_S

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\x9b31mrow\u202e[red]x[/red]\x00"
COMMAND = [sys.executable, "-m", "varlog.cli"]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    async def fill() -> None:
        cluster = EmbeddedCluster(tmp_path / "data", system_environment(synced=False), sync=False)
        await cluster.start()
        log = await cluster.connect("orders", streams=1)
        await log.append(HOSTILE.encode())
        await log.append(b"\xff\x1b[31m")
        await log.append("é plain".encode())
        await log.close()
        await cluster.stop()

    asyncio.run(asyncio.wait_for(fill(), PATIENCE_S))
    return tmp_path / "data"


def on_terminal(arguments: list[str]) -> bytes:
    """The bytes that a terminal receives."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=follower,
        stderr=follower,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    sent = b""
    try:
        while piece := os.read(leader, 65536):
            sent += piece
    except OSError:
        pass  # how a terminal reports that its other side is closed
    finally:
        process.wait(PATIENCE_S)
        os.close(leader)
    return sent


def piped(arguments: list[str]) -> bytes:
    return subprocess.run(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True
    ).stdout


@pytest.mark.process
def test_entries_are_escaped_on_a_terminal_and_bytes_in_a_pipe(filled: Path) -> None:
    for arguments in (["tail", "orders"], ["read", "orders", "1", "--end", "4"]):
        shown = on_terminal([*arguments, "--data", str(filled)])
        assert not {b"\x1b", b"\x07", b"\x00"} & {bytes([byte]) for byte in shown}
        assert "\x9b" not in shown.decode() and "\u202e" not in shown.decode()
        assert shown.count(b"\r\n") == 3, "one line for each entry"
        assert b"\\x1b]0;owned" in shown and "é plain" in shown.decode()
        raw = HOSTILE.encode() + b"\n\xff\x1b[31m\n" + "é plain\n".encode()
        assert piped([*arguments, "--data", str(filled)]) == raw
        assert b"\x1b]0;owned\x07" in on_terminal([*arguments, "--raw", "--data", str(filled)])


@pytest.mark.process
def test_json_for_programs_has_printable_characters_only_and_means_the_same(filled: Path) -> None:
    lines = piped(["tail", "orders", "--json", "--data", str(filled)]).decode().splitlines()
    assert all(line.isprintable() for line in lines)
    assert json.loads(lines[0])["data"] == HOSTILE


def test_json_tables_and_errors_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    from varlog.cli.output import json_line

    assert json.loads(json_line({"name": HOSTILE + "𝄞\U000e0001é"})) == {"name": HOSTILE + "𝄞\U000e0001é"}
    assert json_line({"name": HOSTILE}).isprintable()
    complain(HOSTILE)
    make_console().print(make_table(HOSTILE, (HOSTILE, "#n"), [(HOSTILE, 1)]))
    out, error = capsys.readouterr()
    assert error.count("\n") == 1 and error.removesuffix("\n").isprintable()
    assert all(line.isprintable() for line in out.splitlines())
    assert out.count("[red]x[/red]") == 3, "it is text, and no markup"


@pytest.mark.process
def test_an_error_about_a_hostile_name_is_one_harmless_line(filled: Path) -> None:
    shown = on_terminal(["tail", "no\x1b[2Jname", "--data", str(filled)])
    assert b"\x1b" not in shown and shown.count(b"\r\n") == 1
