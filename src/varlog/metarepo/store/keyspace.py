"""Keyspace: what a replicated store needs of etcd, or of a service like it.

Fenced transactions, leases, waiting for a change, in etcd's terms.

Each call is one attempt with a short deadline of its own. After `NoAnswer` a request may have been carried out, may
still be, or never will be. A caller that repeats it must make that harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from varlog.model.errors import Unavailable

# What one transaction may hold: below etcd's own limits of 128 operations and 1.5 MiB, with room for what is added to it.
OPERATIONS_MAX: Final = 120
BYTES_MAX: Final = 1 << 20


class NoAnswer(Unavailable):
    """No answer: it may be done, or may still be done."""


class LeaseGone(Unavailable):
    """The lease has ended or was revoked; nothing was changed."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key that exists. `created` and `modified` are revisions: they grow with every change of anything."""

    key: str
    value: bytes
    created: int
    modified: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Created:
    """The key exists since this revision; 0: it does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Modified:
    """The key was last changed at this revision; 0: it does not exist."""

    key: str
    revision: int


Condition = Created | Modified


@dataclass(frozen=True, slots=True)
class PutKey:
    """Set one key. With a lease it is deleted when that ends."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class DeleteKeys:
    """Delete every key with begin <= key < end."""

    begin: str
    end: str


KeyOperation = PutKey | DeleteKeys


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Whether the conditions held and the operations were done, at which revision; if not, what was found instead."""

    succeeded: bool
    revision: int
    found: dict[str, StoredKey] = field(default_factory=dict)


class Keyspace(Protocol):
    """An ordered map with revisions and leases, which survives everything that a majority of its members survives."""

    @property
    def place(self) -> str: ...

    async def transact(
        self,
        conditions: Sequence[Condition],
        operations: Sequence[KeyOperation],
        otherwise: Sequence[str] = (),
    ) -> TransactionResult:
        """All operations if all conditions hold, else the keys named in `otherwise`. No key may be touched twice."""
        ...

    async def range(self, begin: str, end: str) -> list[StoredKey]:
        """Every key with begin <= key < end, in order, as of one point in time after this was asked."""
        ...

    async def grant(self, ttl_s: float) -> tuple[int, float]:
        """A new lease: its number, and its time, which may be longer than asked for."""
        ...

    async def renew(self, lease: int) -> float:
        """The time it has from now on; 0 if it is gone."""
        ...

    async def revoke(self, lease: int) -> None:
        """End it, and delete its keys."""
        ...

    async def wait_change(self, key: str, after: int, timeout_s: float) -> None:
        """Return when the key was changed or deleted after that revision, at the timeout, or early for no reason."""
        ...

    async def close(self) -> None:
        """Close connections; the next call makes new ones."""
        ...
