"""Transactions and Transaction without async."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from varlog.client.blocking import Log
from varlog.model.batch import Buffer
from varlog.model.lsn import GLSN
from varlog.recipes import transaction, transactions
from varlog.recipes.blocking.facade import call
from varlog.recipes.blocking.kv import KeyValue
from varlog.recipes.key_order import KeyRange
from varlog.recipes.transaction_rules import Isolation
from varlog.recipes.transactions import RETRIES

T = TypeVar("T")


class Transaction:
    """One transaction. Reads are of one moment, with its own writes; `with` commits it, or drops it if the block raises."""

    def __init__(self, log: Log, inner: transaction.Transaction) -> None:
        self._log = log
        self._inner = inner
        self.isolation = inner.isolation
        self.snapshot = inner.snapshot

    def get(self, key: str) -> bytes | None:
        """The key's value; None if it is not there."""
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
        """Of a key that is not there: does nothing."""
        self._inner.delete(key)

    def commit(self, *, timeout_s: float | None = None) -> GLSN:
        """Returns the revision of everything it wrote. Conflict: nothing was written."""
        return self._log.run(self._inner.commit(timeout_s=timeout_s))

    def abort(self) -> None:
        """Drop it. Again, or after a commit, is harmless."""
        self._inner.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.run(self._inner.__aexit__(kind, error, trace))


class Transactions:
    """Transactions over one map. `isolation` is the level of those that name no other."""

    def __init__(self, kv: KeyValue, *, isolation: Isolation | str = Isolation.SERIALIZABLE) -> None:
        self._log = kv.log
        self._inner = transactions.Transactions(kv.inner, isolation=isolation)

    def begin(
        self,
        isolation: Isolation | str | None = None,
        *,
        stale: bool = False,
        timeout_s: float | None = None,
    ) -> Transaction:
        """It sees everything that anybody was told is committed before; with `stale` it asks nobody."""
        begun = self._log.run(self._inner.begin(isolation, stale=stale, timeout_s=timeout_s))
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
        return self._log.run(
            self._inner.run(function, isolation=isolation, retries=retries, timeout_s=timeout_s)
        )
