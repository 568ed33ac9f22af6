"""`varlog demo`: a cluster, clients that append, a kill -9, and a proof that nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varlog.cli.output import FAILED, fail, print_json, run
from varlog.localcluster.wait import all_run, wait_until
from varlog.model.cluster import Ordering

if TYPE_CHECKING:
    from varlog.client.admin import Admin
    from varlog.client.log import Log
    from varlog.localcluster.supervisor import Supervisor
    from varlog.model.entry import Entry

TOPIC = "demo"
# What Spark writes goes here if the demo's topic is sequenced: exactly-once writes need a primary.
SPARK_TOPIC = "demo-spark"
CLIENTS = 4
NODES = 3
STREAMS = 2
COPIES = 2
VICTIM = "vsn-1"
BEFORE_KILL = 1_000
AFTER_RETURN = 1_000
TIMEOUT_S = 60.0
# Java and Spark take their time to start, on a busy machine above all.
SPARK_TIMEOUT_S = 180.0


@dataclass
class History:
    """What the clients were told: the ground truth that the log is checked against."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    refused: list[bytes] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    doubled_positions: list[int] = field(default_factory=list)
    longest_wait_s: float = 0.0
    clients: list[int] = field(default_factory=list)

    def acknowledge(self, glsn: int, data: bytes) -> None:
        if glsn in self.acknowledged:
            self.doubled_positions.append(glsn)
        self.acknowledged[glsn] = data


@dataclass(frozen=True)
class Claim:
    """One claim about the log, and what speaks against it."""

    claim: str
    violations: list[str]


def demo(
    faults: Annotated[
        bool,
        typer.Option("--faults", help="Under load: kill a primary, a backup and the repository that leads."),
    ] = False,
    ordering: Annotated[
        Ordering, typer.Option(help="Of the demo's topic. With --faults the sequencer is killed, too.")
    ] = Ordering.COMMITTED,
    spark: Annotated[
        bool, typer.Option(help="At the end, read and write the topic with Spark, if it is installed.")
    ] = True,
    json_: Annotated[bool, typer.Option("--json", help="Only the figures and verdicts, as JSON.")] = False,
) -> None:
    """Start a cluster, append, kill a storage node with -9, restart it, and check that nothing was lost."""
    if faults:
        holds, figures = _with_faults(ordering, quiet=json_)
    else:
        holds, figures = _plain(ordering, spark=spark, quiet=json_)
    if json_:
        print_json(figures)
    if not holds:
        fail("the demo found a violation, see above: this is a bug of varlog", FAILED)


def _plain(ordering: Ordering, *, spark: bool, quiet: bool) -> tuple[bool, dict[str, object]]:
    account = Account(quiet=quiet)
    return run(_until_signal(_within_time(account, ordering, spark=spark))), account.figures


def _with_faults(ordering: Ordering, *, quiet: bool) -> tuple[bool, dict[str, object]]:
    from varlog.cli.fault_demo import FaultDemo

    faulty = FaultDemo(ordering, quiet=quiet)
    return run(_until_signal(faulty.run())), faulty.figures


