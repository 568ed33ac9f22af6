"""A release: the version is written in one place, and the changelog has a place for what comes next."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
HEADINGS = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_the_version_is_written_in_pyproject_alone() -> None:
    literal = re.compile(r"""^\s*(__version__|VERSION)\s*(:.*)?=\s*["']\d""", re.MULTILINE)
    assert [path for path in (ROOT / "src").rglob("*.py") if literal.search(path.read_text("utf-8"))] == []


def test_the_changelog_begins_with_what_is_not_released() -> None:
    assert HEADINGS[0] == "Unreleased"


def test_releases_in_the_changelog_have_a_date_and_are_the_newest_first_up_to_this_version() -> None:
    found = [re.fullmatch(r"(\d+\.\d+\.\d+), \d{4}-\d{2}-\d{2}", heading) for heading in HEADINGS[1:]]
    assert all(found), HEADINGS
    releases = [_parts(match[1]) for match in found if match]
    assert releases == sorted(set(releases), reverse=True)
    assert all(release <= _parts(VERSION) for release in releases)
