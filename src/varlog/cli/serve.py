"""`vsn`, `vmr`, `vmc`, `vseq`: run one server process in the foreground.

A process prints one line `ready HOST:PORT` on stdout once it answers, and logs to stderr. SIGTERM or SIGINT stops it. If it cannot
start, it says why in one line and exits with 1.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, Protocol, runtime_checkable

import typer

from varlog.cli.recover import recover
from varlog.localcluster.process import PARENT_VARIABLE
from varlog.model.limits import DISK_RESERVE_BYTES, MIB, SCRUB_BYTES_PER_S

if TYPE_CHECKING:
    from varlog.metarepo.store.base import MetadataStore
    from varlog.model.ids import ClusterID
    from varlog.runtime.environment import Environment

# May contain the secret of the cluster. It is removed from the environment: no child process needs it.
CLUSTER_KEY_VARIABLE = "VARLOG_CLUSTER_KEY"
STOP_TIMEOUT_S = 10.0
_PR_SET_PDEATHSIG = 1

_ClusterID = Annotated[
    int, typer.Option("--cluster-id", help="Number of the cluster; peers of another cluster are refused.")
]
_Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 picks a free port.")
]
_Advertise = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="Address at which others reach it, if it differs from --listen."),
]
_LogLevel = Annotated[str, typer.Option(help="Log level: debug, info, warning or error.")]


class Service(Protocol):
    """A server that can be started and stopped."""

    @property
    def address(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


vsn = typer.Typer(help="A storage node: stores replicas of log streams on its volumes.", add_completion=False)
vmr = typer.Typer(
    help="The metadata repository: cluster membership and the total order.", add_completion=False
)
vmc = typer.Typer(
    help="The manager: registers nodes, creates log streams, repairs replicas.", add_completion=False
)

vseq = typer.Typer(help="A sequencer: assigns the positions of sequenced topics.", add_completion=False)


@vsn.callback()
@vmr.callback()
@vmc.callback()
@vseq.callback()
def _commands() -> None:
    """Without this, typer would drop the name of a single command."""


@vsn.command("start")
def start_vsn(
    context: typer.Context,
    cluster_id: _ClusterID,
    volumes: Annotated[
        list[Path],
        typer.Option(help="An existing, writable directory; repeat the option for several disks."),
    ],
    storage_node_id: Annotated[
        int | None,
        typer.Option(
            help="Number of the node (default: the one stored on the volumes, or a random one that is then kept)."
        ),
    ] = None,
    listen: _Listen = "127.0.0.1:7110",
    advertise: _Advertise = "",
    # Known and refused: an old script gets the reason instead of "no such option".
    cluster_key: Annotated[str, typer.Option(envvar=CLUSTER_KEY_VARIABLE, hidden=True)] = "",
    cluster_key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="VARLOG_CLUSTER_KEY_FILE",
            help="File with the secret of the cluster, readable by its owner only; "
            f"or set {CLUSTER_KEY_VARIABLE}. A wrong secret is refused.",
        ),
    ] = None,
    error_if_exists: Annotated[
        bool,
        typer.Option(
            "--error-if-exists", help="Refuse to start if the volumes already contain data of this node."
        ),
    ] = False,
    disk_reserve: Annotated[
        int,
        typer.Option(
            metavar="MIB",
            min=0,
            help="Free space to keep on each volume, MiB. Appends stop below it; seals and trims may use it.",
        ),
    ] = DISK_RESERVE_BYTES // MIB,
    scrub_rate: Annotated[
        float,
        typer.Option(
            metavar="MIB",
            min=0.0,
            help="Read rate of the daily scrub that finds bit rot, MiB per second; 0 disables it.",
        ),
    ] = SCRUB_BYTES_PER_S / MIB,
    log_level: _LogLevel = "info",
) -> None:
    """Start a storage node."""
    from varlog.model.ids import NodeID
    from varlog.rpc.tcp import TcpTransport
    from varlog.runtime.environment import system_environment
    from varlog.storagenode.config import StorageNodeConfig
    from varlog.storagenode.node import StorageNodeServer

    source = context.get_parameter_source("cluster_key")
    if source is not None and source.name == "COMMANDLINE":
        _refuse(
            "vsn",
            "a secret on the command line can be read by every user of this machine: use --cluster-key-file FILE, or set "
            f"{CLUSTER_KEY_VARIABLE} in the environment",
            code=2,
        )
    cluster = _cluster("vsn", cluster_id)
    if storage_node_id is not None:
        _check("vsn", "--storage-node-id", storage_node_id)
    config = StorageNodeConfig(
        cluster=cluster,
        node=None if storage_node_id is None else NodeID(storage_node_id),
        volumes=tuple(volume.absolute() for volume in volumes),
        listen=listen,
        advertise=advertise,
        cluster_key=_key(cluster_key, cluster_key_file),
        error_if_exists=error_if_exists,
        disk_reserve_bytes=disk_reserve * MIB,
        scrub_bytes_per_s=int(scrub_rate * MIB),
    )
    run_service(
        "vsn", log_level, lambda: StorageNodeServer(config, system_environment(), TcpTransport(cluster))
    )


@vmr.command("start")
def start_vmr(
    cluster_id: _ClusterID,
    store: Annotated[
        str,
        typer.Option(
            metavar="FILE|etcd://HOST:PORT,…",
            help="SQLite file for the metadata, created if missing; or an etcd that several repositories share.",
        ),
    ],
    listen: _Listen = "127.0.0.1:7100",
    advertise: _Advertise = "",
    lease: Annotated[
        int,
        typer.Option(
            min=1, help="Lease of the leader, seconds: another repository takes over after it (etcd only)."
        ),
    ] = 3,
    journal_mirror: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep a second copy of the journal in this directory, on another volume (SQLite file only).",
        ),
    ] = None,
    log_level: _LogLevel = "info",
) -> None:
    """Start the metadata repository."""
    from varlog.metarepo.config import MetadataRepositoryConfig
    from varlog.metarepo.repository import MetadataRepository
    from varlog.rpc.tcp import TcpTransport
    from varlog.runtime.environment import system_environment

    cluster = _cluster("vmr", cluster_id)
    config = MetadataRepositoryConfig(cluster=cluster, listen=listen, advertise=advertise)

    def make() -> Service:
        environment = system_environment()
        return MetadataRepository(
            config,
            _store(store, environment, cluster, lease, journal_mirror),
            environment,
            TcpTransport(cluster),
        )

    run_service("vmr", log_level, make)


@vmc.command("start")
def start_vmc(
    cluster_id: _ClusterID,
    repository: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,…", help="Address of the metadata repository; several are separated by commas."
        ),
    ] = "127.0.0.1:7100",
    nodes: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Storage node to register; repeat the option for several."),
    ] = None,
    listen: _Listen = "127.0.0.1:7101",
    advertise: _Advertise = "",
    replicas: Annotated[int, typer.Option(min=1, help="Default number of replicas per log stream.")] = 3,
    streams: Annotated[int, typer.Option(min=1, help="Default number of log streams per topic.")] = 1,
    heartbeat: Annotated[
        float, typer.Option(min=0.01, help="Interval between health checks, seconds.")
    ] = 0.5,
    node_timeout: Annotated[
        float,
        typer.Option(
            min=0.01, help="Time without an answer after which a node counts as unreachable, seconds."
        ),
    ] = 0.5,
    replace_after: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Time after which the replicas of a node that stays unreachable are replaced, seconds.",
        ),
    ] = 30.0,
    zombie_grace: Annotated[
        float,
        typer.Option(
            min=0.0, help="Time after which an unregistered replica is removed, seconds; inf: never."
        ),
    ] = 60.0,
    auto_create_topics: Annotated[
        bool, typer.Option("--auto-create-topics", help="Create a topic when a client first opens it.")
    ] = False,
    log_level: _LogLevel = "info",
) -> None:
    """Start the manager."""
    from varlog.manager.manager import Manager, ManagerConfig
    from varlog.rpc.tcp import TcpTransport
    from varlog.runtime.environment import system_environment

    cluster = _cluster("vmc", cluster_id)
    config = ManagerConfig(
        cluster=cluster,
        repository=repository,
        listen=listen,
        advertise=advertise,
        nodes=tuple(nodes or ()),
        replicas=replicas,
        streams=streams,
        heartbeat_s=heartbeat,
        node_timeout_s=node_timeout,
        replace_after_s=replace_after,
        zombie_grace_s=zombie_grace,
        auto_create_topics=auto_create_topics,
    )
    run_service("vmc", log_level, lambda: Manager(config, system_environment(), TcpTransport(cluster)))


@vseq.command("start")
def start_vseq(
    cluster_id: _ClusterID,
    repository: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,…", help="Address of the metadata repository; several are separated by commas."
        ),
    ] = "127.0.0.1:7100",
    listen: _Listen = "127.0.0.1:7113",
    advertise: _Advertise = "",
    log_level: _LogLevel = "info",
) -> None:
    """Start a sequencer. It stores nothing on disk; start two or more so that another takes over when one is lost."""
    from varlog.rpc.tcp import TcpTransport
    from varlog.runtime.environment import system_environment
    from varlog.sequencer.sequencer import Sequencer, SequencerConfig

    cluster = _cluster("vseq", cluster_id)
    config = SequencerConfig(cluster, repository, listen, advertise)
    run_service("vseq", log_level, lambda: Sequencer(config, system_environment(), TcpTransport(cluster)))


def _store(
    place: str, environment: Environment, cluster: ClusterID, lease_s: float, mirror: Path | None = None
) -> MetadataStore:
    from varlog.model.errors import StartupError

    if not place.startswith("etcd://"):
        from varlog.metarepo.store.sqlite import SqliteStore
        from varlog.runtime.disk import make_ours_private

        path = Path(place).absolute()
        if environment.disk.is_directory(path.parent):
            make_ours_private(environment.disk, path.parent, rf"{re.escape(path.name)}.*")
        if mirror is not None and not environment.disk.is_directory(mirror):
            raise StartupError(
                f"--journal-mirror: {mirror} is not a directory: create it first, on another volume"
            )
        return SqliteStore(path, environment, mirror=mirror.absolute() if mirror is not None else None)
    if mirror is not None:
        raise StartupError("--journal-mirror is for a SQLite file: etcd keeps its own copies")
    try:
        from varlog.metarepo.store.etcd import etcd_store
    except ModuleNotFoundError as error:
        raise StartupError(
            f"the etcd client is not installed ({error.name}): pip install 'varlog[etcd]'"
        ) from None
    return etcd_store(place, environment, cluster, lease_s=lease_s)


vmr.command("recover")(recover)


def run_vsn() -> None:
    vsn(prog_name="vsn")


def run_vmr() -> None:
    vmr(prog_name="vmr")


def run_vmc() -> None:
    vmc(prog_name="vmc")


def run_vseq() -> None:
    vseq(prog_name="vseq")


def run_proxy() -> None:
    from varlog.cli import proxy

    proxy.serve_proxy()


def run_etcd() -> None:
    """A member of the etcd of a replicated cluster on this machine. Like the others, it must not outlive its parent."""
    from varlog.localcluster.etcd import become_etcd
    from varlog.model.errors import StartupError

    _die_with_parent()
    try:
        become_etcd(sys.argv[1:])
    except (StartupError, OSError) as error:
        print(f"etcd: error: {error}", file=sys.stderr)
        sys.exit(1)


@runtime_checkable
class MayFail(Protocol):
    """A service that stops on its own when its state is no longer known: the metadata repository, a sequencer."""

    async def wait_failed(self) -> BaseException: ...


class _Make(Protocol):
    def __call__(self) -> Service: ...


def run_service(name: str, log_level: str, make: _Make) -> None:
    """Run one service until it is signalled to stop. Raises typer.Exit with the exit code."""
    import uvloop

    from varlog.model.errors import VarlogError
    from varlog.runtime.logging import LineFormatter

    _die_with_parent()
    # Files that any library creates are readable by this user only.
    os.umask(0o077)
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        _refuse(name, f"--log-level {log_level} is not known: debug, info, warning or error", code=2)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level, handlers=[handler])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(make))
    except (VarlogError, OSError) as error:
        _refuse(name, str(error) or type(error).__name__)


async def _serve(make: _Make) -> None:
    from varlog.model.errors import Unavailable
    from varlog.runtime.process import allow_open_files, watch_open_files

    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    allow_open_files()
    service = make()
    waiting = loop.create_task(stop_requested.wait(), name="wait for a signal")
    starting = loop.create_task(service.start(), name="start")
    await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        # Stopped while it still recovers: a restart repeats whatever is unfinished.
        starting.cancel()
        await asyncio.wait([starting])
        return
    if starting.exception() is not None:
        waiting.cancel()
    await starting
    # Objects from start-up live as long as the process: the collector need not scan them every time.
    gc.collect()
    gc.freeze()
    print(f"ready {service.address}", flush=True)
    watching = loop.create_task(watch_open_files(), name="watch file descriptors")
    failure = await _wait_end(service, waiting)
    watching.cancel()
    logging.getLogger("varlog").info("stopping")
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await service.stop()
    except TimeoutError:
        raise Unavailable(
            f"it did not stop within {STOP_TIMEOUT_S:g} s; acknowledged entries are safe"
        ) from None
    if failure is not None:
        raise Unavailable(f"stopped: {failure}. Acknowledged entries are safe; start it again")


async def _wait_end(service: Service, waiting: asyncio.Task[Literal[True]]) -> BaseException | None:
    """Until a signal arrives, or the service fails: then its supervisor must know."""
    if not isinstance(service, MayFail):
        await waiting
        return None
    failing = asyncio.get_running_loop().create_task(service.wait_failed(), name="wait for a failure")
    await asyncio.wait([failing, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if failing.done():
        return failing.result()
    failing.cancel()
    return None


def _die_with_parent() -> None:
    """If the parent asked for it, the kernel kills this process when the parent dies: any state on disk allows it."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if parent and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit(1)


