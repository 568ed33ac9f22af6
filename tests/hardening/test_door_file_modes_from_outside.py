"""The modes of what an embedded log keeps, through its public name alone, so that it can be tried on any version.

Before, every user of the machine could read the files of a log.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from varlog.embedded import open_log


def test_door_file_modes_nobody_else_can_read_or_list_what_a_log_keeps(tmp_path: Path) -> None:
    async def story() -> dict[str, int]:
        async with await open_log(tmp_path / "log", "orders") as log:
            await log.append(b"secret")
            return {
                str(path.relative_to(tmp_path)): path.stat().st_mode & 0o077
                for path in (tmp_path / "log").rglob("*")
            }

    before = os.umask(0o022)
    try:
        modes = asyncio.run(story())
    finally:
        os.umask(before)
    assert modes and not {path: oct(mode) for path, mode in modes.items() if mode}
