"""The public API with async.

`async with varlog.aio.open(...) as log`, or `log = await varlog.aio.open(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from varlog.client.admin import Admin
from varlog.client.connect import connect_admin, connect_log
from varlog.client.log import TIMEOUT_S, Log
from varlog.client.loop_bridge import Closable
from varlog.model.cluster import Ordering
from varlog.model.ids import ANY_CLUSTER, ClusterID

__all__ = ["Admin", "Log", "Opening", "admin", "connect", "open"]


T = TypeVar("T", bound=Closable)


class Opening(Generic[T]):
    """Something about to be opened: await it, or enter it with `async with`, which also closes it."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._make().__await__()

    async def __aenter__(self) -> T:
        opened = self._opened = await self._make()
        return opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()


def open(
    path: str | Path,
    topic: str = "default",
    *,
    sync: bool = True,
    streams: int = 1,
    ordering: Ordering | str = Ordering.COMMITTED,
    timeout_s: float = TIMEOUT_S,
) -> Opening[Log]:
    """A log in this process, on a directory, which is created if missing. Only one process can have it open.

    `sync=False` does not wait for the disk: fast, and a power loss (not a crash of the process) may lose the newest entries.
    `streams` and `ordering` are for a topic that is created now.
    """

    async def make() -> Log:
        from varlog.embedded import open_log  # here: connecting needs no storage

        return await open_log(path, topic, sync=sync, streams=streams, ordering=ordering, timeout_s=timeout_s)

    return Opening(make)


def connect(
    address: str,
    topic: str = "default",
    *,
    create: bool | None = None,
    streams: int = 0,
    ordering: Ordering | str = Ordering.COMMITTED,
    cluster: int = ANY_CLUSTER,
    timeout_s: float = TIMEOUT_S,
) -> Opening[Log]:
    """A log of the cluster whose metadata repository listens at `address` (host:port, or several with commas).

    A missing topic is created with `create=True`, or if the cluster allows it and `create` is None; otherwise UnknownTopic.
    `streams` and `ordering` are for a topic that is created now.
    """

    async def make() -> Log:
        from varlog.rpc.tcp import TcpTransport
        from varlog.runtime.environment import system_environment

        cid = await _cluster_at(address, ClusterID(cluster), timeout_s)
        return await connect_log(
            TcpTransport(cid),
            system_environment(),
            address,
            topic=topic,
            cluster=cid,
            create=create,
            streams=streams,
            ordering=ordering,
            timeout_s=timeout_s,
        )

    return Opening(make)


def admin(address: str, *, cluster: int = ANY_CLUSTER, timeout_s: float = 15.0) -> Opening[Admin]:
    """Administration of the cluster whose metadata repository listens at `address` (host:port, or several with commas)."""

    async def make() -> Admin:
        from varlog.rpc.tcp import TcpTransport
        from varlog.runtime.environment import system_environment

        cid = await _cluster_at(address, ClusterID(cluster), timeout_s)
        return await connect_admin(
            TcpTransport(cid), system_environment(), address, cluster=cid, timeout_s=timeout_s
        )

    return Opening(make)


async def _cluster_at(address: str, cluster: ClusterID, timeout_s: float) -> ClusterID:
    """Which cluster it is: from then on every request names it, and a node of another cluster refuses it."""
    if cluster != ANY_CLUSTER:
        return cluster
    from varlog.rpc.tcp import TcpTransport
    from varlog.runtime.environment import system_environment

    async with await connect_admin(
        TcpTransport(ANY_CLUSTER), system_environment(), address, timeout_s=timeout_s
    ) as asked:
        return asked.cluster
