"""Every peer for real: servers out of the wheels, every workload gives figures, what was appended is what is read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.peers.run import grounds_for, measured
from benchmarks.peers.systems import SYSTEMS, System, chosen
from benchmarks.peers.workloads import WORKLOADS, Timing
from varlog.model.limits import KIB

pytestmark = pytest.mark.process

DEADLINE_S = 240.0
QUICK = Timing(seconds=0.02, warm_up_s=0.0, read_bytes=64 * KIB)
# One system of each way to talk to a peer; the settings that only differ in a word of configuration are left to the benchmark.
TRIED = (
    "varlog-3",
    "varlog-sequenced-3",
    "varlog-embedded",
    "nats-3",
    "nats-3-bare",
    "redis-1",
    "redis-1-bare",
    "etcd-1",
)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


async def _read_back(system: System, tmp_path: Path) -> tuple[list[bytes], dict[str, list[bytes]]]:
    """Single entries and batches, appended one after the other; and what each way of reading gives."""
    singles, batch = [os.urandom(50 + number) for number in range(5)], [os.urandom(200) for _ in range(40)]
    found: dict[str, list[bytes]] = {}
    async with asyncio.timeout(DEADLINE_S), grounds_for([system], tmp_path) as grounds:
        ground = grounds[system.ground]
        async with ground.journal(system.name, "smoke", streams=1, callers=2) as journal:
            for payload in singles:
                await journal.append(0, payload)
            for way in journal.batch_ways:
                await journal.append_batch(1, batch, way)
            appended = [*singles, *(batch * len(journal.batch_ways))]
            for way in journal.read_ways:
                kept: list[bytes] = []
                assert await journal.read(len(appended), way, kept.extend) == len(appended)
                found[way] = kept
    return appended, found


@pytest.mark.parametrize("system", chosen(TRIED), ids=lambda system: system.name)
def test_what_was_appended_is_what_is_read_in_order_and_nothing_is_left(
    system: System, tmp_path: Path
) -> None:
    before = _children()
    appended, found = asyncio.run(_read_back(system, tmp_path))
    assert found and all(payloads == appended for payloads in found.values())
    assert list(tmp_path.iterdir()) == []
    assert _children() <= before


def _quick_workloads() -> Sequence[object]:
    return WORKLOADS


def test_every_workload_of_every_kind_of_peer_gives_figures_and_nothing_is_left(tmp_path: Path) -> None:
    before = _children()
    systems = [system for system in SYSTEMS if system.name in TRIED]
    # Small, so that it is over soon: fewer appenders, and batches that are batches still.
    workloads = [
        replace(workload, appenders=min(workload.appenders, 8), batch=min(workload.batch, 50), streams=min(workload.streams, 2))
        for workload in WORKLOADS
        if workload.name in ("append-1", "append-64", "batch-1000", "size-65536", "streams-4", "read-100")
    ]  # fmt: skip
    said: list[str] = []

    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            findings = await measured(
                systems, workloads, QUICK, passes=1, data=tmp_path, say=said.append, idle_s=0.05, raw_s=0.05
            )
        assert findings.failures == []
        able = {(s.name, w.name) for s in systems for w in workloads if w.runs_on(s)}
        there = {(sample.system, sample.workload) for sample in findings.samples}
        assert able <= there
        assert all(sample.figures["entries_per_s"] > 0 for sample in findings.samples)
        assert all(sample.figures["client_cpu_s_per_entry"] > 0 for sample in findings.samples)
        assert set(findings.idle) == {system.ground for system in systems}

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []
    assert _children() <= before
