"""D1: the newest commits of a killed repository.

One bad bit or sector in its journal lost them silently, because a bad newest record counted as torn and records shared
sectors; a truncated journal was read as far as it went.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from varlog.metarepo.store.base import PutItem
from varlog.metarepo.store.journal import journal_path
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.errors import StartupError
from varlog.runtime.environment import system_environment

COMMITS = {f"cut/{number:03d}": f"order {number:03d}".encode() * 3 for number in range(1, 41)}
NEWEST = b"order 040"


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What kill -9 leaves of a repository that has acknowledged all COMMITS."""
    path = tmp_path / "repository" / "metadata.db"
    path.parent.mkdir()

    async def body() -> Path:
        store = SqliteStore(path, system_environment())
        await store.open()
        for key, value in COMMITS.items():
            await store.commit([PutItem(key, value)])
        copy = shutil.copytree(path.parent, tmp_path / "left")
        await store.close()
        return copy / path.name

    return asyncio.run(body())


def _items(path: Path) -> dict[str, bytes]:
    async def body() -> dict[str, bytes]:
        store = SqliteStore(path, system_environment())
        try:
            return (await store.open()).items
        finally:
            await store.close()

    return asyncio.run(body())


def test_without_harm_everything_is_present(left: Path) -> None:
    assert _items(left) == COMMITS


@pytest.mark.parametrize("copy", [0, -1])
def test_one_bit_of_the_newest_commit_loses_nothing(left: Path, copy: int) -> None:
    content = bytearray(journal_path(left).read_bytes())
    places = [at for at in range(len(content)) if content.startswith(NEWEST, at)]
    content[places[copy]] ^= 1
    journal_path(left).write_bytes(content)
    assert _items(left) == COMMITS


@pytest.mark.parametrize("sector_bytes", [512, 4096])
@pytest.mark.parametrize("copy", [0, -1])
def test_one_sector_of_zeros_loses_nothing(left: Path, copy: int, sector_bytes: int) -> None:
    content = bytearray(journal_path(left).read_bytes())
    places = [at for at in range(len(content)) if content.startswith(NEWEST, at)]
    begin = places[copy] // sector_bytes * sector_bytes
    content[begin : begin + sector_bytes] = bytes(sector_bytes)
    journal_path(left).write_bytes(content)
    assert _items(left) == COMMITS


@pytest.mark.parametrize("bytes_missing", [1, 5, 100])
def test_a_journal_whose_end_is_missing_is_reported(left: Path, bytes_missing: int) -> None:
    """Wherever the newest commit is: what was behind the end is unknown."""
    content = journal_path(left).read_bytes()
    first = content.index(NEWEST) + len(COMMITS["cut/040"])
    for end in (len(content), content.rindex(NEWEST) + len(COMMITS["cut/040"]), first):
        journal_path(left).write_bytes(content[: end - bytes_missing])
        with pytest.raises(StartupError, match="journal"):
            _items(left)


def test_a_bad_bit_in_a_value_of_the_database_is_not_served(left: Path) -> None:
    assert _items(left) == COMMITS  # ends cleanly: all of it is in the database now
    content = bytearray(left.read_bytes())
    content[content.index(b"order 017") + 6] ^= 1
    left.write_bytes(content)
    with pytest.raises(StartupError, match="cut/017"):
        _items(left)


def test_an_older_database_beside_a_newer_journal_is_right_or_refused(left: Path, tmp_path: Path) -> None:
    older = tmp_path / "older copy"
    assert _items(left) == COMMITS
    shutil.copy(left, older)

    async def body() -> None:
        store = SqliteStore(left, system_environment())
        await store.open()
        await store.commit([PutItem("cut/041", b"")])
        await store.close()

    asyncio.run(body())
    shutil.copy(older, left)
    with pytest.raises(StartupError, match="the database is an older copy"):
        _items(left)


def test_a_missing_database_is_reported(left: Path) -> None:
    for path in left.parent.glob("metadata.db*"):
        if path != journal_path(left):
            path.unlink()
    with pytest.raises(StartupError, match="metadata"):
        _items(left)
