"""recipes: what people build on a log: replicated state machines, locks, leaders, queues, a key/value store with transactions.

    async with varlog.aio.connect(...) as log, recipes.KeyValue.open(log) as kv: ...
    with varlog.connect(...) as log, recipes.blocking.KeyValue(log) as kv: ...

All are async; `varlog.recipes.blocking` has the same without. Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varlog.recipes.claim import Claim
    from varlog.recipes.counter import Counter
    from varlog.recipes.directory_snapshots import DirectorySnapshots
    from varlog.recipes.election import Election, Leader, Leadership
    from varlog.recipes.errors import (
        BehindTrim,
        ClaimLost,
        Conflict,
        HistoryGone,
        LockBusy,
        LockLost,
        MachineFailed,
        NewerCommand,
        NotHeld,
        ReplicaStopped,
        ResultLost,
        SnapshotTooOld,
        StaleToken,
    )
    from varlog.recipes.fenced import FencedResource
    from varlog.recipes.key_order import KeyRange
    from varlog.recipes.kv import KeyValue
    from varlog.recipes.kv_machine import Change
    from varlog.recipes.lock import Holder, Lock
    from varlog.recipes.lock_guard import LockGuard
    from varlog.recipes.queue import Queue, QueueSize
    from varlog.recipes.replicated import ReplicatedStateMachine, StateMachine
    from varlog.recipes.snapshots import Snapshots
    from varlog.recipes.topic_snapshots import TopicSnapshots
    from varlog.recipes.transaction import Transaction
    from varlog.recipes.transaction_rules import Isolation
    from varlog.recipes.transactions import Transactions

__all__ = [
    "BehindTrim",
    "Change",
    "Claim",
    "ClaimLost",
    "Conflict",
    "Counter",
    "DirectorySnapshots",
    "Election",
    "FencedResource",
    "HistoryGone",
    "Holder",
    "Isolation",
    "KeyRange",
    "KeyValue",
    "Leader",
    "Leadership",
    "Lock",
    "LockBusy",
    "LockGuard",
    "LockLost",
    "MachineFailed",
    "NewerCommand",
    "NotHeld",
    "Queue",
    "QueueSize",
    "ReplicaStopped",
    "ReplicatedStateMachine",
    "ResultLost",
    "SnapshotTooOld",
    "Snapshots",
    "StaleToken",
    "StateMachine",
    "TopicSnapshots",
    "Transaction",
    "Transactions",
]

_HOMES = {
    "claim": ("Claim",),
    "counter": ("Counter",),
    "directory_snapshots": ("DirectorySnapshots",),
    "election": ("Election", "Leader", "Leadership"),
    "fenced": ("FencedResource",),
    "lock_guard": ("LockGuard",),
    "key_order": ("KeyRange",),
    "kv": ("KeyValue",),
    "kv_machine": ("Change",),
    "lock": ("Holder", "Lock"),
    "queue": ("Queue", "QueueSize"),
    "replicated": ("ReplicatedStateMachine", "StateMachine"),
    "snapshots": ("Snapshots",),
    "topic_snapshots": ("TopicSnapshots",),
    "transaction": ("Transaction",),
    "transaction_rules": ("Isolation",),
    "transactions": ("Transactions",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "blocking":
        return import_module("varlog.recipes.blocking")
    if name not in __all__:
        raise AttributeError(f"module 'varlog.recipes' has no attribute {name!r}")
    found = getattr(import_module(f"varlog.recipes.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "blocking"])
