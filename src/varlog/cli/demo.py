"""`varlog demo`: a cluster, a kill -9 under load, and a check for lost entries."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varlog.cli.output import FAILED, fail, print_json, run_async
from varlog.localcluster.wait import wait_all_running, wait_until
from varlog.model.cluster import Ordering

if TYPE_CHECKING:
    from varlog.cli.demo_history import DemoClaim, DemoHistory
    from varlog.client.admin import Admin
    from varlog.client.log import Log
    from varlog.localcluster.supervisor import Supervisor

TOPIC = "demo"
# Where Spark writes if the demo's topic is sequenced: exactly-once writes need a primary.
SPARK_TOPIC = "demo-spark"
CLIENTS = 4
NODES = 3
STREAMS = 2
COPIES = 2
VICTIM = "vsn-1"
BEFORE_KILL = 1_000
AFTER_RETURN = 1_000
TIMEOUT_S = 60.0
# Java and Spark start slowly, above all on a busy machine.
SPARK_TIMEOUT_S = 180.0


def demo(
    faults: Annotated[
        bool,
        typer.Option(
            "--faults",
            help="Kill a primary, a backup and the leading repository, one after the other, under load.",
        ),
    ] = False,
    ordering: Annotated[
        Ordering,
        typer.Option(
            help="Ordering of the demo's topic. With --faults and sequenced, the sequencer is killed too."
        ),
    ] = Ordering.COMMITTED,
    spark: Annotated[
        bool, typer.Option(help="Finally read and write the topic with Spark, if Spark is installed.")
    ] = True,
    json_: Annotated[
        bool, typer.Option("--json", help="Print only the figures and the checked claims, as JSON.")
    ] = False,
) -> None:
    """Start a cluster, append under load, kill -9 a storage node, and check that nothing is lost."""
    if faults:
        holds, figures = _with_faults(ordering, quiet=json_)
    else:
        holds, figures = _plain(ordering, spark=spark, quiet=json_)
    if json_:
        print_json(figures)
    if not holds:
        fail("the demo found a violation, see above: this is a bug in varlog", FAILED)


def _plain(ordering: Ordering, *, spark: bool, quiet: bool) -> tuple[bool, dict[str, object]]:
    account = Account(quiet=quiet)
    return run_async(_until_signal(_within_time(account, ordering, spark=spark))), account.figures


def _with_faults(ordering: Ordering, *, quiet: bool) -> tuple[bool, dict[str, object]]:
    from varlog.cli.fault_demo import FaultDemo

    faulty = FaultDemo(ordering, quiet=quiet)
    return run_async(_until_signal(faulty.run())), faulty.figures


class Account:
    """What the demo prints while it runs, and its figures for programs."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(quiet=quiet, highlight=False)
        self._begun = monotonic()
        self.entries = 0
        self.figures: dict[str, object] = {}
        self._claims: dict[str, list[str]] = {}

    def say(self, what: str) -> None:
        self._console.print(f"[dim]{monotonic() - self._begun:5.1f} s[/dim]  {what}")

    def headline(self, what: str) -> None:
        self._console.print(f"\n[bold]{what}[/bold]\n")

    def check(self, claims: list[DemoClaim]) -> bool:
        """Print the claims, and keep them for programs; true if all of them hold."""
        for claim in claims:
            mark = "[red]✗[/red]" if claim.violations else "[green]✓[/green]"
            self._console.print(f"         {mark} {claim.claim}")
            for violation in claim.violations[:5]:
                self._console.print(f"             {violation}")
            self._claims[claim.claim] = claim.violations
        self.figures["claims"] = self._claims
        return not any(claim.violations for claim in claims)


async def _until_signal(demo: Coroutine[Any, Any, bool]) -> bool:
    """SIGTERM stops the demo cleanly: no process and no directory is left."""
    loop = asyncio.get_running_loop()
    work = loop.create_task(demo, name="demo")
    loop.add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        fail("the demo was stopped before it finished")


async def _within_time(account: Account, ordering: Ordering, *, spark: bool) -> bool:
    from varlog.model.errors import Unavailable

    limit_s = TIMEOUT_S + (SPARK_TIMEOUT_S if spark else 0)
    try:
        async with asyncio.timeout(limit_s):
            with tempfile.TemporaryDirectory(prefix="varlog-demo-") as directory:
                return await _account(account, Path(directory), ordering, spark=spark)
    except TimeoutError:
        raise Unavailable(
            f"the demo did not finish within {limit_s:g} s: is the machine very busy?"
        ) from None


