"""Target: the log of a command: a cluster (--cluster) or a directory (--data)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import WRONG_USAGE, fail

if TYPE_CHECKING:
    from varlog.client.admin import Admin
    from varlog.client.log import Log
    from varlog.embedded import EmbeddedCluster
    from varlog.model.status import ClusterStatus

DEFAULT_CLUSTER = "127.0.0.1:7100"
CLUSTER_VARIABLE = "VARLOG_CLUSTER"
CONNECT_TIMEOUT_S = 3.0
OPEN_TIMEOUT_S = 10.0

ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        envvar=CLUSTER_VARIABLE,
        metavar="HOST:PORT,…",
        help="Address of the metadata repository; several are separated by commas.",
        rich_help_panel="Which log",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Use the embedded log in this directory instead of a cluster.",
        rich_help_panel="Which log",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Target:
    """Where the log is."""

    cluster: str
    data: Path | None = None

    @asynccontextmanager
    async def log(self, topic: str, *, create: bool | None) -> AsyncIterator[Log]:
        """The topic's log. `create`: create a missing topic (None: if the cluster allows it)."""
        from varlog import aio

        if self.data is not None:
            make = create is not False
            async with (
                _directory(self.data, make=make) as embedded,
                await embedded.connect(topic, create=make) as log,
            ):
                yield log
            return
        await self.ping()
        async with aio.connect(self.cluster, topic, create=create) as log:
            yield log

    @asynccontextmanager
    async def admin(self, *, make: bool = False) -> AsyncIterator[Admin]:
        """Administration of the cluster, or of the embedded one in the directory, which `make` creates if it is missing."""
        from varlog import aio

        if self.data is not None:
            async with _directory(self.data, make=make) as embedded, await embedded.admin() as admin:
                await _wait_running(admin)
                yield admin
            return
        await self.ping()
        async with aio.admin(self.cluster) as admin:
            yield admin

    async def ping(self) -> None:
        """Fail immediately if nothing listens there: a client would wait for the cluster to return."""
        from varlog.model.errors import Unavailable
        from varlog.model.ids import ANY_CLUSTER
        from varlog.rpc.leader import addresses_of
        from varlog.rpc.tcp import TcpTransport
        from varlog.rpc.transport import ConnectionLost

        trouble = f"{self.cluster!r} is not the address of a metadata repository"
        for address in addresses_of(self.cluster):
            try:
                connection = await TcpTransport(ANY_CLUSTER).connect(address, timeout_s=CONNECT_TIMEOUT_S)
            except ConnectionLost as error:
                trouble = error.what
            else:
                connection.close()
                return
        raise Unavailable(f"{trouble}: start a cluster with `varlog up`, or name one with --cluster")


@asynccontextmanager
async def _directory(path: Path, *, make: bool) -> AsyncIterator[EmbeddedCluster]:
    from varlog.embedded import EmbeddedCluster
    from varlog.model.errors import StartupError
    from varlog.runtime.environment import system_environment

    if (path / "cluster.json").exists():
        raise StartupError(
            f"{path} belongs to a cluster of processes: start it with `varlog up --data {path}` and use --cluster"
        )
    if not make and not (path / "varlog.json").exists():
        raise StartupError(f"{path} contains no log: `varlog append --data {path} TOPIC TEXT` creates one")
    embedded = EmbeddedCluster(path, system_environment())
    await embedded.start()
    try:
        yield embedded
    finally:
        await embedded.stop()


async def _wait_running(admin: Admin) -> None:
    """Wait until a directory that was just opened is fully open: its streams may still be listed as running from before it was
    closed, and are sealed and unsealed on opening."""
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            while True:
                if _all_run(await admin.status()):
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        pass  # show the state as it is


def _all_run(seen: ClusterStatus) -> bool:
    from varlog.client.cluster_status import chain_is_whole, is_sequenced
    from varlog.model.cluster import StreamState
    from varlog.model.status import ReplicaState

    statuses = [health.status for health in seen.nodes]
    replicas = [replica for status in statuses if status is not None for replica in status.replicas]
    sequenced = [found for found in seen.view.streams if is_sequenced(seen.view, found)]
    return (
        None not in statuses
        and len(replicas) >= len(seen.view.streams) - len(sequenced)
        and all(chain_is_whole(seen, found) for found in sequenced)
        and all(replica.state is ReplicaState.RUNNING for replica in replicas)
        and all(stream.state is StreamState.RUNNING for stream in seen.view.streams)
    )


def target(cluster: str, data: Path | None) -> Target:
    """--data takes precedence over the environment variable, but not over --cluster."""
    if data is None:
        return Target(cluster)
    if cluster not in (DEFAULT_CLUSTER, os.environ.get(CLUSTER_VARIABLE)):
        fail("--cluster and --data name two different logs: pass only one of them", WRONG_USAGE)
    return Target(cluster, data)
