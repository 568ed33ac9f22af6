"""BenchContext: what a workload runs on: settings, display, log under test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

import varlog.aio
from varlog.client.log import Log
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.ports import free_ports
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import wait_nodes
from varlog.model.cluster import Ordering


@dataclass(frozen=True, slots=True)
class BenchContext:
    """One workload's own: no other workload has used its topic or its directory."""

    settings: BenchSettings
    display: Display
    directory: Path
    topic: str
    target: BenchTarget | None = None
    # What is more than a figure: values by name, as many of each; for plots.
    series: dict[str, list[float]] = field(default_factory=dict)

    def log(self) -> AbstractAsyncContextManager[Log]:
        """The topic, on the cluster or embedded, as the settings say."""
        return self._target.log(self.topic, self.settings.ordering)

    def ordered_log(self, ordering: Ordering, replicas: int) -> AbstractAsyncContextManager[Log]:
        """One of several topics of a workload: of this ordering, with this number of replicas."""
        return self._target.log(f"{self.topic}-{ordering}", ordering, replicas)

    def embedded_log(self, *, synced: bool) -> AbstractAsyncContextManager[Log]:
        """A log in this process, whatever the settings say."""
        ordering = self.settings.ordering
        return open_embedded_log(self.directory / "embedded", self.topic, ordering, synced=synced)

    @property
    def address(self) -> str:
        return self._target.address

    def processes(self) -> dict[str, int]:
        """Process ids by name: vmr, vmc, vsn-1 … of the cluster that this run has started."""
        return self._target.processes()

    @property
    def _target(self) -> BenchTarget:
        if self.target is None:
            raise ValueError("this workload needs no log, and was handed none")
        return self.target


# BenchTarget: where the log under test is: a cluster started for this run, a running cluster, or this process itself.

# A loaded cluster on a slow disk may take long for one batch; a benchmark measures that instead of failing.
TIMEOUT_S = 60.0


class BenchTarget(Protocol):
    """Hands out logs by topic; makes the topic if there is none of that name."""

    @property
    def address(self) -> str: ...

    def log(self, topic: str, ordering: Ordering, replicas: int = 0) -> AbstractAsyncContextManager[Log]: ...

    def processes(self) -> dict[str, int]:
        """Process ids by name, of a cluster that this run has started; empty otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """A cluster behind an address; `supervisor` only if this run has started it."""

    address: str
    streams: int
    supervisor: Supervisor | None = None

    def log(self, topic: str, ordering: Ordering, replicas: int = 0) -> AbstractAsyncContextManager[Log]:
        return open_cluster_log(
            self.address, topic, streams=self.streams, ordering=ordering, replicas=replicas
        )

    def processes(self) -> dict[str, int]:
        return self.supervisor.pids() if self.supervisor is not None else {}


@dataclass(frozen=True, slots=True)
class EmbeddedTarget:
    """A directory, opened by this process."""

    path: Path

    @property
    def address(self) -> str:
        raise ValueError("an embedded log has no address")

    def log(self, topic: str, ordering: Ordering, replicas: int = 0) -> AbstractAsyncContextManager[Log]:
        return open_embedded_log(self.path, topic, ordering, synced=True)

    def processes(self) -> dict[str, int]:
        return {}


@asynccontextmanager
async def target_for(settings: BenchSettings) -> AsyncIterator[BenchTarget]:
    """What the settings ask for; a cluster that is started here is stopped at the end."""
    if settings.embedded:
        yield EmbeddedTarget(settings.data / "log")
    elif settings.cluster:
        yield ClusterTarget(settings.cluster, settings.streams)
    else:
        plan = ClusterPlan(
            data=settings.data / "cluster",
            ports=free_ports(settings.nodes + 2),
            replicas=settings.replicas,
            streams=settings.streams,
        )
        supervisor = Supervisor(plan)
        await supervisor.start()
        try:
            await wait_nodes(plan)
            yield ClusterTarget(supervisor.address, settings.streams, supervisor)
        finally:
            await supervisor.stop()


@asynccontextmanager
async def open_cluster_log(
    address: str,
    topic: str,
    *,
    streams: int = 0,
    ordering: Ordering = Ordering.COMMITTED,
    replicas: int = 0,
) -> AsyncIterator[Log]:
    """A topic of a cluster; made if it is missing."""
    async with varlog.aio.admin(address) as admin:
        if (await admin.view()).topic_named(topic) is None:
            await admin.create_topic(topic, streams=streams, replicas=replicas, ordering=ordering)
    async with varlog.aio.connect(address, topic, create=False, timeout_s=TIMEOUT_S) as log:
        yield log


@asynccontextmanager
async def open_embedded_log(
    path: Path, topic: str, ordering: Ordering, *, synced: bool
) -> AsyncIterator[Log]:
    """A topic of a log in this process."""
    async with varlog.aio.open(path, topic, sync=synced, ordering=ordering, timeout_s=TIMEOUT_S) as log:
        yield log


# Progress: what the bench is doing now, live on a terminal, nothing at all elsewhere.


class Display(Protocol):
    """Takes what happens, step by step."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, what: str) -> None:
        """A new step: a workload, a raw measurement, the start of the cluster."""
        ...

    def advance(self, fraction: float, now: str = "") -> None:
        """How far the step is, and what it shows at the moment."""
        ...

    def result(self, line: str) -> None:
        """A step's outcome, kept above the bar."""
        ...


