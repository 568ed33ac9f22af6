"""MetadataStore: atomic, durable, fenced changes of a small ordered map. The contract that all backends keep.

Keys are strings and are compared as such, values are bytes. Whoever has the store open leads: each opening takes a term
larger than all before it, and from then on no commit of an earlier opening has any effect (law 7). A store may be shared by
several metadata repositories: then opening means waiting for one's turn, and a turn may end at any time.
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
    """Remove one key; it need not be there."""

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
        """Which store this is, for people: a path, an address."""
        ...

    @property
    def complaints(self) -> Sequence[str]:
        """What was found harmed and could be made good, or failed since: a device is failing, in words."""
        ...

    @property
    def shared(self) -> bool:
        """Several repositories wait for it and one leads: `open` may take long, and is tried again when leading ends."""
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
        """Where all repositories listen that lead or wait, once that is not `known` any more. For ever, if nobody shares it."""
        ...

    async def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes, in order, or none; return once they survive a power loss.

        Fenced if a later opening took over. After any error the outcome is not known: the caller must not go on with this
        opening; the next one finds out. One commit at a time.
        """
        ...

    async def close(self) -> None:
        """Let go of the store, so that the next one need not wait; harmless if it was never opened."""
        ...


class SoleStore:
    """The leadership of a store that nobody shares: who has it open leads until he closes it."""

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
