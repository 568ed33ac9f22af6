"""SqliteStore and files it must not touch: a clear error that names the file, and the file as it was."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from varlog.metarepo.store.base import PutItem
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.errors import StartupError
from varlog.runtime.environment import system_environment


def _open(path: Path) -> dict[str, bytes]:
    async def body() -> dict[str, bytes]:
        store = SqliteStore(path, system_environment())
        try:
            return (await store.open()).items
        finally:
            await store.close()

    return asyncio.run(body())


def _filled(path: Path, count: int = 1000) -> None:
    async def body() -> None:
        store = SqliteStore(path, system_environment())
        await store.open()
        await store.commit([PutItem(f"key/{number:05d}", b"x" * 100) for number in range(count)])
        await store.close()

    asyncio.run(body())


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        StartupError, match=r"nowhere/metadata\.sqlite cannot be used: No such file or directory"
    ):
        _open(tmp_path / "nowhere" / "metadata.sqlite")


def test_a_directory_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").mkdir()
    with pytest.raises(StartupError, match=r"metadata\.sqlite"):
        _open(tmp_path / "metadata.sqlite")


@pytest.mark.parametrize("content", [b"this is not a database, it is a letter" * 100, b"\0" * 8192, b"x"])
def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=r"metadata\.sqlite cannot be opened as metadata"):
        _open(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE recipes (name TEXT)")
    foreign.commit()
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(StartupError, match=r"metadata\.sqlite is a database of another program"):
        _open(path)
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    _filled(path, 1)
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 4")
    newer.close()
    with pytest.raises(StartupError, match="has format version 4, this program knows version 3"):
        _open(path)


def test_a_damaged_page_is_found_when_the_store_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    _filled(path)
    content = bytearray(path.read_bytes())
    content[-4096 * 4 : -4096 * 3] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(StartupError, match=r"metadata\.sqlite cannot be opened as metadata"):
        _open(path)


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    """A start that was cut off before its first transaction leaves one."""
    path = tmp_path / "metadata.sqlite"
    path.touch()
    assert _open(path) == {}


@pytest.mark.parametrize(("synced", "expected"), [(True, 2), (False, 0)])
def test_every_commit_waits_for_the_device_unless_configured_otherwise(
    tmp_path: Path, synced: bool, expected: int
) -> None:
    async def body() -> tuple[int, str]:
        store = SqliteStore(tmp_path / "metadata.sqlite", system_environment(), synced=synced)
        await store.open()
        database = store._database
        assert database is not None
        found = database.sql.execute("PRAGMA synchronous").fetchone()[0]
        journal = database.sql.execute("PRAGMA journal_mode").fetchone()[0]
        await store.close()
        return found, journal

    assert asyncio.run(body()) == (expected, "wal")
