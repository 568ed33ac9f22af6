"""DriveStore: the only repository's store, over the drive of its host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from varlog.metarepo.store.base import Change, Opened
from varlog.metarepo.store.memory import MemoryMetadata
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.runtime.environment import Environment
from varlog.testing.sim.host import VOLUME

# Beside it, as in production: metadata.db.journal and metadata.db.lock.
METADATA_PATH: Final = VOLUME / "metadata.db"


class DriveStore(SqliteStore):
    """A SqliteStore on a simulated disk. The hooks of `moments` are awaited right before and right behind each commit."""

    def __init__(self, moments: MemoryMetadata, environment: Environment, path: Path = METADATA_PATH) -> None:
        super().__init__(path, environment)
        self._moments = moments

    async def open(self, address: str = "") -> Opened:
        await self._moments.before_commit()
        opened = await super().open(address)
        await self._moments.after_commit()
        return opened

    async def commit(self, changes: Sequence[Change]) -> None:
        await self._moments.before_commit()
        await super().commit(changes)
        await self._moments.after_commit()
