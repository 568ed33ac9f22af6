"""Emulated storage nodes: real sockets, real messages, no data. One process holds many of them, each with a port of its own.

    python -m benchmarks.ordering.emulated_node WORK_DIRECTORY NUMBER OF

A node answers OpenSession as a storage node does, with the points of its replicas, reports what `Load` says its replicas have, and
takes in the commits it is pushed: it keeps every row for the check at the end, and says in its next report that it has synced them.
What it leaves out is what costs a real node its time: entries, disks, clients, and the talk between replicas.

Told on standard input and output, a line of JSON each: addresses out; ids of the streams and the time to start in; when done, out.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.ordering.load import Floats, Ints, Load, durable_ends
from varlog.model.cluster import ReplicaState
from varlog.model.commit import Report
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, LogStreamID, NodeID
from varlog.model.lsn import LLSN
from varlog.rpc.messages import Commits, Message, OpenSession, ReplicaPoint, Reports, SessionOpened
from varlog.rpc.tcp import TcpTransport
from varlog.rpc.transport import Call, Connection, Handler

CLUSTER = ClusterID(1)
EPOCH = Epoch(1)
DRAIN_S_MAX = 60.0


class EmulatedNode:
    """One of them: `node` counts from 0 here, and from 1 in the cluster."""

    def __init__(self, node: int, load: Load, sent_s: Floats) -> None:
        self.node = node
        self._load = load
        self._sent_s = sent_s  # [node, report]: when it was sent; shared by all processes
        held = np.argwhere(load.holders() == node)
        self._streams, self._replicas = held[:, 0], held[:, 1]
        self._rates = load.rates()[self._streams]
        self._partners = load.holders()[self._streams]
        self._phases_s = load.phases_s()
        self._ids: list[LogStreamID] = []
        self._place: dict[int, int] = {}
        self._committed = np.ones(len(held), dtype=np.int64)
        self._session: Connection | None = None
        self._next_report = 0
        self.told: list[Ints] = []
        self.received: list[tuple[float, int]] = []
        self.latencies_s: list[Floats] = []
        self.versions: list[int] = []

    def know_ids(self, ids: Ints) -> None:
        self._ids = [LogStreamID(int(found)) for found in ids[self._streams]]
        self._place = {found: place for place, found in enumerate(self._ids)}

    def serve(self, connection: Connection) -> Handler:
        def handle(call: Call | None, message: Message, payload: bytearray) -> None:
            if isinstance(message, Commits):
                self._take(message)
            elif isinstance(message, OpenSession) and call is not None:
                self._session = connection
                call.reply(SessionOpened(NodeID(self.node + 1), tuple(self._points())))

        return handle

    def _points(self) -> list[ReplicaPoint]:
        return [
            ReplicaPoint(found, EPOCH, ReplicaState.RUNNING, LLSN(end), LLSN(end), LLSN(end))
            for found, end in zip(self._ids, self._committed.tolist(), strict=False)
        ]

    @property
    def in_session(self) -> bool:
        return self._session is not None and not self._session.closed

    @property
    def done(self) -> bool:
        """Everything that was reported is ordered, and this node knows it."""
        return bool((self._committed == durable_ends(self._rates, self._load.end_s)).all())

    def report(self, start_s: float, again: Callable[[float], None]) -> None:
        """The newest report that is due; one that was missed is covered by it, as a later report covers an earlier one."""
        load, now_s = self._load, time.monotonic()
        due = int((now_s - start_s - self._phases_s[self.node]) / load.interval_s)
        report = min(max(due, self._next_report), load.reports - 1)
        ends = durable_ends(self._rates, load.said_at_s(self.node, report))
        self._send(ends)
        self._sent_s[self.node, self._next_report : report + 1] = now_s
        self._next_report = report + 1
        if self._next_report < load.reports:
            again(start_s + load.interval_s * self._next_report + self._phases_s[self.node])

    def _send(self, ends: Ints) -> None:
        if self._session is None or not len(ends):
            return
        committed = self._committed.tolist()
        reports = [
            Report(found, EPOCH, LLSN(end), LLSN(synced))
            for found, end, synced in zip(self._ids, ends.tolist(), committed, strict=True)
        ]
        self._session.send(Reports(tuple(reports)))

    def _take(self, message: Commits) -> None:
        now_s = time.monotonic()
        self.versions.append(message.version)
        if not message.rows:
            return
        flat: list[int] = []
        for log_stream, rows in message.rows:
            for row in rows:
                flat += (log_stream, row.llsn_begin, row.glsn_begin, row.count)
        rows_of = np.array(flat, dtype=np.int64).reshape(-1, 4).T
        places = np.array([self._place[found] for found in rows_of[0].tolist()], dtype=np.int64)
        self._take_rows(now_s, places, rows_of[1], rows_of[2], rows_of[3])

    def _take_rows(self, now_s: float, places: Ints, llsn: Ints, glsn: Ints, count: Ints) -> None:
        ends = llsn + count
        self._committed[places] = ends  # where a stream has several rows, the last one stands
        self.told.append(np.stack([self._replicas[places], self._streams[places], llsn, glsn, count]))
        self.received.append((now_s, len(places)))
        rates, sent_s = self._rates[places], np.zeros(len(places))
        for partners in self._partners[places].T:
            reports = self._load.first_report_of(ends, rates, self._phases_s[partners])
            sent_s = np.maximum(sent_s, self._sent_s[partners, reports])
        self.latencies_s.append(now_s - sent_s)


class Emulator:
    """The nodes of one process."""

    def __init__(self, directory: Path, number: int, of: int) -> None:
        self._directory, self._number = directory, number
        self.load = Load(**json.loads((directory / "load.json").read_text("utf-8")))
        sent_s = np.memmap(directory / "sent", np.float64, "r+", shape=(self.load.nodes, self.load.reports))
        mine = range(number, self.load.nodes, of)
        self.nodes = [EmulatedNode(node, self.load, sent_s) for node in mine]
        self._transport = TcpTransport(CLUSTER)

    async def run(self) -> None:
        servers = [await self._transport.serve("127.0.0.1:0", node.serve) for node in self.nodes]
        say(
            {
                "addresses": {
                    node.node: server.address for node, server in zip(self.nodes, servers, strict=True)
                }
            }
        )
        start = await asyncio.to_thread(hear)
        ids = np.load(self._directory / "ids.npy")
        for node in self.nodes:
            node.know_ids(ids)
        await self._wait_until(lambda: all(node.in_session for node in self.nodes), "a node has no session")
        say({"in_session": len(self.nodes)})
        start = await asyncio.to_thread(hear)
        await self._run_from(start["start_s"])
        self._save()
        say({"done": True, "cpu_s": time.process_time()})
        await asyncio.to_thread(hear)

    async def _run_from(self, start_s: float) -> None:
        loop, offset_s = asyncio.get_running_loop(), asyncio.get_running_loop().time() - time.monotonic()
        phases_s = self.load.phases_s()

        def plan(node: EmulatedNode, at_s: float) -> None:
            loop.call_at(at_s + offset_s, node.report, start_s, lambda next_s: plan(node, next_s))

        for node in self.nodes:
            plan(node, start_s + phases_s[node.node])
        await asyncio.sleep(start_s + self.load.end_s - time.monotonic())
        await self._wait_until(lambda: all(node.done for node in self.nodes), "not everything was ordered")

    async def _wait_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DRAIN_S_MAX
        while not holds():
            if time.monotonic() > deadline:
                raise SystemExit(f"emulated nodes: {what} within {DRAIN_S_MAX:g} s")
            await asyncio.sleep(0.02)

    def _save(self) -> None:
        told = [rows for node in self.nodes for rows in node.told]
        latencies_s = [found for node in self.nodes for found in node.latencies_s]
        received = [found for node in self.nodes for found in node.received]
        versions = sorted({version for node in self.nodes for version in node.versions})
        np.savez(
            self._directory / f"told-{self._number}.npz",
            told=np.concatenate(told, axis=1),
            latencies_s=np.concatenate(latencies_s),
            received_s=np.repeat([at for at, _ in received], [rows for _, rows in received]),
            versions=np.array(versions),
        )


def say(words: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def hear() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)  # whoever started it is gone
    heard: dict[str, Any] = json.loads(line)
    return heard


def main() -> None:
    directory, number, of = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Emulator(directory, number, of).run())


if __name__ == "__main__":
    main()
