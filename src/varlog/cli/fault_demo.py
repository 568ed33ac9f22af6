"""FaultDemo: `varlog demo --faults` kills processes of a cluster under load.

Killed are a primary, a backup and the leading repository; with `--ordering sequenced` the head of a chain, the tail of another, the
sequencer and the leading repository.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from rich.console import Console

from varlog import aio
from varlog.bench.figures import Acknowledgements
from varlog.cli.demo_history import DemoHistory
from varlog.cli.fault_report import FaultDisplay, Killed, ProcessLine, Scene, account_of, fault_display
from varlog.client.admin import Admin
from varlog.client.cluster_status import role
from varlog.client.log import Log
from varlog.localcluster.etcd import etcd_is_here
from varlog.localcluster.plan import REPLICATED_PORTS, ClusterPlan
from varlog.localcluster.ports import free_ports
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import ensure_topic, leading_repository, wait_all_running, wait_until
from varlog.model.cluster import ClusterView, Ordering
from varlog.model.errors import Unavailable, VarlogError
from varlog.model.events import sentence
from varlog.model.status import ClusterStatus, NodeHealth

TOPIC = "demo"
# Two streams of two replicas on four nodes share no node, so that one of them accepts appends whatever is killed.
NODES, STREAMS, COPIES = 4, 2, 2
# A sequenced topic is striped over all of its log streams, so that all are needed: each has a third replica.
SEQUENCED_COPIES = 3
CLIENTS, APPENDERS = 4, 8
CALM_S = 5.0
TIMEOUT_S = 180.0
LEADER_TIMEOUT_S = 30.0
SEQUENCER = "vseq"
LOOK_S = 0.25
BIN_S = 0.25
WIDTH = 120


@dataclass
class Load:
    """The demo's clients, and the times of their acknowledged appends."""

    history: DemoHistory
    times: Acknowledgements = field(default_factory=Acknowledgements)
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def append(self, log: Log, name: str) -> None:
        """Append one entry after the other until `enough` is set."""
        count = 0
        while not self.enough.is_set():
            count += 1
            if await self.history.append(log, f"client {name}", f"client {name} entry {count}".encode()):
                self.times.add(monotonic())


