"""Emulated storage nodes: real sockets, real messages, no data. One process holds many of them, each with a port of its own.

    python -m benchmarks.ordering.emulated_node WORK_DIRECTORY NUMBER OF

A node answers OpenSession as a storage node does, with the points of its replicas, reports what `Load` says its replicas have, and
takes in the commits it is pushed: it keeps every row for the check at the end, and says in its next report that it has synced them.
What it leaves out is what costs a real node its time: entries, disks, clients, and the talk between replicas.

It uses standard input and output, a line of JSON each: addresses out; stream ids and the start time in; when done, out.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import uvloop

from benchmarks.ordering.load import Floats, Ints, Load, durable_ends
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, LogStreamID, NodeID
from varlog.model.lsn import LLSN
from varlog.model.status import ReplicaState
from varlog.rpc import codec
from varlog.rpc.messages import Commits, Message, OpenSession, OpenSessionReply, ReplicaPoint, Reports
from varlog.rpc.tcp import TcpTransport
from varlog.rpc.transport import Call, Connection, Handler

CLUSTER = ClusterID(1)
EPOCH = Epoch(1)
DRAIN_S_MAX = 60.0


class PlainCommits(Message, frozen=True):
    """Commits as it is on the wire, its rows as lists: many nodes in one process must not cost more than the repository."""

    serial: int
    version: int
    marks: list[list[int]]
    rows: list[tuple[int, list[list[int]]]]


class Received(NamedTuple):
    """`rows`: as in history.ReceivedRows. Of each: when it came, and how long after its last replica's report had left."""

    rows: Ints
    at_s: Floats
    latency_s: Floats


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
        self._ids_column: Ints = np.empty(0, dtype=np.int64)
        self._place: dict[int, int] = {}
        self._committed = np.ones(len(held), dtype=np.int64)
        self._session: Connection | None = None
        self._next_report = 0
        self._received: list[tuple[float, int, list[list[int]]]] = []

    def know_ids(self, ids: Ints) -> None:
        self._ids_column = ids[self._streams]
        self._ids = [LogStreamID(int(found)) for found in self._ids_column]
        self._place = {found: place for place, found in enumerate(self._ids)}

    def serve(self, connection: Connection) -> Handler:
        def handle(call: Call | None, message: Message, payload: bytearray) -> None:
            if isinstance(message, PlainCommits):
                self._take(message)
            elif isinstance(message, OpenSession) and call is not None:
                self._session = connection
                call.reply(OpenSessionReply(NodeID(self.node + 1), tuple(self._points())))

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
        columns = (self._ids_column, np.full_like(ends, EPOCH), ends, self._committed)
        # Lists instead of Report: the same bytes, and thousands of objects less.
        self._session.send(Reports(np.stack(columns, axis=1).tolist()))

    def _take(self, message: PlainCommits) -> None:
        now_s, committed, place_of = time.monotonic(), self._committed, self._place
        received = []
        for log_stream, rows in message.rows:
            place = place_of[log_stream]
            for _, _, _, glsn, llsn, count, _ in rows:
                received.append([place, llsn, glsn, count])
            committed[place] = llsn + count
        self._received.append((now_s, message.version, received))

    def versions(self) -> set[int]:
        return {version for _, version, _ in self._received}

    def received(self) -> Received:
        """What it received, as columns: for the check of the order, and with how long the repository took."""
        sizes = [len(rows) for _, _, rows in self._received]
        at_s = np.repeat([now_s for now_s, _, _ in self._received], sizes)
        rows = [row for _, _, rows in self._received for row in rows]
        places, llsn, glsn, count = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        rates, sent_s = self._rates[places], np.zeros(len(places))
        for partners in self._partners[places].T:
            reports = self._load.first_report_of(llsn + count, rates, self._phases_s[partners])
            sent_s = np.maximum(sent_s, self._sent_s[partners, reports])
        columns = np.stack([self._replicas[places], self._streams[places], llsn, glsn, count])
        return Received(columns, at_s, at_s - sent_s)


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
        start = await asyncio.to_thread(read_line)
        ids = np.load(self._directory / "ids.npy")
        for node in self.nodes:
            node.know_ids(ids)
        await self._wait_until(lambda: all(node.in_session for node in self.nodes), "a node has no session")
        say({"in_session": len(self.nodes)})
        start = await asyncio.to_thread(read_line)
        await self._run_from(start["start_s"])
        self._save()
        say({"done": True, "cpu_s": time.process_time()})
        await asyncio.to_thread(read_line)

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
        received = [node.received() for node in self.nodes]
        np.savez(
            self._directory / f"received-{self._number}.npz",
            rows=np.concatenate([found.rows for found in received], axis=1),
            received_s=np.concatenate([found.at_s for found in received]),
            latencies_s=np.concatenate([found.latency_s for found in received]),
            versions=np.array(sorted(set().union(*(node.versions() for node in self.nodes)))),
        )


def say(words: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def read_line() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)  # the process that started it is gone
    message: dict[str, Any] = json.loads(line)
    return message


def main() -> None:
    directory, number, of = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    codec._DECODERS[codec.number_of[Commits]] = msgspec.msgpack.Decoder(PlainCommits).decode
    gc.disable()  # nothing here is cyclic, and all that was received is kept
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Emulator(directory, number, of).run())


if __name__ == "__main__":
    main()
