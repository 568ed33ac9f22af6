"""MetadataStore: atomic, durable, fenced changes of a small ordered map. The contract that all backends keep.

Keys are strings and are compared as such, values are bytes. A store is opened by one metadata repository at a time: each
opening takes a term larger than all before it, and from then on no commit of an earlier opening has any effect (law 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from varlog.model.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Put:
    """Set one key."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove one key; it need not be there."""

    key: str


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Remove every key with begin <= key < end."""

    begin: str
    end: str


Change = Put | Delete | DeleteRange


@dataclass(frozen=True, slots=True)
class Opened:
    """What an opening found: everything there is, and the term it took."""

    term: int
    items: dict[str, bytes]


class Fenced(Unavailable):
    """A later opening of the same store took over: this one changes nothing any more."""


class MetadataStore(Protocol):
    """Where the metadata repository keeps what it knows."""

    @property
    def place(self) -> str:
        """Which store this is, for people: a path, an address."""
        ...

    async def open(self) -> Opened:
        """Load everything and take a new, larger term, durably. StartError names the place and the remedy."""
        ...

    async def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes, in order, or none; return once they survive a power loss.

        Fenced if a later opening took over. After any error the outcome is not known: the caller must not go on with this
        opening. One commit at a time.
        """
        ...

    async def close(self) -> None:
        """Let go of the store; harmless if it was never opened."""
        ...
