"""MetadataStore: atomic, durable, fenced changes of a small ordered map.

The contract that all backends keep.

Keys are strings and are compared as such, values are bytes. The repository that has the store open leads: each opening
takes a term larger than all before it, and from then on no commit of an earlier opening has any effect (law 7). A store
may be shared by several metadata repositories: then opening means waiting for leadership, which may end at any time.
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


Change = PutItem | DeleteItem | DeleteItems


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """What an opening found: everything there is, and the term it took."""

    term: int
    items: dict[str, bytes]


class Fenced(Unavailable):
    """A later opening of the same store took over, or may have: this one changes nothing any more."""


class MetadataStore(Protocol):
    """Where the metadata repository keeps what it knows."""

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
        """Several repositories wait for it and one leads: `open` may take long, and is tried again when the leadership ends."""
        ...

    async def open(self, address: str = "") -> OpenedStore:
        """Wait until this one leads, take a new, larger term, durably, and load everything.

        `address` is where others find this repository, while it waits and when it leads. StartupError names the place and
        the remedy.
        """
        ...

    @property
    def leads(self) -> bool:
        """False as soon as another one *may* lead, by this process's own clock: nothing read here may be answered any more."""
        ...

    @property
    def leader(self) -> str:
        """Where the present leader listens, as far as it is known; "" if it is not."""
        ...

    async def wait_lost(self) -> Fenced:
        """Return once this opening does not lead any more."""
        ...

    async def wait_repositories(self, known: tuple[str, ...]) -> tuple[str, ...]:
        """The addresses of all repositories that lead or wait, once they are not `known` any more. Waits forever if the
        store is not shared."""
        ...

    async def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes, in order, or none; return once they survive a power loss.

        Fenced if a later opening took over. After any error the outcome is not known: the caller must not continue with
        this opening; the next one finds out. One commit at a time.
        """
        ...

    async def close(self) -> None:
        """Release the store, so that the next opening need not wait; harmless if it was never opened."""
        ...


class SoleStore:
    """The leadership of a store that is not shared: the process that has it open leads until it closes it."""

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