async def _account(account: Account, directory: Path, ordering: Ordering, *, spark: bool) -> bool:
    account.headline(
        f"varlog demo: {NODES} storage nodes, {STREAMS} log streams, {COPIES} synced copies of each entry"
        + (", sequenced" if ordering is Ordering.SEQUENCED else "")
    )
    async with _cluster(directory, ordering) as supervisor:
        from varlog import aio
        from varlog.cli.demo_history import DemoHistory

        pids = supervisor.pids()
        account.say(
            f"{len(pids)} processes are running: repository, sequencer, manager, {NODES} storage nodes"
        )
        history = DemoHistory(TOPIC, sequenced=ordering is Ordering.SEQUENCED)
        async with aio.admin(supervisor.address) as admin, aio.connect(supervisor.address, TOPIC) as log:
            follower = asyncio.get_running_loop().create_task(history.follow(log), name="follow")
            try:
                await _append_and_kill(account, supervisor, admin, history)
                holds = await _check(account, log, history, follower)
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
    from varlog.localcluster.wait import ensure_topic

    plan = ClusterPlan(directory, free_ports(NODES + 2), replicas=COPIES, streams=STREAMS, heartbeat_s=0.2)
    supervisor = Supervisor(plan)
    await supervisor.start()
    try:
        await ensure_topic(plan, TOPIC, ordering=ordering)
        yield supervisor
    finally:
        await supervisor.stop()


async def _append_and_kill(
    account: Account, supervisor: Supervisor, admin: Admin, history: DemoHistory
) -> None:
    account.say(f"{CLIENTS} clients append one entry after the other, and a reader follows")
    enough = asyncio.Event()
    begun = monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(1, CLIENTS + 1):
            tasks.create_task(
                _append_until(supervisor.address, number, history, enough), name=f"client {number}"
            )
        try:
            await _kill_and_wait(account, supervisor, admin, history)
        finally:
            enough.set()
    elapsed_s = monotonic() - begun
    count = history.acknowledged
    account.say(f"{count:,} entries acknowledged, {count / elapsed_s:,.0f} per second")
    account.say(f"{history.unknown} appends have an unknown outcome, {history.rejected} were refused")
    account.figures |= {
        "acknowledged": count,
        "unknown": history.unknown,
        "refused": history.rejected,
        "appends_per_s": round(count / elapsed_s),
    }


async def _kill_and_wait(
    account: Account, supervisor: Supervisor, admin: Admin, history: DemoHistory
) -> None:
    await wait_until(lambda: history.acknowledged >= BEFORE_KILL)
    pid = supervisor.pids()[VICTIM]
    history.longest_wait_s = 0.0
    before, killed_at = history.acknowledged, monotonic()
    supervisor.kill(VICTIM)
    account.say(f"kill -9 {pid} ({VICTIM}), after {before:,} acknowledged entries")
    await supervisor.wait_restarted(VICTIM)
    down_s, meanwhile = monotonic() - killed_at, history.acknowledged - before
    account.say(f"{meanwhile:,} more acknowledged while it was down")
    account.say(f"{VICTIM} is back, restarted by its supervisor after {down_s:.1f} s")
    await wait_all_running(admin)
    healed_s = monotonic() - killed_at
    account.say(
        f"every replica runs again after {healed_s:.1f} s; longest append {history.longest_wait_s:.1f} s"
    )
    returned = history.acknowledged
    await wait_until(lambda: history.acknowledged >= returned + AFTER_RETURN)
    account.figures |= {
        "acknowledged_while_down": meanwhile,
        "down_s": round(down_s, 2),
        "healed_s": round(healed_s, 2),
        "longest_wait_s": round(history.longest_wait_s, 2),
    }


async def _append_until(address: str, number: int, history: DemoHistory, enough: asyncio.Event) -> None:
    """Append one entry after the other until `enough` is set."""
    from varlog import aio

    async with aio.connect(address, TOPIC) as log:
        count = 0
        while not enough.is_set():
            count += 1
            await history.append(log, f"client {number}", f"client {number} entry {count}".encode())


async def _check(account: Account, log: Log, history: DemoHistory, follower: asyncio.Task[None]) -> bool:
    begun = monotonic()
    entries = len(await history.read_back(log))
    account.say(f"read everything back: {entries:,} entries in {monotonic() - begun:.2f} s")
    try:
        async with asyncio.timeout(10):
            await wait_until(lambda: history.followed >= entries or follower.done())
    except TimeoutError:
        pass  # the last claim shows what is missing
    account.entries = entries
    account.figures |= {"read_back": entries, "junk": history.junk}
    return account.check(history.claims())


async def _with_spark(account: Account, address: str, log: Log, admin: Admin, directory: Path) -> bool:
    """Read the topic with Spark, and write to it exactly once. A sequenced topic is only read. Without Spark: one line says so."""
    from varlog.cli.demo_history import DemoClaim
    from varlog.cli.spark_demo import ROWS, SparkTask, run_spark

    newest, entries = await log.tail(), account.entries
    task = SparkTask(address, TOPIC, newest, TOPIC, newest)
    if log.topic.sequenced:
        await admin.create_topic(SPARK_TOPIC)
        task = SparkTask(address, TOPIC, newest, SPARK_TOPIC, 0)
    account.say("starting Spark, which reads the same topic")
    seen = await run_spark(task, directory)
    if seen.skipped:
        account.say(seen.skipped)
        account.figures["spark"] = seen.skipped
        return True
    reading, writing = seen.violations(entries, task.before)
    account.figures["spark"] = {"read": seen.read, "written": seen.written}
    return account.check(
        [
            DemoClaim(f"Spark reads each of the {entries:,} positions once", reading),
            DemoClaim(f"{ROWS:,} rows that Spark wrote twice under one writer name appear once", writing),
        ]
    )
