"""Snapshots: the store of snapshots, and the format of a replica's snapshot.

C1 'v' 'l' 's'   magic
02               version
[…]              msgpack array: machine, position, horizon, sessions, state, skipped

Version 1 is the same without `skipped`: it was written where no position had been skipped.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

import msgspec

from varlog.model.errors import PreconditionFailed
from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import Sessions
from varlog.recipes.core.envelope import DECODE_ERRORS

MAGIC: Final = b"\xc1vls"
VERSION: Final = 2
VERSIONS: Final = (1, 2)
HEAD: Final = MAGIC + bytes([VERSION])


class Snapshots(Protocol):
    """A store of snapshots, which several replicas may share: of each name the newest counts."""

    async def save(self, name: str, position: GLSN, content: bytes) -> None:
        """Keep it, durably and whole, before this returns. Older ones of the same name may be removed."""
        ...

    async def newest(self, name: str) -> tuple[GLSN, bytes] | None:
        """The one of the largest position that is whole; None if there is none."""
        ...


SavedSession = tuple[bytes, int, list[int], GLSN]


class ReplicaSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """One replica as of a position: the machine's own state, and which commands were applied (see Sessions). `skipped`: positions
    that were skipped because an operator wanted it."""

    machine: str
    position: GLSN
    horizon: GLSN
    sessions: list[SavedSession]
    state: bytes
    skipped: list[GLSN] = []


def encode_snapshot(
    machine: str, position: GLSN, sessions: Sessions, state: bytes, skipped: Collection[GLSN] = ()
) -> bytes:
    """The bytes that go into a store."""
    return HEAD + msgspec.msgpack.encode(
        ReplicaSnapshot(machine, position, sessions.horizon, list(sessions), state, sorted(skipped))
    )


class UnreadableSnapshot(PreconditionFailed):
    """What a store has is no snapshot, or is damaged: it is ignored."""


def decode_snapshot(content: bytes, machine: str) -> ReplicaSnapshot:
    """What a store returned. PreconditionFailed: it is none, of another machine, or of a version that is not known here."""
    if not content.startswith(MAGIC):
        raise UnreadableSnapshot(
            f"what the store has as snapshot of machine {machine!r} is none: give it a store of its own"
        )
    if len(content) < len(HEAD) or content[len(MAGIC)] not in VERSIONS:
        raise PreconditionFailed(
            f"the snapshot of machine {machine!r} has format {content[len(MAGIC) : len(HEAD)].hex()}, this varlog knows "
            f"{VERSION:02x}: use the version that wrote it"
        )
    try:
        found = msgspec.msgpack.decode(memoryview(content)[len(HEAD) :], type=ReplicaSnapshot)
    except DECODE_ERRORS as error:
        raise UnreadableSnapshot(
            f"the snapshot of machine {machine!r} cannot be read ({error}): restore it from a copy"
        ) from error
    if found.machine != machine:
        raise PreconditionFailed(
            f"the store has a snapshot of machine {found.machine!r} under the name {machine!r}: fix its names"
        )
    return found
