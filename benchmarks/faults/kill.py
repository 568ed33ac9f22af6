"""Fault workloads: a process is killed under load, and how long it shows."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from varlog import aio
from varlog.bench.context import BenchContext
from varlog.bench.figures import Acknowledgements, format_count, format_ms
from varlog.bench.machine import RawLimits
from varlog.bench.workload import BenchResult, Measured
from varlog.client.log import Log
from varlog.localcluster.plan import REPLICATED_PORTS, ClusterPlan
from varlog.localcluster.ports import free_ports
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import ensure_topic, leading_repository, wait_all_running
from varlog.model.cluster import Ordering
from varlog.model.errors import Unavailable, VarlogError
from varlog.model.events import Event, EventKind
from varlog.model.limits import KIB
from varlog.model.projection import Projection

APPENDERS = 64
ENTRY_BYTES = 1 * KIB
APPEND_TIMEOUT_S = 10.0
STREAMS = 2
LEADER_TIMEOUT_S = 30.0
PAUSE_S_MAX = 2.0
PROTOCOL_S_MAX = 0.05
# The load before the kill, and for so long after everything runs again.
BEFORE_S, AFTER_S = 5.0, 10.0
QUICK_BEFORE_S, QUICK_AFTER_S = 2.0, 3.0
BIN_S = 0.05
# How much later than a process says `ready` this one sees it, at most.
READY_SEEN_LATE_US = 50_000

# Which process dies: asked when it is time.
Victim = Callable[[Supervisor], Awaitable[str]]


class Kill:
    """A cluster of its own with the defaults of `varlog up`, two log streams; 64 appenders; one kill -9.

    `apart`: one node more and two copies, so that each stream has nodes of its own, and one of them is not hurt.
    """

    def __init__(
        self,
        victim: Victim,
        *,
        replicated: bool = False,
        apart: bool = False,
        ordering: Ordering = Ordering.COMMITTED,
    ) -> None:
        self._victim = victim
        self._ordering = ordering
        self._replicated = replicated
        self._apart = apart

    async def __call__(self, context: BenchContext) -> Measured:
        settings = context.settings
        before_s, after_s = (QUICK_BEFORE_S, QUICK_AFTER_S) if settings.quick else (BEFORE_S, AFTER_S)
        load = _Load(settings.appenders or APPENDERS, settings.entry_bytes or ENTRY_BYTES)
        async with (
            self._cluster(context) as supervisor,
            aio.admin(supervisor.address) as admin,
        ):
            async with load.running(supervisor.address, context.topic):
                context.display.advance(0.1, "load")
                await asyncio.sleep(settings.warm_up_s + before_s)
                victim = await self._victim(supervisor)
                restarts = supervisor.restarts()[victim]
                killed_at, killed_us = time.perf_counter(), time.time_ns() // 1000
                supervisor.kill(victim)
                context.display.advance(0.4, f"{victim} is killed")
                await supervisor.wait_restarted(victim, restarts + 1)
                back_at, back_us = time.perf_counter(), time.time_ns() // 1000
                await wait_all_running(admin)
                healed_at = time.perf_counter()
                context.display.advance(0.6, "every replica runs again")
                await asyncio.sleep(after_s)
                end = time.perf_counter()
            events = [event for event in (await admin.status()).events if event.time_us >= killed_us]
        moments = (killed_at - before_s, killed_at, back_at, healed_at, end)
        _keep_series(context, load.times, moments)
        repair = _repair(events, back_us) if self._ordering is Ordering.COMMITTED else {}
        return _figures(load, moments) | repair | {"appenders": float(load.appenders)}

    @asynccontextmanager
    async def _cluster(self, context: BenchContext) -> AsyncIterator[Supervisor]:
        settings = context.settings
        nodes, copies = (2 * STREAMS, 2) if self._apart else (settings.nodes, settings.replicas)
        ports = free_ports(nodes + 2 + REPLICATED_PORTS)
        plan = ClusterPlan(
            context.directory,
            ports[: nodes + 2],
            replicas=copies,
            streams=STREAMS,
            replicated_ports=ports[nodes + 2 :] if self._replicated else (),
        )
        supervisor = Supervisor(plan)
        await supervisor.start()
        try:
            await ensure_topic(plan, context.topic, ordering=self._ordering)
            yield supervisor
        finally:
            await supervisor.stop()


class _Load:
    """Appenders that continue after every outcome, and the times of their acknowledgements."""

    def __init__(self, appenders: int, entry_bytes: int) -> None:
        self.appenders = appenders
        self.times = Acknowledgements()
        self.failed = 0
        self._data = os.urandom(entry_bytes)
        self._enough = False

    @asynccontextmanager
    async def running(self, address: str, topic: str) -> AsyncIterator[None]:
        async with aio.connect(address, topic) as log, asyncio.TaskGroup() as tasks:
            for number in range(self.appenders):
                tasks.create_task(self._append(log), name=f"bench/caller={number}")
            try:
                yield
            finally:
                self._enough = True

    async def _append(self, log: Log) -> None:
        while not self._enough:
            try:
                await log.append(self._data, timeout_s=APPEND_TIMEOUT_S)
            except VarlogError:
                self.failed += 1
            else:
                self.times.add(time.perf_counter())


def _repair(events: Sequence[Event], back_us: int) -> Measured:
    ready_us = back_us - READY_SEEN_LATE_US
    found = {"sealing_s": sealing_s(events, ready_us), "reopening_s": reopening_s(events, ready_us)}
    return {name: value for name, value in found.items() if value is not None}


def _figures(load: _Load, moments: tuple[float, ...]) -> Measured:
    begin, killed_at, back_at, healed_at, end = moments
    before = load.times.rate(begin, killed_at)
    pause = load.times.longest_pause(killed_at, end)
    recovered = load.times.old_rate_back(killed_at, end, before)
    return {
        "before_appends_per_s": before,
        "pause_s": pause[1] - pause[0],
        "back_s": back_at - killed_at,
        "healed_s": healed_at - killed_at,
        "failed": float(load.failed),
    } | ({} if recovered is None else {"recovered_s": recovered - killed_at})


def _keep_series(context: BenchContext, times: Acknowledgements, moments: tuple[float, ...]) -> None:
    begin, killed_at, _, _, end = moments
    rates = times.rates(begin, end, BIN_S)
    context.series["second"] = [begin - killed_at + (number + 0.5) * BIN_S for number in range(len(rates))]
    context.series["appends_per_s"] = rates


def judge_node(measured: Measured, raw: RawLimits) -> BenchResult:
    """A storage node: a short pause, no failed append, and a protocol that is not what takes the time."""
    protocol_s = measured.get("sealing_s", 0.0) + measured.get("reopening_s", float("inf"))
    met = measured["pause_s"] < PAUSE_S_MAX and measured["failed"] == 0 and protocol_s < PROTOCOL_S_MAX
    return BenchResult(_summary(measured), met)


def judge_pause(measured: Measured, raw: RawLimits) -> BenchResult:
    """Either ordering: a short pause, and no failed append."""
    return BenchResult(_summary(measured), measured["pause_s"] < PAUSE_S_MAX and measured["failed"] == 0)


def judge_repository(measured: Measured, raw: RawLimits) -> BenchResult:
    """The repository: nobody notices but for the pause."""
    return BenchResult(_summary(measured), measured["failed"] == 0 and "recovered_s" in measured)


def _summary(measured: Measured) -> str:
    summary = f"{measured['pause_s']:.2f} s without an append"
    if "recovered_s" in measured:
        summary += f", {measured['recovered_s']:.2f} s until the old throughput"
    else:
        summary += ", the old throughput did not come back"
    summary += (
        f" ({format_count(measured['before_appends_per_s'])} appends/s), {measured['failed']:.0f} failed appends; "
        f"process back after {measured['back_s']:.2f} s, all replicas run after {measured['healed_s']:.2f} s"
    )
    if "sealing_s" in measured:
        summary += f"; sealed {format_ms(measured['sealing_s'])} after the manager saw it"
    if "reopening_s" in measured:
        summary += f", running {format_ms(measured['reopening_s'])} after it saw the node again"
    return summary


async def primary(supervisor: Supervisor) -> str:
    async with aio.admin(supervisor.address) as admin:
        return f"vsn-{(await admin.view()).streams[0].primary}"


async def backup(supervisor: Supervisor) -> str:
    """One that is no stream's primary, if there is one."""
    async with aio.admin(supervisor.address) as admin:
        streams = (await admin.view()).streams
    primaries = {stream.primary for stream in streams}
    nodes = [node for node in streams[0].replicas if node not in primaries]
    return f"vsn-{nodes[-1] if nodes else streams[0].replicas[-1]}"


