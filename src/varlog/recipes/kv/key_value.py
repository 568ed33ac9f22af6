"""KeyValue: a map that many processes share through a topic (R-USE-2).

Each process has all of it in memory. A write is done when it is in the log and applied here; a read asks the log for its tail, and
waits until everything up to there is applied here, so that it sees every acknowledged write (linearizable). With `stale=True` it
does not ask: it sees an earlier state, never a wrong one, and always this process's own writes.
"""

from __future__ import annotations

import operator
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from itertools import islice

from varlog.aio import Opening
from varlog.client.log import Log
from varlog.model.batch import Buffer
from varlog.model.errors import InvalidRequest
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.core.recipe import Recipe
from varlog.recipes.core.replicated import ReplicatedStateMachine
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.errors import HistoryGone
from varlog.recipes.kv.key_order import KeyRange, prefix_range
from varlog.recipes.kv.kv_codec import (
    CodedKvMachine,
    CompareAndSet,
    Delete,
    Put,
    Retain,
    checked_key,
    checked_value,
    encode_commit,
    encode_kv_command,
)
from varlog.recipes.kv.kv_machine import HISTORY_BYTES, HISTORY_CHANGES, Change
from varlog.recipes.kv.transaction_rules import Footprint, Isolation
from varlog.runtime.environment import Entropy, system_environment


class KeyValue(Recipe[CodedKvMachine]):
    """The map of one name in a topic. Keys are text, in the order of their code points; values are bytes.

    A revision is the position in the log of the write that made a version: it grows with every change, and is the same everywhere.
    """

    def __init__(self, replica: ReplicatedStateMachine[CodedKvMachine], entropy: Entropy) -> None:
        super().__init__(replica)
        self.entropy = entropy

    @classmethod
    def open(
        cls,
        log: Log,
        *,
        name: str = "kv",
        snapshots: Snapshots | None = None,
        entropy: Entropy | None = None,
        timeout_s: float = 10.0,
    ) -> Opening[KeyValue]:
        """Await it, or enter it with `async with`. All that open the same name in the same topic share one map. With `snapshots`
        it starts from the newest one, and `checkpoint` saves one."""

        chance = entropy or system_environment().entropy

        async def make() -> KeyValue:
            replica = await ReplicatedStateMachine.open(
                log, CodedKvMachine(), name=name, snapshots=snapshots, entropy=chance, timeout_s=timeout_s
            )
            return cls(replica, chance)

        return Opening(make)

    # --- Writing --------------------------------------------------------------------------------------------------------

    async def put(self, key: str, value: Buffer, *, timeout_s: float | None = None) -> GLSN:
        """Returns the key's new revision."""
        command = encode_kv_command(Put(checked_key(key), checked_value(value)))
        revision: GLSN = await self.replica.execute(command, timeout_s=timeout_s)
        return revision

    async def delete(self, key: str, *, timeout_s: float | None = None) -> GLSN | None:
        """Returns the revision of the delete; None if there was no such key."""
        command = encode_kv_command(Delete(checked_key(key)))
        revision: GLSN | None = await self.replica.execute(command, timeout_s=timeout_s)
        return revision

    async def compare_and_set(
        self, key: str, value: Buffer | None, expected: int, *, timeout_s: float | None = None
    ) -> GLSN | None:
        """Write (None: delete) if the key still has the revision `expected`; 0: if there is no such key. Returns the new revision;
        None, and nothing is changed, if it has another one."""
        command = CompareAndSet(
            checked_key(key),
            None if value is None else checked_value(value),
            GLSN(operator.index(expected)),
        )
        revision: GLSN | None = await self.replica.execute(encode_kv_command(command), timeout_s=timeout_s)
        return revision

    async def write(self, writes: Mapping[str, Buffer | None], *, timeout_s: float | None = None) -> GLSN:
        """Many keys at once, at one revision; None deletes. No reader ever sees a part of it."""
        checked = {
            checked_key(key): None if value is None else checked_value(value) for key, value in writes.items()
        }
        footprint = Footprint(Isolation.READ_COMMITTED, NO_GLSN, writes=checked)
        revision: GLSN = await self.replica.execute(encode_commit(footprint), timeout_s=timeout_s)
        return revision

    async def retain(
        self,
        changes: int = HISTORY_CHANGES,
        size_bytes: int = HISTORY_BYTES,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """How many changes, and bytes in them, every replica remembers, from now on: how far back a watch can begin, and how long
        a transaction can take."""
        if changes < 0 or size_bytes < 0:
            raise InvalidRequest(f"{changes} changes and {size_bytes} bytes cannot be kept: name 0 or more")
        command = Retain(operator.index(changes), operator.index(size_bytes))
        await self.replica.execute(encode_kv_command(command), timeout_s=timeout_s)

    # --- Reading --------------------------------------------------------------------------------------------------------

    async def get(self, key: str, *, stale: bool = False, timeout_s: float | None = None) -> Change | None:
        """The key's value and revision; None if it does not exist."""
        checked_key(key)
        await self.wait_fresh(stale, timeout_s)
        return self.replica.machine.get(key)

    async def range(
        self,
        prefix: str = "",
        *,
        keys: KeyRange | None = None,
        limit: int | None = None,
        stale: bool = False,
        timeout_s: float | None = None,
    ) -> list[Change]:
        """All keys that begin with `prefix`, or those of a range, in their order, at most `limit`; all of one moment."""
        await self.wait_fresh(stale, timeout_s)
        found = self.replica.machine.within(keys if keys is not None else prefix_range(prefix))
        return list(islice(found, limit))

    def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncGenerator[Change, None]:
        """Every change of keys that begin with `prefix`, in order, none left out; a value of None is a delete. From those after the
        revision `after` on (None: after what is applied here now), forever. HistoryGone if not all of them are remembered.

        Changes of one revision come one after the other: a reader that may have stopped between them continues with `after` one
        less than that revision, and sees them again."""
        return self._changes(prefix_range(prefix), self.revision if after is None else GLSN(after))

    async def _changes(self, keys: KeyRange, seen: GLSN) -> AsyncGenerator[Change, None]:
        while True:
            news = await self.replica.wait(partial(_news, seen=seen))
            seen = news[-1].revision
            for change in news:
                if change.key in keys:
                    yield change

    async def wait_fresh(self, stale: bool, timeout_s: float | None) -> None:
        """Before a local read: wait until every acknowledged write is applied here, or, `stale`, for nothing."""
        if stale:
            await self.replica.wait(lambda machine: machine)  # only checks that it has not stopped
        else:
            await self.replica.catch_up(timeout_s=timeout_s)

    # --- About it -------------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> GLSN:
        """Of the newest change that is applied here."""
        return self.replica.machine.revision

    async def catch_up(self, *, timeout_s: float | None = None) -> GLSN:
        """Wait until every acknowledged write is applied here: stale reads after it are fresh."""
        return await self.replica.catch_up(timeout_s=timeout_s)


def _news(machine: CodedKvMachine, seen: GLSN) -> list[Change] | None:
    if seen < machine.horizon:
        raise HistoryGone(seen, machine.horizon)
    return machine.changes_after(seen) or None
