"""The types of the installed package, as a user's `mypy --strict` sees them.

Without our configuration, in another directory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from varlog.testing.processes import PATIENCE_S

PROGRAM = Path(__file__).with_name("typed_program.py")


def strict(directory: Path, source: str) -> str:
    """What mypy prints for a program in a directory of its own."""
    (directory / "program.py").write_text(source, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "program.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.stderr == ""
    return done.stdout


def test_a_users_program_is_typed(tmp_path: Path) -> None:
    assert strict(tmp_path, PROGRAM.read_text("utf-8")) == ""


def test_mistakes_in_a_users_program_are_found(tmp_path: Path) -> None:
    mistakes = {
        "varlog.OutcomeUnkown": 'no attribute "OutcomeUnkown"',
        "varlog.open('.').append('text')": 'incompatible type "str"',
        "varlog.connect('a:1').raed(1)": 'no attribute "raed"',
        "varlog.aio.opn('.')": 'no attribute "opn"',
        "varlog.open('.').read(1).data.glsn": 'no attribute "glsn"',
    }
    printed = strict(tmp_path, "\n".join(["import varlog", *mistakes]) + "\n")
    for number, words in enumerate(mistakes.values(), 2):
        assert any(
            line.startswith(f"program.py:{number}: error:") and words in line for line in printed.splitlines()
        ), printed