def _cluster(name: str, cluster_id: int) -> ClusterID:
    from varlog.model.ids import ClusterID

    _check(name, "--cluster-id", cluster_id)
    return ClusterID(cluster_id)


def _check(name: str, option: str, value: int) -> None:
    from varlog.model.ids import check_id

    try:
        check_id(option, value)
    except ValueError as error:
        _refuse(name, str(error), code=2)


def _key(cluster_key: str, cluster_key_file: Path | None) -> str:
    os.environ.pop(CLUSTER_KEY_VARIABLE, None)
    if cluster_key_file is None:
        return cluster_key
    try:
        mode = cluster_key_file.stat().st_mode
        if mode & 0o077:
            _refuse(
                "vsn",
                f"{cluster_key_file} can be read by other users of this machine (mode {mode & 0o777:o}): chmod 600 "
                f"{cluster_key_file}",
            )
        return cluster_key_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        _refuse("vsn", f"the cluster key cannot be read from {cluster_key_file}: {error}")


def _refuse(name: str, why: str, *, code: int = 1) -> NoReturn:
    print(f"{name}: error: {' '.join(why.split())}", file=sys.stderr)
    raise typer.Exit(code)


if __name__ == "__main__":
    {"vsn": run_vsn, "vmr": run_vmr, "vmc": run_vmc, "vseq": run_vseq, "proxy": run_proxy, "etcd": run_etcd}[
        sys.argv.pop(1)
    ]()
