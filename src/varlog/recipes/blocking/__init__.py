"""blocking: the recipes without async, over a log of `varlog.open` or `varlog.connect`.

    with varlog.connect("127.0.0.1:7100") as log, blocking.KeyValue(log) as kv:
        kv.put("colour", b"blue")

Each is opened by calling it and lives in the log's own loop; close it before the log. Safe to use from several threads. Names are
loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varlog.recipes.blocking.counter import Counter
    from varlog.recipes.blocking.election import Election, Leadership
    from varlog.recipes.blocking.kv import KeyValue
    from varlog.recipes.blocking.lock import Lock, LockGuard
    from varlog.recipes.blocking.queue import Claim, Queue
    from varlog.recipes.blocking.replicated import ReplicatedStateMachine
    from varlog.recipes.blocking.snapshots import TopicSnapshots
    from varlog.recipes.blocking.transactions import Transaction, Transactions
    from varlog.recipes.directory_snapshots import DirectorySnapshots

__all__ = [
    "Claim",
    "Counter",
    "DirectorySnapshots",
    "Election",
    "KeyValue",
    "Leadership",
    "Lock",
    "LockGuard",
    "Queue",
    "ReplicatedStateMachine",
    "TopicSnapshots",
    "Transaction",
    "Transactions",
]

_HOME = {
    "Claim": "blocking.queue",
    "Counter": "blocking.counter",
    "DirectorySnapshots": "directory_snapshots",
    "Election": "blocking.election",
    "LockGuard": "blocking.lock",
    "KeyValue": "blocking.kv",
    "Leadership": "blocking.election",
    "Lock": "blocking.lock",
    "Queue": "blocking.queue",
    "ReplicatedStateMachine": "blocking.replicated",
    "TopicSnapshots": "blocking.snapshots",
    "Transaction": "blocking.transactions",
    "Transactions": "blocking.transactions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'varlog.recipes.blocking' has no attribute {name!r}")
    found = getattr(import_module(f"varlog.recipes.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
