"""One emulation: a real metadata repository in a process of its own, emulated nodes in others, one load, and its figures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ordering.emulated_node import CLUSTER, EPOCH
from benchmarks.ordering.history import ReceivedRows, check_order
from benchmarks.ordering.load import Ints, Load, durable_ends
from varlog.localcluster.process import ServerProcess
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.rpc import messages as m
from varlog.rpc.tcp import TcpTransport
from varlog.rpc.transport import Connection

ROOT = Path(__file__).parents[2]
CALL_S_MAX = 120.0
STEP_S_MAX = 240.0
LINE_BYTES_MAX = 1_000_000
# Fewer than the repository remembers as given out and not used yet.
REGISTERED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the seconds that were measured; `entries` are those that every replica knows to be ordered, in the whole run."""

    load: Load
    entries: int
    entries_per_s: float
    rows_per_s: float
    cuts_per_s: float
    p50_s: float
    p99_s: float
    repository_cores: float
    emulator_cores: float
    repository_bytes: int
    registered_s: float

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "nodes": self.load.nodes}


class Emulation:
    """Starts everything, registers the streams, lets it run, checks the order, and ends everything."""

    def __init__(self, load: Load, directory: Path, processes: int = 1) -> None:
        self.load = load
        self._directory = directory
        self._processes = processes
        self._repository = ServerProcess(
            "vmr",
            (
                "vmr", "start", f"--cluster-id={CLUSTER}", f"--store={directory / 'metadata.db'}", "--listen=127.0.0.1:0",
                "--log-level=warning",
            ),
            directory / "vmr.log",
        )  # fmt: skip
        self._emulators: list[asyncio.subprocess.Process] = []

    async def run(self) -> Figures:
        try:
            return await self._run()
        finally:
            await self._end()

    async def _run(self) -> Figures:
        load, directory = self.load, self._directory
        (directory / "load.json").write_text(json.dumps(load.as_json()), "utf-8")
        np.zeros((load.nodes, load.reports)).tofile(directory / "sent")
        self._repository.start()
        address = await self._wait_for(self._repository.address, "the repository does not start")
        await self._start_emulators()
        addresses: dict[int, str] = {}
        for message in await self._read_lines():
            addresses |= {int(node): at for node, at in message["addresses"].items()}
        began_s = time.monotonic()
        np.save(directory / "ids.npy", await self._register(address, addresses))
        registered_s = time.monotonic() - began_s
        await self._say({"registered": True})
        await self._read_lines()
        start_s = time.monotonic() + 0.5
        await self._say({"start_s": start_s})
        begin_s, end_s = start_s + load.warm_up_s, start_s + load.warm_up_s + load.seconds
        cpu_s = []
        for at_s in (begin_s, end_s):
            await asyncio.sleep(at_s - time.monotonic())
            cpu_s.append(
                (self._cpu_s(self._repository.pid), sum(self._cpu_s(p.pid) for p in self._emulators))
            )
        held_bytes = _resident_bytes(self._repository.pid)
        await self._read_lines()
        usage = [(after - before) / load.seconds for before, after in zip(*cpu_s, strict=True)]
        return self._figures(begin_s, end_s, usage, held_bytes, registered_s)

    def _figures(
        self, begin_s: float, end_s: float, usage: list[float], held_bytes: int, registered_s: float
    ) -> Figures:
        load = self.load
        files = [np.load(self._directory / f"received-{number}.npz") for number in range(self._processes)]
        rows = ReceivedRows.of(np.concatenate([found["rows"] for found in files], axis=1))
        topics = np.array([load.topic_of(stream) for stream in range(load.streams)])
        entries = check_order(rows, durable_ends(load.rates(), load.end_s), topics, load.copies)
        received_s = np.concatenate([found["received_s"] for found in files])
        latencies_s = np.concatenate([found["latencies_s"] for found in files])
        inside = (received_s >= begin_s) & (received_s < end_s)
        mine = inside & (rows.replica == 0)
        # An entry is ordered when its last replica knows it: of each replica the same entries, at its own time.
        ordered = min(int(rows.count[inside & (rows.replica == k)].sum()) for k in range(load.copies))
        versions = np.unique(np.concatenate([found["versions"] for found in files]))
        cuts = len(versions) / (load.end_s)
        p50_s, p99_s = (float(found) for found in np.percentile(latencies_s[inside], (50, 99)))
        return Figures(
            load, entries, ordered / load.seconds, float(mine.sum()) / load.seconds, cuts, p50_s, p99_s,
            usage[0], usage[1], held_bytes, registered_s,
        )  # fmt: skip

    # --- the cluster -----------------------------------------------------------------------------------------------------

    async def _register(self, address: str, addresses: dict[int, str]) -> Ints:
        """Nodes, topics and streams, as an operator and a manager would, many requests in flight at a time."""
        repository = await TcpTransport(CLUSTER).connect(address, timeout_s=CALL_S_MAX)
        try:
            await _calls(
                repository,
                [m.RegisterNode(NodeID(node + 1), at, ("/emulated",)) for node, at in addresses.items()],
            )
            made = await _calls(
                repository, [m.RegisterTopic(f"topic-{number}") for number in range(self.load.topics)]
            )
            topics = [found.topic.topic for found in made if isinstance(found, m.TopicReply)]
            ids: list[int] = []
            for begin in range(0, self.load.streams, REGISTERED_AT_ONCE):
                ids += await self._register_some(repository, begin, topics)
        finally:
            repository.close()
        return np.array(ids, dtype=np.int64)

    async def _register_some(
        self, repository: Connection, begin: int, topics: list[TopicID]
    ) -> list[LogStreamID]:
        streams = range(begin, min(begin + REGISTERED_AT_ONCE, self.load.streams))
        holders = self.load.holders()
        given = await _calls(repository, [m.NewLogStreamID() for _ in streams])
        ids = [found.log_stream for found in given if isinstance(found, m.NewLogStreamIDReply)]
        asked = [
            m.RegisterLogStream(
                topics[self.load.topic_of(stream)], ids[stream - begin], tuple(NodeID(int(node) + 1) for node in holders[stream])
            )
            for stream in streams
        ]  # fmt: skip
        await _calls(repository, asked)
        await _calls(repository, [m.UnsealStream(found, EPOCH) for found in ids])
        return ids

    async def _start_emulators(self) -> None:
        for number in range(self._processes):
            self._emulators.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks.ordering.emulated_node",
                    str(self._directory), str(number), str(self._processes),
                    cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES_MAX,
                )
            )  # fmt: skip

    async def _end(self) -> None:
        for emulator in self._emulators:
            if emulator.returncode is None:
                emulator.kill()
            _ = await emulator.communicate()  # its pipes are closed, and nothing of it is left
        self._repository.signal(signal.SIGTERM)
        self._repository.wait(10.0)
        self._repository.close()

    # --- talk ------------------------------------------------------------------------------------------------------------

    async def _read_lines(self) -> list[dict[str, Any]]:
        """One line of each emulator."""
        message = []
        for emulator in self._emulators:
            if emulator.stdout is None:
                raise RuntimeError("an emulator has no pipe")
            async with asyncio.timeout(STEP_S_MAX):
                line = await emulator.stdout.readline()
            if not line:
                raise SystemExit(
                    f"emulated nodes have ended; the repository said: {self._repository.last_words()}"
                )
            message.append(json.loads(line))
        return message

    async def _say(self, words: dict[str, Any]) -> None:
        for emulator in self._emulators:
            if emulator.stdin is not None:
                emulator.stdin.write(json.dumps(words).encode() + b"\n")
                await emulator.stdin.drain()

    async def _wait_for(self, rows: Callable[[], str], what: str) -> str:
        deadline = time.monotonic() + STEP_S_MAX
        while not (answer := rows()):
            if time.monotonic() > deadline or self._repository.ended() is not None:
                raise SystemExit(f"{what}: {self._repository.last_words()}")
            await asyncio.sleep(0.02)
        return answer

    def _cpu_s(self, pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _calls(repository: Connection, requests: Sequence[m.Message]) -> list[m.Message]:
    """All of them at once, answers in their order."""
    answers = await asyncio.gather(*(repository.call(request, timeout_s=CALL_S_MAX) for request in requests))
    return [message for message, _ in answers]
