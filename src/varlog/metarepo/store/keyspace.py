"""Keyspace: what a replicated store needs of etcd, or of a similar service.

Fenced transactions, leases and waiting for a change, in etcd's terms.

Each call is one attempt with a short timeout of its own. After `NoAnswer` a request may have been executed, may still be, or never
will be. A caller that repeats it must make that harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from varlog.model.errors import Unavailable

# The limits of one transaction: below etcd's own of 128 operations and 1.5 MiB, with space for what is added to it.
OPERATIONS_MAX: Final = 120
BYTES_MAX: Final = 1 << 20


class NoAnswer(Unavailable):
    """No answer: the request may have been executed, or may still be."""


class LeaseGone(Unavailable):
    """The lease has ended or was revoked; nothing was changed."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key that exists. `created` and `modified` are revisions, which grow with every change of any key."""

    key: str
    value: bytes
    created: int
    modified: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Created:
    """The key was created at this revision; 0: it does not exist."""

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
    """Set one key. With a lease, the key is deleted when the lease ends."""

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
    """Whether the conditions were met and the operations executed, and at which revision; if not, the keys found instead."""

    succeeded: bool
    revision: int
    found: dict[str, StoredKey] = field(default_factory=dict)


class Keyspace(Protocol):
    """An ordered map with revisions and leases, which survives every failure that leaves a majority of its members."""

    @property
    def place(self) -> str: ...

    async def transact(
        self,
        conditions: Sequence[Condition],
        operations: Sequence[KeyOperation],
        otherwise: Sequence[str] = (),
    ) -> TransactionResult:
        """Execute all operations if all conditions are met; otherwise read the keys in `otherwise`. No key may be touched twice."""
        ...

    async def range(self, begin: str, end: str) -> list[StoredKey]:
        """Every key with begin <= key < end, in order, as of one point in time after the call."""
        ...

    async def grant(self, ttl_s: float) -> tuple[int, float]:
        """Grant a new lease. Returns its number, and its time, which may be longer than requested."""
        ...

    async def renew(self, lease: int) -> float:
        """Renew a lease. Returns the time it has from now on; 0 if it is gone."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys."""
        ...

    async def wait_change(self, key: str, after: int, timeout_s: float) -> None:
        """Return when the key was changed or deleted after that revision, at the timeout, or early for no reason."""
        ...

    async def close(self) -> None:
        """Close connections; the next call opens new ones."""
        ...
