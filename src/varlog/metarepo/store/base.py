"""MetadataStore: atomic, durable, fenced changes of a small ordered map.

This is the contract of all backends.

Keys are strings and are compared as such, values are bytes. The repository that has the store open leads: each opening begins a
term larger than all before it, and from then on no commit of an earlier opening has any effect (law 7). A store may be shared by
several metadata repositories: then opening means waiting for leadership, which may end at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from varlog.model.errors import Unavailable


@dataclass(frozen=True, slots=True)
class PutItem:
    """Set one key."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class DeleteItem:
    """Remove one key; it need not exist."""

    key: str


@dataclass(frozen=True, slots=True)
class DeleteItems:
    """Remove every key with begin <= key < end."""

    begin: str
    end: str


StoreChange = PutItem | DeleteItem | DeleteItems


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """What an opening found: all items, and the term that it began."""

    term: int
    items: dict[str, bytes]


class Fenced(Unavailable):
    """A later opening of the same store took over, or may have: this one can change nothing any more."""


class MetadataStore(Protocol):
    """Where the metadata repository stores its state."""

    @property
    def place(self) -> str:
        """The store as shown in messages: a path, an address."""
        ...

    @property
    def complaints(self) -> Sequence[str]:
        """Sentences about damage that was found and repaired, or about failures since: a device is failing."""
        ...

    @property
    def shared(self) -> bool:
        """Whether several repositories share it and one leads: `open` may take long, and is repeated when the leadership ends."""
        ...

    async def open(self, address: str = "") -> OpenedStore:
        """Wait until this repository leads, begin a new, larger term, durably, and load everything.

        Others find this repository at `address`, while it waits and when it leads. Raises StartupError with the place and the
        remedy.
        """
        ...

    @property
    def leads(self) -> bool:
        """False as soon as another one *may* lead, by this process's own clock: nothing read here may be answered any more."""
        ...

    @property
    def leader(self) -> str:
        """The address of the current leader, or "" if it is unknown."""
        ...

    async def wait_lost(self) -> Fenced:
        """Wait until this opening no longer leads. Returns why."""
        ...

    async def wait_repositories(self, known: tuple[str, ...]) -> tuple[str, ...]:
        """Wait until the addresses of all leading and waiting repositories differ from `known`, and return them. Waits forever if
        the store is not shared."""
        ...

    async def commit(self, changes: Sequence[StoreChange]) -> None:
        """Apply all changes, in order, or none; return once they survive a power loss.

        Raises Fenced if a later opening took over. After any error the outcome is unknown: the caller must not continue with this
        opening; the next one finds out. One commit at a time.
        """
        ...

    async def close(self) -> None:
        """Release the store, so that the next opening need not wait; harmless if it was never opened."""
        ...


class SoleStore:
    """The leadership of a store that is not shared: the process that opened it leads until it closes it."""

    complaints: Sequence[str] = ()

    @property
    def shared(self) -> bool:
        return False

    @property
    def leads(self) -> bool:
        return True

    @property
    def leader(self) -> str:
        return ""

    async def wait_lost(self) -> Fenced:
        return await _never()

    async def wait_repositories(self, known: tuple[str, ...]) -> tuple[str, ...]:
        return await _never()


async def _never() -> NoReturn:
    while True:
        await asyncio.Event().wait()
