"""The recipes without async, over a log of `varlog.open` or `varlog.connect`.

    with varlog.connect("127.0.0.1:7100") as log, blocking.KeyValue(log) as kv:
        kv.put("colour", b"blue")

Each is opened by calling it and lives in the log's own loop; close it before the log. Safe to use from several threads. Names are
loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varlog.recipes.blocking.core import Counter, ReplicatedStateMachine, TopicSnapshots
    from varlog.recipes.blocking.kv import KeyValue, Transaction, Transactions
    from varlog.recipes.blocking.lock import Election, Leadership, Lock, LockGuard
    from varlog.recipes.blocking.queue import Claim, Queue
    from varlog.recipes.core.directory_snapshots import DirectorySnapshots

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
    "Counter": "blocking.core",
    "DirectorySnapshots": "core.directory_snapshots",
    "Election": "blocking.lock",
    "LockGuard": "blocking.lock",
    "KeyValue": "blocking.kv",
    "Leadership": "blocking.lock",
    "Lock": "blocking.lock",
    "Queue": "blocking.queue",
    "ReplicatedStateMachine": "blocking.core",
    "TopicSnapshots": "blocking.core",
    "Transaction": "blocking.kv",
    "Transactions": "blocking.kv",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'varlog.recipes.blocking' has no attribute {name!r}")
    found = getattr(import_module(f"varlog.recipes.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