class FaultDemo:
    """One run. `figures` has everything for programs."""

    def __init__(self, ordering: Ordering = Ordering.COMMITTED, *, quiet: bool = False) -> None:
        self._ordering = ordering
        console = Console(quiet=quiet, highlight=False)
        # Without a terminal the width is unknown: the account must not be cut.
        self._console = console if console.is_terminal else Console(quiet=quiet, highlight=False, width=WIDTH)
        self._killed: list[Killed] = []
        self._load = Load(DemoHistory(TOPIC, sequenced=ordering is Ordering.SEQUENCED))
        self._now = "starting"
        self._leader = ""
        self._over = False
        self.figures: dict[str, object] = {}

    async def run(self) -> bool:
        """True if nothing is lost, duplicated or out of order."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                with tempfile.TemporaryDirectory(prefix="varlog-demo-") as directory:
                    return await self._run(Path(directory))
        except TimeoutError:
            raise Unavailable(
                f"the demo did not finish within {TIMEOUT_S:g} s: is the machine very busy?"
            ) from None

    async def _run(self, directory: Path) -> bool:
        plan = _plan(directory, self._ordering)
        self._console.print(
            f"\n[bold]varlog demo --faults: {NODES} storage nodes, {STREAMS} log streams, {plan.replicas} synced copies of "
            f"each entry, {self._ordering} ordering[/bold]\n",
            soft_wrap=True,
        )
        if not plan.replicated:
            self._console.print(
                "etcd is not installed: there is one metadata repository, restarted when it is killed."
            )
        async with _cluster(plan, self._ordering) as supervisor:
            address = supervisor.address
            async with aio.admin(address) as admin, aio.connect(address, TOPIC) as log:
                with fault_display(self._console) as display:
                    async with self._watched(display, supervisor, admin):
                        await self._under_load(display, supervisor, admin, log)
        account = account_of(self._load.history, self._killed)
        account.show(self._console)
        self.figures = account.figures()
        return account.holds

    # --- the faults -------------------------------------------------------------------------------------------

    async def _under_load(
        self, display: FaultDisplay, supervisor: Supervisor, admin: Admin, log: Log
    ) -> None:
        """Append while each victim is killed, then read everything back."""
        display.say(f"{len(supervisor.pids())} processes are running: {', '.join(supervisor.pids())}")
        display.say(f"{CLIENTS} clients append, each with {APPENDERS} appends in flight; a reader follows")
        async with asyncio.TaskGroup() as tasks:
            follower = tasks.create_task(self._load.history.follow(log), name="follow")
            clients = [
                tasks.create_task(self._client(supervisor.address, number), name=f"client {number}")
                for number in range(1, CLIENTS + 1)
            ]
            try:
                await self._calm(display)
                await self._kill_each(display, supervisor, admin)
            finally:
                self._load.enough.set()
            await asyncio.wait(clients)
            await self._wait_followed(await self._read_back(display, log))
            follower.cancel()

    async def _client(self, address: str, number: int) -> None:
        async with aio.connect(address, TOPIC) as log, asyncio.TaskGroup() as tasks:
            for appender in range(1, APPENDERS + 1):
                tasks.create_task(self._load.append(log, f"{number}.{appender}"))

    async def _calm(self, display: FaultDisplay) -> None:
        self._now = "running normally"
        begun = monotonic()
        await asyncio.sleep(CALM_S)
        display.say(f"{self._load.times.rate(begun, monotonic()):,.0f} appends/s acknowledged")

    async def _kill_each(self, display: FaultDisplay, supervisor: Supervisor, admin: Admin) -> None:
        view = await admin.view()
        nodes = _sequenced_victims(view) if self._ordering is Ordering.SEQUENCED else _victims(view)
        leader = self._leader = await leading_repository(supervisor.plan, LEADER_TIMEOUT_S)
        leads = "the metadata repository" + (" that leads" if supervisor.plan.replicated else "")
        for what, victim in (*nodes, (leads, leader)):
            await self._kill(display, supervisor, admin, what, victim)
            await self._calm(display)

    async def _kill(
        self, display: FaultDisplay, supervisor: Supervisor, admin: Admin, what: str, victim: str
    ) -> None:
        load, restarts = self._load, supervisor.restarts()[victim]
        pid, before, killed_at = supervisor.pids()[victim], load.history.acknowledged, monotonic()
        supervisor.kill(victim)
        self._now = f"killed: {what} ({victim})"
        display.say(f"kill -9 {pid} ({victim}): {what}")
        await supervisor.wait_restarted(victim, restarts + 1)
        back_s = monotonic() - killed_at
        await wait_all_running(admin)
        self._leader = await leading_repository(supervisor.plan, LEADER_TIMEOUT_S)
        # The first acknowledgement after the repair ends the pause.
        answered = len(load.times.moments)
        await wait_until(lambda: len(load.times.moments) > answered or load.enough.is_set())
        healed_at = monotonic()
        begin, end = load.times.longest_pause(killed_at, healed_at)
        meanwhile = load.history.acknowledged - before
        self._killed.append(Killed(what, victim, end - begin, healed_at - killed_at, meanwhile))
        display.say(
            f"{victim} is back after {back_s:.1f} s, every replica runs after {healed_at - killed_at:.1f} s; "
            f"{meanwhile:,} appends acknowledged in the meantime, longest pause {end - begin:.2f} s"
        )

    # --- the display ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _watched(
        self, display: FaultDisplay, supervisor: Supervisor, admin: Admin
    ) -> AsyncIterator[None]:
        watch = asyncio.get_running_loop().create_task(self._watch(display, supervisor, admin), name="watch")
        try:
            yield
        finally:
            self._over = True
            watch.cancel()
            await asyncio.wait([watch])

    async def _watch(self, display: FaultDisplay, supervisor: Supervisor, admin: Admin) -> None:
        begun, seen = monotonic(), await admin.status()
        shown_us = max((event.time_us for event in seen.events), default=0)
        while not self._over:
            try:
                async with asyncio.timeout(LOOK_S):
                    seen = await admin.status()
            except (VarlogError, TimeoutError):
                pass  # the last status is shown until the manager answers again
            for event in [event for event in seen.events if event.time_us > shown_us]:
                shown_us = event.time_us
                text = sentence(event)
                display.event(f"log stream {event.log_stream}: {text}" if event.log_stream else text)
            times = self._load.times
            display.show(
                Scene(
                    _processes(supervisor, seen, self._leader),
                    times.rates(begun, monotonic(), BIN_S),
                    len(times.moments),
                    self._now,
                )
            )
            await asyncio.sleep(LOOK_S)

    # --- the account ------------------------------------------------------------------------------------------

    async def _wait_followed(self, entries: int) -> None:
        try:
            async with asyncio.timeout(10):
                await wait_until(lambda: self._load.history.followed >= entries)
        except TimeoutError:
            pass  # the account says what is missing

    async def _read_back(self, display: FaultDisplay, log: Log) -> int:
        self._now = "reading everything back"
        begun = monotonic()
        entries = len(await self._load.history.read_back(log))
        display.say(f"read everything back: {entries:,} entries in {monotonic() - begun:.2f} s")
        return entries


def _processes(supervisor: Supervisor, seen: ClusterStatus, leader: str) -> list[ProcessLine]:
    """Each process; a storage node with the states of its replicas."""
    pids = supervisor.pids()
    states = {leader: "leads"} | {
        f"vsn-{health.node}": _node_text(health, seen.view) for health in seen.nodes
    }
    if seen.view.projections:
        states[SEQUENCER] = f"epoch {max(found.epoch for found in seen.view.projections)}"
    return [ProcessLine(name, pids.get(name), states.get(name, "")) for name in supervisor.restarts()]


def _node_text(health: NodeHealth, view: ClusterView) -> str:
    if not health.alive or health.status is None:
        return "does not answer yet"
    replicas = [
        f"stream {one.log_stream} {one.state}{' (primary)' if one.primary else ''}"
        for one in health.status.replicas
    ]
    chains = {chain.log_stream: chain for projection in view.projections for chain in projection.chains}
    units = [
        f"stream {one.log_stream} {role(chains.get(one.log_stream), health.node).replace('_', ' ')}"
        for one in health.status.units
    ]
    return "  ".join(replicas + units)


def _victims(view: ClusterView) -> list[tuple[str, str]]:
    """What is killed: a description and the name of the process."""
    first, last = view.streams[0], view.streams[-1]
    return [
        (f"the primary of log stream {first.log_stream}", f"vsn-{first.primary}"),
        (f"a backup of log stream {last.log_stream}", f"vsn-{last.replicas[-1]}"),
    ]


def _sequenced_victims(view: ClusterView) -> list[tuple[str, str]]:
    chains = view.projections[0].chains
    return [
        (f"the head of log stream {chains[0].log_stream}", f"vsn-{chains[0].head}"),
        (f"the tail of log stream {chains[-1].log_stream}", f"vsn-{chains[-1].tail}"),
        ("the sequencer", SEQUENCER),
    ]


def _plan(directory: Path, ordering: Ordering) -> ClusterPlan:
    """With the defaults of `varlog up`; with replicated repositories if etcd is installed."""
    ports = free_ports(NODES + 2 + REPLICATED_PORTS)
    return ClusterPlan(
        directory,
        ports[: NODES + 2],
        replicas=SEQUENCED_COPIES if ordering is Ordering.SEQUENCED else COPIES,
        streams=STREAMS,
        replicated_ports=ports[NODES + 2 :] if etcd_is_here() else (),
    )


@asynccontextmanager
async def _cluster(plan: ClusterPlan, ordering: Ordering) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(plan)
    await supervisor.start()
    try:
        await ensure_topic(plan, TOPIC, ordering=ordering)
        yield supervisor
    finally:
        await supervisor.stop()