async def leader(supervisor: Supervisor) -> str:
    return await leading_repository(supervisor.plan, LEADER_TIMEOUT_S)


# Which process of a sequenced topic dies: the head, the middle or the tail of its first chain, or its sequencer.


async def head(supervisor: Supervisor) -> str:
    return f"vsn-{(await _projection(supervisor)).chains[0].head}"


async def middle(supervisor: Supervisor) -> str:
    nodes = (await _projection(supervisor)).chains[0].nodes
    return f"vsn-{nodes[len(nodes) // 2]}"


async def tail(supervisor: Supervisor) -> str:
    return f"vsn-{(await _projection(supervisor)).chains[0].tail}"


async def sequencer(supervisor: Supervisor) -> str:
    """The process that gives the positions now."""
    return next(name for name in supervisor.pids() if name.startswith("vseq"))


async def _projection(supervisor: Supervisor) -> Projection:
    async with aio.admin(supervisor.address) as admin:
        projections = (await admin.view()).projections
    if not projections:
        raise Unavailable("no sequenced topic has begun yet: there is no chain to choose from")
    return projections[0]


# How long the manager's repair took, by its events. No I/O.


def sealing_s(events: Sequence[Event], ready_us: int) -> float | None:
    """From the first sign of the fault, a silent node or a stream to be sealed, to the last step before the node was back."""
    until_us = _returned_us(events, ready_us)
    signs = [event for event in events if event.log_stream or event.kind is EventKind.NODE_UNREACHABLE]
    steps = [event.time_us for event in signs if until_us is None or event.time_us < until_us]
    return (steps[-1] - steps[0]) / 1e6 if steps else None


def reopening_s(events: Sequence[Event], ready_us: int) -> float | None:
    """From the moment the manager saw the node again until the last of the streams ran."""
    since_us = _returned_us(events, ready_us)
    runs_us = [event.time_us for event in events if event.kind is EventKind.RUNNING]
    return (runs_us[-1] - since_us) / 1e6 if since_us is not None and runs_us else None


def _returned_us(events: Sequence[Event], ready_us: int) -> int | None:
    """When the manager saw that the node is back. That is an event, unless the node was away for less than a heartbeat and only the
    other replicas noticed; then it is the first step after the node was ready."""
    returned = (event.time_us for event in events if event.kind is EventKind.NODE_RETURNED)
    stepped = (event.time_us for event in events if event.log_stream and event.time_us >= ready_us)
    return next(returned, None) or next(stepped, None)
