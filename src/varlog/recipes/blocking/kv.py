"""KeyValue, Transactions and Transaction without async."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import Self, TypeVar

from varlog.client.blocking import Log
from varlog.model.batch import Buffer
from varlog.model.lsn import GLSN
from varlog.recipes.blocking.core import SyncFacade, call
from varlog.recipes.core.replicated import TIMEOUT_S
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.kv import key_value, transactions
from varlog.recipes.kv import transactions as transaction
from varlog.recipes.kv.key_order import KeyRange
from varlog.recipes.kv.kv_machine import HISTORY_BYTES, HISTORY_CHANGES, Change
from varlog.recipes.kv.transaction_rules import Isolation
from varlog.recipes.kv.transactions import RETRIES


class KeyValue(SyncFacade[key_value.KeyValue]):
    """The map of one name in a topic. Keys are text, in the order of their code points; values are bytes."""

    def __init__(
        self,
        log: Log,
        *,
        name: str = "kv",
        snapshots: Snapshots | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        opening = key_value.KeyValue.open(
            log.connector.asynchronous, name=name, snapshots=snapshots, timeout_s=timeout_s
        )
        super().__init__(log, opening)

    @property
    def log(self) -> Log:
        return self._log

    @property
    def inner(self) -> key_value.KeyValue:
        """The async map beneath; it is used in the log's loop only."""
        return self._inner

    # --- Writing --------------------------------------------------------------------------------------------------------

    def put(self, key: str, value: Buffer, *, timeout_s: float | None = None) -> GLSN:
        """Returns the key's new revision."""
        return self._run(self._inner.put(key, value, timeout_s=timeout_s))

    def delete(self, key: str, *, timeout_s: float | None = None) -> GLSN | None:
        """Returns the revision of the delete; None if there was no such key."""
        return self._run(self._inner.delete(key, timeout_s=timeout_s))

    def compare_and_set(
        self, key: str, value: Buffer | None, expected: int, *, timeout_s: float | None = None
    ) -> GLSN | None:
        """Write (None: delete) if the key still has the revision `expected`; 0: if there is no such key. Returns the new revision;
        None, and nothing is changed, if it has another one."""
        return self._run(self._inner.compare_and_set(key, value, expected, timeout_s=timeout_s))

    def write(self, writes: Mapping[str, Buffer | None], *, timeout_s: float | None = None) -> GLSN:
        """Many keys at once, at one revision; None deletes. No reader ever sees a part of it."""
        return self._run(self._inner.write(writes, timeout_s=timeout_s))

    def retain(
        self,
        changes: int = HISTORY_CHANGES,
        size_bytes: int = HISTORY_BYTES,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """How many changes, and bytes in them, every replica remembers, from now on."""
        self._run(self._inner.retain(changes, size_bytes, timeout_s=timeout_s))

    # --- Reading --------------------------------------------------------------------------------------------------------

    def get(self, key: str, *, stale: bool = False, timeout_s: float | None = None) -> Change | None:
        """The key's value and revision; None if it does not exist."""
        return self._run(self._inner.get(key, stale=stale, timeout_s=timeout_s))

    def range(
        self,
        prefix: str = "",
        *,
        keys: KeyRange | None = None,
        limit: int | None = None,
        stale: bool = False,
        timeout_s: float | None = None,
    ) -> list[Change]:
        """All keys that begin with `prefix`, or those of a range, in their order, at most `limit`; all of one moment."""
        return self._run(self._inner.range(prefix, keys=keys, limit=limit, stale=stale, timeout_s=timeout_s))

    def watch(self, prefix: str = "", *, after: int | None = None) -> Generator[Change, None, None]:
        """Every change of keys that begin with `prefix`, in order, none left out; a value of None is a delete. From those after the
        revision `after` on (None: after what is applied here now), forever. HistoryGone if not all of them are remembered."""
        return self._log.connector.iterate(self._call(lambda inner: inner.watch(prefix, after=after)))

    @property
    def revision(self) -> GLSN:
        """Of the newest change that is applied here."""
        return self._call(lambda inner: inner.revision)

    def catch_up(self, *, timeout_s: float | None = None) -> GLSN:
        """Wait until every acknowledged write is applied here: stale reads after it are fresh."""
        return self._run(self._inner.catch_up(timeout_s=timeout_s))


T = TypeVar("T")


class Transaction:
    """One transaction. Reads are of one moment, with its own writes; `with` commits it, or drops it if the block raises."""

    def __init__(self, log: Log, inner: transaction.Transaction) -> None:
        self._log = log
        self._run = log.connector.run
        self._inner = inner
        self.isolation = inner.isolation
        self.snapshot = inner.snapshot

    def get(self, key: str) -> bytes | None:
        """The key's value; None if it does not exist."""
        return call(self._log, lambda: self._inner.get(key))

    def range(
        self, prefix: str = "", *, keys: KeyRange | None = None, limit: int | None = None
    ) -> list[tuple[str, bytes]]:
        """All keys that begin with `prefix`, or those of a range, with their values, in their order, at most `limit`."""
        return call(self._log, lambda: self._inner.range(prefix, keys=keys, limit=limit))

    def put(self, key: str, value: Buffer) -> None:
        """Seen by others when it is committed."""
        self._inner.put(key, value)

    def delete(self, key: str) -> None:
        """Deleting a key that does not exist does nothing."""
        self._inner.delete(key)

    def commit(self, *, timeout_s: float | None = None) -> GLSN:
        """Returns the revision of everything it wrote. Conflict: nothing was written."""
        return self._run(self._inner.commit(timeout_s=timeout_s))

    def abort(self) -> None:
        """Drop it. Repeated, or after a commit, it does nothing."""
        self._inner.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))


class Transactions:
    """Transactions over one map. `isolation` is the level of those that name no other."""

    def __init__(self, kv: KeyValue, *, isolation: Isolation | str = Isolation.SERIALIZABLE) -> None:
        self._log = kv.log
        self._run = kv.log.connector.run
        self._inner = transactions.Transactions(kv.inner, isolation=isolation)

    def begin(
        self,
        isolation: Isolation | str | None = None,
        *,
        stale: bool = False,
        timeout_s: float | None = None,
    ) -> Transaction:
        """It sees every commit that was acknowledged before; with `stale` it does not ask."""
        begun = self._run(self._inner.begin(isolation, stale=stale, timeout_s=timeout_s))
        return Transaction(self._log, begun)

    def run(
        self,
        function: Callable[[transaction.Transaction], T],
        *,
        isolation: Isolation | str | None = None,
        retries: int = RETRIES,
        timeout_s: float | None = None,
    ) -> T:
        """Call `function` with a transaction, and commit that; after a Conflict, again. Returns what it returned.

        It is called in the log's loop, which waits for it: it does nothing but read and write in the transaction.
        """
        return self._run(self._inner.run(function, isolation=isolation, retries=retries, timeout_s=timeout_s))