class QuietDisplay:
    """For pipes, files and tests."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, what: str) -> None:
        return None

    def advance(self, fraction: float, now: str = "") -> None:
        return None

    def result(self, line: str) -> None:
        return None


class LiveDisplay:
    """One bar on a terminal. It writes to stderr, so that --json can be piped at the same time."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=5,  # drawing takes processor time from what is measured
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, what: str) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=1.0, now="")

    def advance(self, fraction: float, now: str = "") -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=min(fraction, 1.0), now=now)

    def result(self, line: str) -> None:
        self._bar.console.print(line, highlight=False, markup=False)


def display_for(console: Console) -> Display:
    """Live on a terminal."""
    return LiveDisplay(console) if console.is_terminal else QuietDisplay()


# --- settings -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """`None` for entry_bytes, appenders and batch: each workload uses the values that its target is stated for."""

    data: Path
    nodes: int = 3
    replicas: int = 3
    streams: int = 1
    seconds: float = 5.0
    warm_up_s: float = 1.0
    entry_bytes: int | None = None
    appenders: int | None = None
    batch: int | None = None
    cluster: str = ""
    embedded: bool = False
    quick: bool = False
    # Of every topic that a workload does not choose an ordering for.
    ordering: Ordering = Ordering.COMMITTED

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= self.nodes:
            raise ValueError(
                f"--replicas must be between 1 and --nodes: {self.replicas} replicas need {self.replicas} nodes, "
                f"not {self.nodes}"
            )
        if self.streams < 1:
            raise ValueError(f"--streams must be at least 1, not {self.streams}")
        if self.seconds <= 0:
            raise ValueError(f"--seconds must be above 0, not {self.seconds:g}")
        for option, value in (
            ("--entry-bytes", self.entry_bytes),
            ("--appenders", self.appenders),
            ("--batch", self.batch),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{option} must be at least 1, not {value}")
        if self.cluster and self.embedded:
            raise ValueError("--cluster and --embedded exclude each other: measure one of them")

    @property
    def own_load(self) -> bool:
        """True where the options change a workload: then its target does not apply."""
        return not (self.entry_bytes is None and self.appenders is None and self.batch is None)

    @property
    def where(self) -> str:
        """What is measured, for the report."""
        if self.embedded:
            return f"embedded in this process, one replica{self._ordering_text}"
        if self.cluster:
            return f"the running cluster at {self.cluster}"
        return (
            f"{self.nodes} storage nodes, one metadata repository, one sequencer, one manager, one client, each a process of "
            f"this machine; {self.replicas} replicas, {self.streams} log stream{'s' if self.streams > 1 else ''} per topic"
            f"{self._ordering_text}"
        )

    @property
    def _ordering_text(self) -> str:
        return ", sequenced ordering" if self.ordering is Ordering.SEQUENCED else ""
