"""Attack surface: a value that looks like a record of the repository's journal.

The search for newer commits found it, and the repository never started again. Records are searched at sector boundaries
only, and every sector has the file's salt, which is secret.
"""

from __future__ import annotations

import asyncio
import shutil
import struct
from pathlib import Path

import pytest

from varlog.metarepo.store.base import PutItem
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.batch import crc32c
from varlog.runtime.environment import system_environment

BODY = b"\x91\x92\xa4base\xc4\x01x"  # MessagePack: [["base", b"x"]]


def _format_1(number: int) -> bytes:
    checked = struct.pack("<QI", number, len(BODY)) + BODY
    return b"VLMR" + crc32c(checked).to_bytes(4, "little") + checked


def _format_2(number: int, salt: bytes, place: int) -> bytes:
    checked = struct.pack("<16sQQIIIHHH", salt, number, number, place, place, 1, 0, 1, len(BODY)) + BODY
    return (b"VLMS" + crc32c(checked).to_bytes(4, "little") + checked).ljust(4096, b"\0")


def _values(salt: bytes) -> list[bytes]:
    """Every kind of record, at every relevant distance from a sector boundary, and with far larger numbers than
    exist."""
    looks = [*(_format_2(1000, salt, place) for place in (2, 3, 4, 5)), _format_1(1000) * 3]
    return [bytes(shift) + look * 2 for look in looks for shift in (0, 7, 58, 4038, 4096)]


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("salted", [False, True])
def test_a_value_that_looks_like_a_record_is_a_value(tmp_path: Path, salted: bool, torn: bool) -> None:
    """Even if the salt were known. `torn`: the newest record is torn, so that the search covers everything behind
    it."""
    path = tmp_path / "repository" / "metadata.db"
    path.parent.mkdir()
    expected: dict[str, bytes] = {}

    async def body() -> Path:
        store = SqliteStore(path, system_environment())
        await store.open()
        journal = path.with_name("metadata.db.journal")
        salt = journal.read_bytes()[12:28] if salted else bytes(16)
        for nth, value in enumerate(_values(salt)):
            expected[f"writer/{nth}"] = value
            await store.commit([PutItem(f"writer/{nth}", value)])
        left = shutil.copytree(path.parent, tmp_path / "left")
        await store.close()
        return left / path.name

    async def items(store: SqliteStore) -> dict[str, bytes]:
        try:
            return (await store.open()).items
        finally:
            await store.close()

    left = asyncio.run(body())
    if torn:
        journal = left.with_name("metadata.db.journal")
        content = bytearray(journal.read_bytes())
        newest, _ = expected.popitem()
        at = content.find(newest.encode())
        while at >= 0:
            content[at] ^= 1
            at = content.find(newest.encode(), at)
        journal.write_bytes(content)
    assert asyncio.run(items(SqliteStore(left, system_environment()))) == expected