class Account:
    """What is told while it happens, and the figures for programs."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(quiet=quiet, highlight=False)
        self._begun = monotonic()
        self.entries = 0
        self.figures: dict[str, object] = {}
        self.verdicts: dict[str, list[str]] = {}

    def say(self, what: str) -> None:
        self._console.print(f"[dim]{monotonic() - self._begun:5.1f} s[/dim]  {what}")

    def headline(self, what: str) -> None:
        self._console.print(f"\n[bold]{what}[/bold]\n")

    def judge(self, verdict: Claim) -> None:
        mark = "[red]✗[/red]" if verdict.violations else "[green]✓[/green]"
        self._console.print(f"         {mark} {verdict.claim}")
        for violation in verdict.violations[:5]:
            self._console.print(f"             {violation}")

    def judge_all(self, verdicts: list[Claim]) -> bool:
        """Tell them, and keep them for programs; whether all of them hold."""
        told = {}
        for verdict in verdicts:
            self.judge(verdict)
            told[verdict.claim] = verdict.violations
        self.verdicts |= told
        self.figures["verdicts"] = self.verdicts
        return not any(told.values())


async def _until_signal(demo: Coroutine[Any, Any, bool]) -> bool:
    """SIGTERM ends it in order: no process and no directory is left."""
    loop = asyncio.get_running_loop()
    work = loop.create_task(demo, name="demo")
    loop.add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        fail("the demo was told to stop before it was over")


async def _within_time(account: Account, ordering: Ordering, *, spark: bool) -> bool:
    from varlog.model.errors import Unavailable

    limit_s = TIMEOUT_S + (SPARK_TIMEOUT_S if spark else 0)
    try:
        async with asyncio.timeout(limit_s):
            with tempfile.TemporaryDirectory(prefix="varlog-demo-") as directory:
                return await _account(account, Path(directory), ordering, spark=spark)
    except TimeoutError:
        raise Unavailable(f"the demo did not end within {limit_s:g} s: is the machine very busy?") from None


async def _account(account: Account, directory: Path, ordering: Ordering, *, spark: bool) -> bool:
    account.headline(
        f"varlog demo: {NODES} storage nodes, {STREAMS} log streams, {COPIES} synced copies of each entry"
        + (", sequenced" if ordering is Ordering.SEQUENCED else "")
    )
    async with _cluster(directory, ordering) as supervisor:
        from varlog import aio

        pids = supervisor.pids()
        account.say(f"{len(pids)} processes run: repository, sequencer, manager, {NODES} storage nodes")
        history, followed = History(), list[bytes]()
        async with aio.admin(supervisor.address) as admin, aio.connect(supervisor.address, TOPIC) as log:
            follower = asyncio.get_running_loop().create_task(_follow(log, followed), name="follow")
            try:
                await _append_and_kill(account, supervisor, admin, history)
                holds = await _check(account, log, history, followed, follower)
            finally:
                follower.cancel()
                await asyncio.wait([follower])
            if spark:
                holds = await _with_spark(account, supervisor.address, log, admin, directory) and holds
            account.headline("Nothing was lost." if holds else "Something is wrong.")
            account.figures["holds"] = holds
            return holds


@asynccontextmanager
async def _cluster(directory: Path, ordering: Ordering) -> AsyncIterator[Supervisor]:
    from varlog.localcluster.plan import ClusterPlan
    from varlog.localcluster.ports import free_ports
    from varlog.localcluster.supervisor import Supervisor
    from varlog.localcluster.wait import make_topic

    plan = ClusterPlan(directory, free_ports(NODES + 2), replicas=COPIES, streams=STREAMS, heartbeat_s=0.2)
    supervisor = Supervisor(plan)
    await supervisor.start()
    try:
        await make_topic(plan, TOPIC, ordering=ordering)
        yield supervisor
    finally:
        await supervisor.stop()


async def _append_and_kill(account: Account, supervisor: Supervisor, admin: Admin, history: History) -> None:
    account.say(f"{CLIENTS} clients append one entry after the other, a reader follows")
    enough = asyncio.Event()
    begun = monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(1, CLIENTS + 1):
            tasks.create_task(
                append_until(supervisor.address, TOPIC, number, history, enough), name=f"client {number}"
            )
        try:
            await _kill_and_wait(account, supervisor, admin, history)
        finally:
            enough.set()
    elapsed_s = monotonic() - begun
    count = len(history.acknowledged)
    account.say(f"{count:,} entries acknowledged, {count / elapsed_s:,.0f} a second")
    account.say(
        f"{len(history.unknown)} appends ended without an answer, {len(history.refused)} were refused"
    )
    account.figures |= {
        "acknowledged": count,
        "unknown": len(history.unknown),
        "refused": len(history.refused),
        "appends_per_s": round(count / elapsed_s),
    }


async def _kill_and_wait(account: Account, supervisor: Supervisor, admin: Admin, history: History) -> None:
    await wait_until(lambda: len(history.acknowledged) >= BEFORE_KILL)
    pid = supervisor.pids()[VICTIM]
    history.longest_wait_s = 0.0
    before, killed_at = len(history.acknowledged), monotonic()
    supervisor.kill(VICTIM)
    account.say(f"kill -9 {pid} ({VICTIM}), after {before:,} acknowledged entries")
    await supervisor.wait_restarted(VICTIM)
    down_s, meanwhile = monotonic() - killed_at, len(history.acknowledged) - before
    account.say(f"{meanwhile:,} more acknowledged while it was down")
    account.say(f"{VICTIM} is back, restarted by its supervisor after {down_s:.1f} s")
    await all_run(admin)
    healed_s = monotonic() - killed_at
    account.say(
        f"every replica runs again after {healed_s:.1f} s; longest append {history.longest_wait_s:.1f} s"
    )
    returned = len(history.acknowledged)
    await wait_until(lambda: len(history.acknowledged) >= returned + AFTER_RETURN)
    account.figures |= {
        "acknowledged_while_down": meanwhile,
        "down_s": round(down_s, 2),
        "healed_s": round(healed_s, 2),
        "longest_wait_s": round(history.longest_wait_s, 2),
    }


async def append_until(
    address: str, topic: str, number: int, history: History, enough: asyncio.Event
) -> None:
    """Append until it is enough; write down every answer. Nothing is ever tried twice, so nothing may be
    there twice."""
    from varlog import aio
    from varlog.model.errors import OutcomeUnknown, Rejected

    async with aio.connect(address, topic) as log:
        count = 0
        while not enough.is_set():
            count += 1
            data = f"client {number} entry {count}".encode()
            begun = monotonic()
            try:
                position = await log.append(data)
            except OutcomeUnknown:
                history.unknown.append(data)
            except Rejected:
                history.refused.append(data)
            else:
                history.acknowledge(position.glsn, data)
            history.longest_wait_s = max(history.longest_wait_s, monotonic() - begun)


async def _follow(log: Log, followed: list[bytes]) -> None:
    async for entries in log.subscribe_lists(1):
        followed += [entry.data for entry in entries]


async def _check(
    account: Account, log: Log, history: History, followed: list[bytes], follower: asyncio.Task[None]
) -> bool:
    newest = await log.tail()
    begun = monotonic()
    entries: list[Entry] = []
    async for part in log.subscribe_lists(1, newest + 1):
        entries += part
    account.say(f"read everything back: {len(entries):,} entries in {monotonic() - begun:.2f} s")
    try:
        async with asyncio.timeout(10):
            await wait_until(lambda: len(followed) >= len(entries) or follower.done())
    except TimeoutError:
        pass  # the verdict below says what is missing
    filled = await given_up(log, entries, newest)
    verdicts = judge(history, entries, newest, followed, filled)
    account.entries = len(entries)
    account.figures |= {"read_back": len(entries), "given_up": len(filled)}
    return account.judge_all(verdicts)


async def given_up(log: Log, entries: list[Entry], newest: int) -> frozenset[int]:
    """The positions of a sequenced topic that hold nothing, for ever, and say so (R-SEQ-7). In a committed one there are none."""
    from varlog.model.errors import JunkPosition, VarlogError

    found = set()
    for glsn in sorted(set(range(1, newest + 1)).difference(entry.glsn for entry in entries)):
        try:
            await log.read(glsn)
        except JunkPosition:
            found.add(glsn)
        except VarlogError:
            pass  # a gap: the verdict says so
    return frozenset(found)


async def _with_spark(account: Account, address: str, log: Log, admin: Admin, directory: Path) -> bool:
    """What Spark finds in the topic, and puts there; one line where it cannot be shown. A sequenced topic is only read."""
    from varlog.cli.spark_demo import ROWS, SparkTask, run_spark

    newest, entries = await log.tail(), account.entries
    task = SparkTask(address, TOPIC, newest, TOPIC, newest)
    if log.topic.sequenced:
        await admin.create_topic(SPARK_TOPIC)
        task = SparkTask(address, TOPIC, newest, SPARK_TOPIC, 0)
    account.say("Spark starts, and reads the same topic")
    seen = await run_spark(task, directory)
    if seen.skipped:
        account.say(seen.skipped)
        account.figures["spark"] = seen.skipped
        return True
    reading, writing = seen.violations(entries, task.before)
    account.figures["spark"] = {"read": seen.read, "written": seen.written}
    return account.judge_all(
        [
            Claim(f"Spark reads each of the {entries:,} positions once", reading),
            Claim(f"{ROWS:,} rows that Spark wrote twice, under one name, are there once", writing),
        ]
    )


def judge(
    history: History,
    entries: list[Entry],
    newest: int,
    followed: list[bytes],
    filled: frozenset[int] = frozenset(),
) -> list[Claim]:
    """The claims of the demo, each with what speaks against it (laws 3, 4, 10; R-ORD-4; R-READ-3). `filled`: positions that say
    that they hold nothing, for ever."""
    at: dict[int, bytes] = {entry.glsn: entry.data for entry in entries}
    positions = [entry.glsn for entry in entries]
    lost = [
        f"position {glsn}: {data.decode()} was acknowledged, {at.get(glsn)!r} is there"
        for glsn, data in history.acknowledged.items()
        if at.get(glsn) != data
    ]
    lost += [f"position {glsn} was given to two entries" for glsn in history.doubled_positions]
    dense = sorted([*positions, *filled]) == list(range(1, newest + 1)) and positions == sorted(positions)
    gaps = [] if dense else [f"{len(positions)} entries, {len(filled)} given up, newest {newest}"]
    but = f" but {len(filled)} that were given up for good" if filled else ""
    doubled = [
        f"{data!r}: {n} times" for data, n in Counter(entry.data for entry in entries).items() if n > 1
    ]
    refused = [f"{data!r} was refused" for data in history.refused if data in at.values()]
    same = [entry.data for entry in entries]
    return [
        Claim(f"each of the {len(history.acknowledged):,} acknowledged entries is at its position", lost),
        Claim(f"positions 1 to {newest:,} have no gap{but}", gaps),
        Claim("no entry is there twice, none that was refused is there", doubled + refused),
        Claim("each client's entries are in the order in which it appended them", _disorder(entries)),
        Claim(
            "the reader that followed saw the same entries in the same order",
            [] if followed == same else [f"it saw {len(followed)} entries, the log has {len(same)}"],
        ),
    ]


def _disorder(entries: list[Entry]) -> list[str]:
    newest: dict[bytes, int] = {}
    violations = []
    for entry in entries:
        client, _, count = entry.data.rpartition(b" ")
        if int(count) <= newest.get(client, 0):
            violations.append(f"{entry.data!r} comes after entry {newest[client]}")
        newest[client] = int(count)
    return violations
