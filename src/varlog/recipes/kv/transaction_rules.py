"""PURE. Footprint of a transaction, and conflicts per isolation level.

A transaction reads from its snapshot, the state at one position, and is checked where its commit got into the log. Between the
two others may have committed. What must not have changed meanwhile:

    read_committed   nothing. Writes appear together, and only what is committed is ever read
    snapshot         no key that it writes: the first to commit wins, no update is lost. Write skew is possible: two that read
                     what the other writes
    serializable     no key and no range that it read; so it could have run as a whole where its commit is. What it writes
                     without having read it does not matter

A change of a key that was never seen again (deleted, and its tombstone forgotten) is before the horizon: a transaction whose
snapshot is from before the horizon, and that finds nothing at a key, is too old.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.kv.key_order import KeyRange


class Isolation(StrEnum):
    """What a transaction may see of others that run at the same time."""

    READ_COMMITTED = "read_committed"
    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a transaction read at its snapshot, and what it writes (None: deletes)."""

    isolation: Isolation
    snapshot: GLSN
    reads: Collection[str] = ()
    ranges: Collection[KeyRange] = ()
    writes: Mapping[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clash:
    """Why a transaction is not committed: `key` was changed at `revision`, after the snapshot. Revision 0: it is not known any
    more whether it was, because the snapshot is older than what is remembered."""

    key: str
    revision: GLSN
    snapshot: GLSN
    keys: KeyRange | None = None

    @property
    def too_old(self) -> bool:
        return self.revision == NO_GLSN


class Revisions(Protocol):
    """What must be known of the state to decide. Every change after `horizon` is known, deletes as well."""

    @property
    def horizon(self) -> GLSN: ...

    def changed(self, key: str) -> GLSN:
        """Position of the newest change of the key, also of its delete; 0 if there is none, or none that is remembered."""
        ...

    def changed_within(self, keys: KeyRange, after: GLSN) -> tuple[str, GLSN] | None:
        """A key of the range that was changed after a position, which is not before the horizon, and where."""
        ...


def find_clash(state: Revisions, footprint: Footprint) -> Clash | None:
    """None: it can be committed. Once it clashes it always will: positions of changes only grow."""
    if footprint.isolation is Isolation.READ_COMMITTED:
        return None
    if footprint.isolation is Isolation.SNAPSHOT:
        return _clash_in_keys(state, footprint.writes, footprint.snapshot)
    return _clash_in_keys(state, footprint.reads, footprint.snapshot) or _clash_in_ranges(state, footprint)


def _clash_in_keys(state: Revisions, keys: Collection[str], snapshot: GLSN) -> Clash | None:
    forgotten = snapshot < state.horizon
    for key in keys:
        revision = state.changed(key)
        # A key that exists has not been deleted after its newest change; one that does not exist may have been, unseen.
        if revision > snapshot or (forgotten and revision == NO_GLSN):
            return Clash(key, revision, snapshot)
    return None


def _clash_in_ranges(state: Revisions, footprint: Footprint) -> Clash | None:
    snapshot = footprint.snapshot
    for keys in footprint.ranges:
        if snapshot < state.horizon:
            return Clash(keys.begin, NO_GLSN, snapshot, keys)
        if found := state.changed_within(keys, snapshot):
            return Clash(found[0], found[1], snapshot, keys)
    return None
