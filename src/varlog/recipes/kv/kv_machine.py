"""PURE. KvMachine: a map with its recent history.

Revisions are positions in the log: every replica has the same ones. The state depends on the log only: how much of the history is
kept (`retain`) is also decided by a command, so that two replicas never differ in what they remember, and so in which transactions
they commit.

Of every key it holds the versions after the horizon, deletes among them (tombstones), and the newest one that is not after it
if that has a value. So the state at any position from the horizon on can be read. `_changes` are the versions after the horizon
in the order of their positions: the same objects. What is oldest there is forgotten first, a whole revision at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from varlog.model.invariant import invariant
from varlog.model.limits import MIB
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.kv.key_order import KeyOrder, KeyRange
from varlog.recipes.kv.transaction_rules import Clash, Footprint, find_clash

HISTORY_CHANGES = 65_536
HISTORY_BYTES = 64 * MIB
# Whether a range has changed: a short one is checked key by key, a long one by the changes since.
SHORT_RANGE_KEYS = 64


class Change(NamedTuple):
    """The key got this value (None: was deleted) at this revision."""

    key: str
    value: bytes | None
    revision: GLSN

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value or b"")


class Retention(NamedTuple):
    """How much history is kept, at most: changes, and bytes of keys and values in them."""

    changes: int = HISTORY_CHANGES
    bytes: int = HISTORY_BYTES


class KvMachine:
    """One replica of the map. Commands come with their position, in its order; reads may be made at any time in between."""

    def __init__(self) -> None:
        self.begin_from(Retention(), NO_GLSN, NO_GLSN, ())

    # --- Commands -------------------------------------------------------------------------------------------------------

    def put(self, at: GLSN, key: str, value: bytes) -> GLSN:
        """Returns the revision, which is the command's own position."""
        self._write(at, key, value)
        self._forget()
        return at

    def delete(self, at: GLSN, key: str) -> GLSN | None:
        """Returns the revision; None, and nothing is changed, if there was no such key."""
        if self.get(key) is None:
            return None
        self._write(at, key, None)
        self._forget()
        return at

    def compare_and_set(self, at: GLSN, key: str, value: bytes | None, expected: GLSN) -> GLSN | None:
        """If the key's revision is `expected` (0: there is no such key), write; else None. Returns the new revision."""
        found = self.get(key)
        if (found.revision if found else NO_GLSN) != expected:
            return None
        if found is not None or value is not None:
            self._write(at, key, value)
            self._forget()
        return at

    def commit(self, at: GLSN, footprint: Footprint) -> GLSN | Clash:
        """All writes of a transaction, or none."""
        if clash := find_clash(self, footprint):
            return clash
        # In the order of the keys: a snapshot has no other, and a restored machine must continue like the saved one.
        for key, value in sorted(footprint.writes.items()):
            if value is not None or self.get(key) is not None:
                self._write(at, key, value)
        self._forget()
        return at

    def retain(self, retention: Retention) -> None:
        """From now on this much history is kept."""
        self.retention = retention
        self._forget()

    # --- Reads ----------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Change | None:
        """The newest version; None if the key does not exist."""
        if versions := self._versions.get(key):
            newest = versions[-1]
            return None if newest.value is None else newest
        return None

    def get_at(self, key: str, snapshot: GLSN) -> Change | None:
        """The version of then; `snapshot` is not before the horizon."""
        invariant(
            snapshot >= self.horizon, "what is forgotten is not read", at=snapshot, horizon=self.horizon
        )
        if versions := self._versions.get(key):
            newest = versions[-1]
            if newest.revision > snapshot:
                found = bisect_right(versions, snapshot, key=_revision)
                if not found:
                    return None
                newest = versions[found - 1]
            return None if newest.value is None else newest
        return None

    def within(self, keys: KeyRange) -> Iterator[Change]:
        """The newest versions of all keys in the range, in the order of the keys."""
        return (found for key in self._order.within(keys) if (found := self.get(key)))

    def within_at(self, keys: KeyRange, snapshot: GLSN) -> Iterator[Change]:
        """The versions of then; `snapshot` is not before the horizon."""
        return (found for key in self._order.within(keys) if (found := self.get_at(key, snapshot)))

    def changes_after(self, revision: GLSN) -> list[Change]:
        """In the order of their positions; `revision` is not before the horizon. Costs what is returned, not what is remembered."""
        invariant(
            revision >= self.horizon, "what is forgotten is not returned", at=revision, horizon=self.horizon
        )
        taken: list[Change] = []
        for change in reversed(self._changes):
            if change.revision <= revision:
                break
            taken.append(change)
        taken.reverse()
        return taken

    def changed(self, key: str) -> GLSN:
        versions = self._versions.get(key)
        return versions[-1].revision if versions else NO_GLSN

    def changed_within(self, keys: KeyRange, after: GLSN) -> tuple[str, GLSN] | None:
        short = list(islice(self._order.within(keys), SHORT_RANGE_KEYS + 1))
        if len(short) <= SHORT_RANGE_KEYS:
            return next(((key, changed) for key in short if (changed := self.changed(key)) > after), None)
        for change in reversed(self._changes):
            if change.revision <= after:
                return None
            if change.key in keys:
                return change.key, change.revision
        return None

    def __len__(self) -> int:
        """How many keys there are, with those deleted lately."""
        return len(self._versions)

    # --- Its state as a value -------------------------------------------------------------------------------------------

    def versions(self) -> list[list[Change]]:
        """All that is remembered: the versions of each key, oldest first, in the order of the keys."""
        return [self._versions[key] for key in self._order.within(KeyRange())]

    def begin_from(
        self, retention: Retention, horizon: GLSN, revision: GLSN, versions: Iterable[list[Change]]
    ) -> None:
        """Become the machine of which these were; the lists are its own from now on."""
        self.retention = retention
        self.horizon = horizon
        self.revision = revision  # of the newest change
        self._versions = {held[0].key: held for held in versions}
        self._order = KeyOrder(self._versions)
        kept = [change for held in self._versions.values() for change in held if change.revision > horizon]
        # The sort is stable, and the keys came in their order: as they were written.
        self._changes = deque(sorted(kept, key=_revision))
        self._bytes = sum(change.size for change in kept)

    # --- Within ---------------------------------------------------------------------------------------------------------

    def _write(self, at: GLSN, key: str, value: bytes | None) -> None:
        change = Change(key, value, at)
        if versions := self._versions.get(key):
            versions.append(change)
        else:
            self._versions[key] = [change]
            self._order.add(key)
        self._changes.append(change)
        self._bytes += change.size
        self.revision = at

    def _forget(self) -> None:
        while self._changes and (
            len(self._changes) > self.retention.changes or self._bytes > self.retention.bytes
        ):
            self._forget_revision(self._changes[0].revision)

    def _forget_revision(self, revision: GLSN) -> None:
        changes = self._changes
        while changes and changes[0].revision == revision:
            change = changes.popleft()
            self._bytes -= change.size
            versions = self._versions[change.key]
            if versions[0] is not change:
                del versions[0]  # a read from the horizon on sees this change, or a later one
            if change.value is None:
                del versions[0]
                if not versions:
                    del self._versions[change.key]
                    self._order.remove(change.key)
        self.horizon = revision


_revision = attrgetter("revision")
