"""varlog: a strongly consistent, replicated, totally ordered log; public names.

    with varlog.open("./data", topic="orders") as log: ...             # embedded, on a directory
    with varlog.connect("127.0.0.1:7100", topic="orders") as log: ...  # a cluster

`varlog.aio` is the same with async. Names are loaded when they are first used, so that importing varlog costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varlog import aio as aio
    from varlog.client.blocking import Admin, Log
    from varlog.client.writers.idempotent_rules import IndeterminateInput, TrimmedWrite
    from varlog.client.writers.positioned import OtherEntry
    from varlog.model.cluster import (
        ClusterView,
        Grouping,
        LogStream,
        NamedReader,
        NamedWriter,
        Ordering,
        StorageNode,
        Topic,
    )
    from varlog.model.entry import Entry, Position, Run
    from varlog.model.errors import (
        AlreadyWritten,
        BatchTooLarge,
        CorruptBatch,
        CorruptReplica,
        EmptyBatch,
        EntryTooLarge,
        InvalidRequest,
        JunkPosition,
        NoLease,
        NotAccepted,
        NotInCluster,
        NotPrimary,
        NotSequencing,
        NotWritten,
        OutcomeUnknown,
        Overloaded,
        PositionConflict,
        PreconditionFailed,
        ProjectionConflict,
        ReaderBehind,
        Rejected,
        Sealed,
        SequenceConflict,
        StaleEpoch,
        StartupError,
        TopicStopped,
        TrimBeyondTail,
        Trimmed,
        Unavailable,
        UnknownLogStream,
        UnknownTopic,
        VarlogError,
    )
    from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
    from varlog.model.lsn import GLSN, LLSN
    from varlog.model.projection import Projection

    __version__: str

__all__ = [
    "GLSN",
    "LLSN",
    "Admin",
    "AlreadyWritten",
    "BatchTooLarge",
    "ClusterID",
    "ClusterView",
    "CorruptBatch",
    "CorruptReplica",
    "EmptyBatch",
    "Entry",
    "EntryTooLarge",
    "Grouping",
    "IndeterminateInput",
    "InvalidRequest",
    "JunkPosition",
    "Log",
    "LogStream",
    "LogStreamID",
    "NamedReader",
    "NamedWriter",
    "NoLease",
    "NodeID",
    "NotAccepted",
    "NotInCluster",
    "NotPrimary",
    "NotSequencing",
    "NotWritten",
    "Ordering",
    "OtherEntry",
    "OutcomeUnknown",
    "Overloaded",
    "Position",
    "PositionConflict",
    "PreconditionFailed",
    "Projection",
    "ProjectionConflict",
    "ReaderBehind",
    "Rejected",
    "Run",
    "Sealed",
    "SequenceConflict",
    "StaleEpoch",
    "StartupError",
    "StorageNode",
    "Topic",
    "TopicID",
    "TopicStopped",
    "TrimBeyondTail",
    "Trimmed",
    "TrimmedWrite",
    "Unavailable",
    "UnknownLogStream",
    "UnknownTopic",
    "VarlogError",
    "__version__",
    "admin",
    "connect",
    "open",
]

_HOMES = {
    "varlog.client.blocking": ("Admin", "Log"),
    "varlog.client.writers.idempotent_rules": ("IndeterminateInput", "TrimmedWrite"),
    "varlog.client.writers.positioned": ("OtherEntry",),
    "varlog.model.cluster": (
        "ClusterView",
        "Grouping",
        "LogStream",
        "NamedReader",
        "NamedWriter",
        "Ordering",
        "StorageNode",
        "Topic",
    ),
    "varlog.model.entry": ("Entry", "Position", "Run"),
    "varlog.model.ids": ("ClusterID", "LogStreamID", "NodeID", "TopicID"),
    "varlog.model.lsn": ("GLSN", "LLSN"),
    "varlog.model.projection": ("Projection",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def open(
    path: str | Path,
    topic: str = "default",
    *,
    sync: bool = True,
    streams: int = 1,
    ordering: str = "committed",
    timeout_s: float = 10.0,
) -> Log:
    """A log in this process, on a directory, which is created if missing. Only one process can have it open.

    `sync=False` does not wait for the disk: fast, and a power loss (not a crash of the process) may lose the newest entries.
    `streams` and `ordering` ("committed" or "sequenced") are for a topic that is created now. `timeout_s` is the deadline of every
    call that names no other.
    """
    from varlog import aio
    from varlog.client.blocking import Log
    from varlog.client.loop_bridge import start

    async def make() -> aio.Log:
        return await aio.open(path, topic, sync=sync, streams=streams, ordering=ordering, timeout_s=timeout_s)

    return Log(*start(make()))


def connect(
    address: str,
    topic: str = "default",
    *,
    create: bool | None = None,
    streams: int = 0,
    ordering: str = "committed",
    cluster: int = 0,
    timeout_s: float = 10.0,
) -> Log:
    """A log of the cluster whose metadata repository listens at `address` (host:port, or several with commas).

    A missing topic is made with `create=True`, or if the cluster allows it and `create` is None; otherwise UnknownTopic.
    `streams` and `ordering` ("committed" or "sequenced") are for a topic that is created now.
    `cluster` is the id that the cluster must have (0: any). `timeout_s` is the deadline of every call that names no other.
    """
    from varlog import aio
    from varlog.client.blocking import Log
    from varlog.client.loop_bridge import start

    async def make() -> aio.Log:
        return await aio.connect(
            address,
            topic,
            create=create,
            streams=streams,
            ordering=ordering,
            cluster=cluster,
            timeout_s=timeout_s,
        )

    return Log(*start(make()))


def admin(address: str, *, cluster: int = 0, timeout_s: float = 15.0) -> Admin:
    """Administration of the cluster whose metadata repository listens at `address` (host:port, or several with commas)."""
    from varlog import aio
    from varlog.client.blocking import Admin
    from varlog.client.loop_bridge import start

    async def make() -> aio.Admin:
        return await aio.admin(address, cluster=cluster, timeout_s=timeout_s)

    return Admin(*start(make()))


def _load(name: str) -> Any:
    if name == "aio":
        return import_module("varlog.aio")
    if name == "__version__":
        from importlib.metadata import version

        return version("varlog")
    if name not in __all__:
        raise AttributeError(f"module 'varlog' has no attribute {name!r}")
    found = getattr(import_module(_HOME.get(name, "varlog.model.errors")), name)
    globals()[name] = found
    return found


if not TYPE_CHECKING:
    # A type checker that sees it accepts any name, and does not find a misspelt one.
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted([*__all__, "aio"])
