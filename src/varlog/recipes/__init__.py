"""recipes: state machines, locks, leaders, queues and a key/value store on a log.

    async with varlog.aio.connect(...) as log, recipes.KeyValue.open(log) as kv: ...
    with varlog.connect(...) as log, recipes.blocking.KeyValue(log) as kv: ...

All are async; `varlog.recipes.blocking` has the same without. Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varlog.recipes.core.counter import Counter
    from varlog.recipes.core.directory_snapshots import DirectorySnapshots
    from varlog.recipes.core.replicated import ReplicatedStateMachine, StateMachine
    from varlog.recipes.core.snapshots import Snapshots
    from varlog.recipes.core.topic_snapshots import TopicSnapshots
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
    from varlog.recipes.kv.key_order import KeyRange
    from varlog.recipes.kv.key_value import KeyValue
    from varlog.recipes.kv.kv_machine import Change
    from varlog.recipes.kv.transaction_rules import Isolation
    from varlog.recipes.kv.transactions import Transaction, Transactions
    from varlog.recipes.lock.election import Election, Leader, Leadership
    from varlog.recipes.lock.guard import FencedResource, LockGuard
    from varlog.recipes.lock.lock import Lock, LockHolder
    from varlog.recipes.queue.queue import Claim, Queue, QueueSize

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
    "Isolation",
    "KeyRange",
    "KeyValue",
    "Leader",
    "Leadership",
    "Lock",
    "LockBusy",
    "LockGuard",
    "LockHolder",
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
    "core.counter": ("Counter",),
    "core.directory_snapshots": ("DirectorySnapshots",),
    "lock.election": ("Election", "Leader", "Leadership"),
    "lock.guard": ("FencedResource", "LockGuard"),
    "kv.key_order": ("KeyRange",),
    "kv.key_value": ("KeyValue",),
    "kv.kv_machine": ("Change",),
    "lock.lock": ("LockHolder", "Lock"),
    "queue.queue": ("Claim", "Queue", "QueueSize"),
    "core.replicated": ("ReplicatedStateMachine", "StateMachine"),
    "core.snapshots": ("Snapshots",),
    "core.topic_snapshots": ("TopicSnapshots",),
    "kv.transaction_rules": ("Isolation",),
    "kv.transactions": ("Transaction", "Transactions"),
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
