"""D1 in an embedded log: an older copy of the journal is restored after a crash.

The rows that order the newest entries are synced up to 0.2 s later, so only the journal knew their positions: the
entries were cut silently, and their positions were assigned again. With one log stream and one replica the order is
that of the data.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from varlog.embedded import open_log

JOURNAL = "metadata.db.journal"
DEADLINE_S = 60.0


async def wait_rows_synced(live: Path) -> None:
    """Wait until the rows of everything appended so far are in their file."""
    [rows] = live.glob("volume/cid=*/snid=*/lsid=*/commits.log")
    before = rows.stat().st_size
    while rows.stat().st_size == before:
        await asyncio.sleep(0.01)


async def crashed(directory: Path, *, lost: int, synced: int = 0) -> tuple[Path, dict[int, bytes]]:
    """What a crash leaves right after some appends, with the journal as it was before the last `lost` of them. The rows
    of the first `synced` are on the disk."""
    live, left = directory / "live", directory / "left"
    acknowledged: dict[int, bytes] = {}
    older = b""
    log = await open_log(live, "orders")
    try:
        for number in range(20):
            if number == 20 - lost:
                older = (live / JOURNAL).read_bytes()
            data = b"order %d" % number
            acknowledged[(await log.append(data)).glsn] = data
            if number + 1 == synced:
                await wait_rows_synced(live)
        shutil.copytree(live, left)
    finally:
        await log.close()
    (left / JOURNAL).write_bytes(older)
    return left, acknowledged


@pytest.mark.parametrize(
    ("lost", "synced"), [(1, 0), (2, 0), (15, 0), (15, 12)], ids=["one", "two", "many", "some rows are known"]
)
def test_d1_embedded_entries_keep_their_positions_when_an_older_journal_is_restored(
    lost: int, synced: int, tmp_path: Path
) -> None:
    async def story() -> None:
        left, acknowledged = await crashed(tmp_path, lost=lost, synced=synced)
        log = await open_log(left, "orders")
        async with log:
            after = await log.append(b"after")
            assert after.glsn == max(acknowledged) + 1
            for glsn, data in acknowledged.items():
                assert (await log.read(glsn)).data == data

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))


def test_d1_embedded_entries_keep_their_positions_when_their_rows_are_lost_as_well(tmp_path: Path) -> None:
    """Power loss: rows that are not synced are gone, however much later the crash comes."""

    async def story() -> None:
        left, acknowledged = await crashed(tmp_path, lost=10)
        [rows] = left.glob("volume/cid=*/snid=*/lsid=*/commits.log")
        rows.write_bytes(rows.read_bytes()[:64])  # its header alone: no row was ever synced
        log = await open_log(left, "orders")
        async with log:
            assert (await log.append(b"after")).glsn == max(acknowledged) + 1
            for glsn, data in acknowledged.items():
                assert (await log.read(glsn)).data == data

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))
