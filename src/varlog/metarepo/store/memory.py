"""MemoryStore: the metadata store of tests and simulations. What it keeps outlives it, as a disk outlives a process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from varlog.metarepo.store.base import Change, Delete, Fenced, Opened, Put, SoleStore
from varlog.metarepo.store.memory_keys import MemoryKeys
from varlog.model.errors import Unavailable


async def _at_once() -> None:
    """No delay."""


class MemoryMetadata:
    """The contents: hand the same one to the next store to restart on it.

    `before_commit` and `after_commit` are awaited around the one point in time at which a commit takes effect: who is
    cancelled in the first has changed nothing, who is cancelled in the second has changed everything and never heard of it.

    `keys` are what repositories that share it see in place of `items` (InMemoryReplicatedStore); `held_until(host)` says until
    when, in the
    loop's time, nothing passes between them and that host.
    """

    def __init__(
        self,
        *,
        before_commit: Callable[[], Awaitable[None]] = _at_once,
        after_commit: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        self.items: dict[str, bytes] = {}
        self.term = 0
        self.keys = MemoryKeys()
        self.held_until: Callable[[str], float] = lambda host: 0.0
        self.before_commit = before_commit
        self.after_commit = after_commit


class MemoryStore(SoleStore):
    """One opening of a MemoryMetadata."""

    def __init__(self, metadata: MemoryMetadata, *, place: str = "memory") -> None:
        self._metadata = metadata
        self._place = place
        self._term = 0

    @property
    def place(self) -> str:
        return self._place

    async def open(self, address: str = "") -> Opened:
        await self._metadata.before_commit()
        self._metadata.term += 1
        self._term = self._metadata.term
        opened = Opened(self._term, dict(sorted(self._metadata.items.items())))
        await self._metadata.after_commit()
        return opened

    async def commit(self, changes: Sequence[Change]) -> None:
        if not self._term:
            raise Unavailable(f"{self._place} is not open")
        await self._metadata.before_commit()
        if self._term != self._metadata.term:
            raise Fenced(
                f"{self._place} was opened again, in term {self._metadata.term}: term {self._term} is over"
            )
        self._metadata.items = _changed(self._metadata.items, changes)
        await self._metadata.after_commit()

    async def close(self) -> None:
        self._term = 0


def _changed(items: dict[str, bytes], changes: Sequence[Change]) -> dict[str, bytes]:
    items = dict(items)
    for change in changes:
        if isinstance(change, Put):
            items[change.key] = change.value
        elif isinstance(change, Delete):
            items.pop(change.key, None)
        else:
            for key in [key for key in items if change.begin <= key < change.end]:
                del items[key]
    return items
