"""What the README shows is what happens: its example runs as written and prints what stands below it; its files exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
