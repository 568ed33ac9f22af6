"""How KeyValue and Transactions grow with clients and with conflicts, on one cluster of real processes.

    python benchmarks/recipes.py [--seconds 2] [--nodes 3] [--clients 1,4,16,64] [--json]

Clients are tasks of one process that share its replica, each with one call in flight; where it says so, several replicas, each
with a connection of its own, which learn of each other's commits from the log alone. A transaction reads two accounts and writes
both. The conflict share is how many transactions in a hundred take one of their two accounts from a single hot one, the others are
nobody else's. Rates are of calls that were done, so of commits; tries: how often one was run until it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop

from varlog import aio
from varlog.bench.figures import format_count, format_ms, percentile
from varlog.bench.machine import conditions_of
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.ports import free_ports
from varlog.localcluster.supervisor import Supervisor
from varlog.recipes import Conflict, Isolation, KeyValue, Transaction, Transactions

VALUE = b"x" * 100
KEYS = 10_000
SHARES = (0, 10, 50, 100)
SHARE_CLIENTS = 16
RETRIES = 10_000
Call = Callable[[int], Awaitable[object]]


class Bench:
    """One workload after the other; `rows` are their figures."""

    def __init__(self, stores: Sequence[KeyValue], seconds: float, clients: Sequence[int]) -> None:
        self._stores = stores
        self._seconds = seconds
        self._clients = clients
        self._random = random.Random(1)
        self._tries = 0
        self.rows: list[dict[str, Any]] = []

    async def run(self) -> None:
        kv = self._stores[0]
        await self._fill(kv)
        for clients in self._clients:
            await self._measure("put", clients, lambda _: kv.put(self._key(), VALUE))
            await self._measure("compare and set", clients, lambda own: self._compare_and_set(kv, own))
            await self._measure("get", clients, lambda _: kv.get(self._key()))
            await self._measure("get, stale", clients, lambda _: kv.get(self._key(), stale=True))
            for isolation in Isolation:
                await self._transfers(f"transaction, {isolation}", clients, isolation, 0, self._stores[:1])
        for share in SHARES:
            for isolation in (Isolation.SNAPSHOT, Isolation.SERIALIZABLE):
                for stores in (self._stores[:1], self._stores):
                    where = f"{len(stores)} replica{'s' if len(stores) > 1 else ''}"
                    name = f"{isolation}, {where}, {share} % conflicting"
                    await self._transfers(name, SHARE_CLIENTS, isolation, share, stores)

    def _key(self) -> str:
        return f"key/{self._random.randrange(KEYS):06}"

    async def _fill(self, kv: KeyValue) -> None:
        keys = [f"key/{number:06}" for number in range(KEYS)]
        for begin in range(0, KEYS, 1000):
            await kv.write(dict.fromkeys(keys[begin : begin + 1000], VALUE))

    async def _compare_and_set(self, kv: KeyValue, own: int) -> None:
        """Read what is known here, and write if nothing newer is in the log: a key of its own, so it never fails."""
        key = f"own/{own:06}"
        found = await kv.get(key, stale=True)
        if await kv.compare_and_set(key, VALUE, found.revision if found else 0) is None:
            raise SystemExit(f"{key} was changed by another client")

    async def _transfers(
        self, name: str, clients: int, isolation: Isolation, share: int, stores: Sequence[KeyValue]
    ) -> None:
        transactions = [Transactions(kv, isolation=isolation) for kv in stores]

        async def call(own: int) -> None:
            hot = self._random.randrange(100) < share
            payer, payee = f"account/{own:06}/1", "account/hot" if hot else f"account/{own:06}/2"

            def transfer(bank: Transaction) -> None:
                self._tries += 1
                for account, sign in ((payer, -1), (payee, 1)):
                    bank.put(account, b"%d" % (int(bank.get(account) or b"0") + sign))

            await transactions[own % len(transactions)].run(transfer, retries=RETRIES)

        before = await self._total(stores[0])
        await self._measure(name, clients, call)
        lost = await self._total(stores[0]) - before
        if lost and isolation is not Isolation.READ_COMMITTED:
            raise SystemExit(f"{name}: {lost} came from nowhere")

    async def _total(self, kv: KeyValue) -> int:
        return sum(int(found.value or b"0") for found in await kv.range("account/"))

    async def _measure(self, name: str, clients: int, call: Call) -> None:
        """Each client again and again; those calls count that end within the time, after a warm-up."""
        begin = time.perf_counter() + min(0.5, self._seconds / 4)
        end = begin + self._seconds
        latencies: list[float] = []
        calls, self._tries = 0, 0

        async def repeat(own: int) -> None:
            nonlocal calls
            while (started := time.perf_counter()) < end:
                try:
                    await call(own)
                except Conflict as conflict:
                    raise SystemExit(f"{name}: {conflict}") from conflict
                calls += 1
                if begin <= (ended := time.perf_counter()) < end:
                    latencies.append(ended - started)

        await asyncio.gather(*map(repeat, range(clients)))
        self.rows.append(
            {
                "workload": name,
                "clients": clients,
                "per_s": len(latencies) / self._seconds,
                "p50_s": percentile(latencies, 50),
                "p99_s": percentile(latencies, 99),
                "tries": self._tries / calls if self._tries else None,
            }
        )


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="varlog-bench-", dir=options.data) as directory:
        where = f"{options.nodes} storage nodes, one metadata repository, one manager, one client, a process each, on this machine"
        sync = f"{options.nodes} replicas, fdatasync before every answer; each workload measured for {options.seconds:g} s"
        conditions = conditions_of(Path(directory), where=where, sync=sync)
        plan = ClusterPlan(
            data=Path(directory),
            ports=tuple(free_ports(options.nodes + 2)),
            replicas=options.nodes,
            streams=1,
        )
        supervisor = Supervisor(plan)
        await supervisor.start()
        try:
            async with AsyncExitStack() as stack:
                stores = []
                for _ in range(options.replicas):
                    opening = aio.connect(supervisor.address, "bench", create=True, timeout_s=60.0)
                    log = await stack.enter_async_context(opening)
                    stores.append(await stack.enter_async_context(KeyValue.open(log, timeout_s=60.0)))
                bench = Bench(stores, options.seconds, options.clients)
                await bench.run()
        finally:
            await supervisor.stop()
    return {"conditions": conditions.lines(), "rows": bench.rows}


def table(report: dict[str, Any]) -> str:
    """As Markdown: what grows with clients, and what suffers from conflicts."""
    rows = report["rows"]
    conflicts = [row for row in rows if "conflicting" in row["workload"]]
    by_clients = [row for row in rows if row not in conflicts]
    clients = list(dict.fromkeys(row["clients"] for row in by_clients))
    lines = [f"- {line}" for line in report["conditions"]]
    lines += [
        "",
        "| calls/s (p50, p99 in ms) | "
        + " | ".join(f"{count} client{'s' if count > 1 else ''}" for count in clients)
        + " |",
    ]
    lines.append("|---" + "|--:" * len(clients) + "|")
    for name in dict.fromkeys(row["workload"] for row in by_clients):
        cells = [_told(row) for row in by_clients if row["workload"] == name]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        f"| {SHARE_CLIENTS} clients | commits/s (p50, p99 in ms) | tries a commit |",
        "|---|--:|--:|",
    ]
    lines += [f"| {row['workload']} | {_told(row)} | {row['tries']:.2f} |" for row in conflicts]
    return "\n".join(lines)


def _told(row: dict[str, Any]) -> str:
    return f"{format_count(row['per_s'])} ({format_ms(row['p50_s'])}, {format_ms(row['p99_s'])})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each workload")
    parser.add_argument("--nodes", type=int, default=3, help="storage nodes, each with every entry")
    parser.add_argument("--replicas", type=int, default=4, help="of the store, where there are several")
    parser.add_argument(
        "--clients", type=lambda given: [int(count) for count in given.split(",")], default=[1, 4, 16, 64]
    )
    parser.add_argument(
        "--data", type=Path, help="directory on the disk to be measured [that of temporary files]"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(measure(options))
    sys.stdout.write((json.dumps(report, indent=2) if options.json else table(report)) + "\n")


if __name__ == "__main__":
    main()
