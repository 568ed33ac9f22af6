"""RecipeUser: a process that uses recipes: its jobs, its noise, its auditor."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from varlog.client.connect import connect_log
from varlog.client.log import Log
from varlog.model.errors import VarlogError
from varlog.recipes.core.counter_machine import add_command
from varlog.recipes.core.directory_snapshots import DirectorySnapshots
from varlog.recipes.core.envelope import HEAD, MAGIC, SKIP_HEAD, Envelope, encode_envelope
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.core.topic_snapshots import TopicSnapshots
from varlog.recipes.lock.lock_machine import Enter, encode_lock_command
from varlog.recipes.queue.queue_codec import PutItems, encode_queue_command
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.testing.sim.core.loop import CURRENT, Process
from varlog.testing.sim.recipes.job import AUDIT_CALL_S, AUDIT_S, AUDIT_TTL_S, Job, Site
from varlog.testing.sim.recipes.machine_jobs import CounterJob, ElectionJob, LedgerJob, LockJob, QueueJob
from varlog.testing.sim.recipes.map_jobs import KeyValueJob, RegistersJob, SerializableJob, SnapshotJob
from varlog.testing.sim.recipes.plan import RecipePlan, Store, Work
from varlog.verify.history import History
from varlog.verify.recipe_history import RecipeHistory

RECIPE_TOPIC, SNAPSHOT_TOPIC = "recipes", "snapshots"
SNAPSHOT_DIRECTORY = Path("/snapshots")


class RecipeUser:
    """The service of a client host: a replica of each recipe of the plan, and loops of calls on them."""

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        *,
        repository: str,
        plan: RecipePlan,
        history: History,
        recipes: RecipeHistory,
        stopping: Callable[[], bool],
        finished: Callable[[], None],
        trace: Callable[[str], None],
        ttl_s: float | None = None,
    ) -> None:
        self._environment = environment
        self._ttl_s = plan.ttl_s if ttl_s is None else ttl_s
        self._transport = transport
        self._repository = repository
        self._plan = plan
        self._history = history
        self._recipes = recipes
        self._stopping = stopping
        self._finished = finished
        self._trace = trace
        self._logs: list[Log] = []
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._work = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        process = CURRENT.get()
        site = await self.site(process.name if process is not None else "?")
        if site is not None:
            async with asyncio.TaskGroup() as group:
                for work in self._plan.works:
                    _ = group.create_task(self._watched(JOBS[work](site)))
                if self._plan.noise_entries:
                    _ = group.create_task(self._write_noise(site))
            await self.stop()
        self._finished()

    async def _watched(self, job: Job) -> None:
        try:
            await job.run()
        except Exception as error:  # noqa: BLE001 - reported to the checkers
            self._history.complaints.append(f"not an error of the tree: {job.work}: {error!r}")

    async def _write_noise(self, site: Site) -> None:
        """Entries that are no commands, between those that are: no recipe may stop at them, nor take them for its own."""
        rng = random.Random(self._environment.entropy.getrandbits(64))
        for _ in range(self._plan.noise_entries):
            await asyncio.sleep(rng.expovariate(1 / self._plan.think_s))
            if self._stopping():
                return
            with contextlib.suppress(VarlogError):  # the cluster is hurt, and noise need not arrive
                await site.log.append(noise(rng, NOISE_NAMES), timeout_s=self._plan.timeout_s)

    async def site(self, name: str) -> Site | None:
        """The logs that it needs; None if it is time to stop before they are open."""
        while not self._stopping():
            try:
                return await self._open(name)
            except VarlogError as error:
                self._trace(f"{name} has no log yet: {error}")
                await self.stop()
                await asyncio.sleep(0.1)
        return None

    async def _open(self, name: str) -> Site:
        log = await self._connect(RECIPE_TOPIC)
        snapshots: Snapshots | None = None
        if self._plan.store is Store.TOPIC:
            snapshots = TopicSnapshots(await self._connect(SNAPSHOT_TOPIC), entropy=self._environment.entropy)
        elif self._plan.store is Store.DIRECTORY:
            snapshots = DirectorySnapshots(SNAPSHOT_DIRECTORY, environment=self._environment)
        return Site(
            name,
            self._environment,
            log,
            snapshots,
            self._plan,
            self._history,
            self._recipes,
            self._stopping,
            self._trace,
            self._ttl_s,
        )

    async def _connect(self, topic: str) -> Log:
        log = await connect_log(
            self._transport, self._environment, self._repository, topic=topic, create=False, timeout_s=2.0
        )
        self._logs.append(log)
        return log

    async def stop(self) -> None:
        """Stop in the middle: what is in flight is abandoned."""
        while self._logs:
            await self._logs.pop().close()


class Auditor:
    """Opens every recipe of the plan: before the users come, so that each is there, and after they have left."""

    def __init__(
        self,
        process: Process,
        environment: Environment,
        transport: Transport,
        *,
        repository: str,
        plan: RecipePlan,
        history: History,
        recipes: RecipeHistory,
        trace: Callable[[str], None],
    ) -> None:
        self._process = process
        self._plan = plan
        self._history = history
        self._user = RecipeUser(
            environment,
            transport,
            repository=repository,
            plan=plan,
            history=history,
            recipes=recipes,
            stopping=self._late,
            finished=lambda: None,
            trace=trace,
            ttl_s=AUDIT_TTL_S,
        )
        self._until = 0.0

    def _late(self) -> bool:
        return asyncio.get_running_loop().time() > self._until

    async def prepare(self) -> bool:
        """Whether all of them could be opened."""
        return await self._process.spawn("prepare", self._visit(look=False))

    async def look(self) -> None:
        """Each machine is opened and looked at."""
        if not await self._process.spawn("look", self._visit(look=True)):
            self._history.trouble.append(f"the recipes could not be looked at within {AUDIT_S:g} s")

    async def _visit(self, *, look: bool) -> bool:
        self._until = asyncio.get_running_loop().time() + AUDIT_S
        site = await self._user.site(self._process.name)
        if site is None:
            return False
        for work in self._plan.works:
            job = JOBS[work](site)
            if not await job.open_somehow(self._late, AUDIT_CALL_S):
                return False
            if look:
                try:
                    await job.audit()
                except VarlogError as error:
                    self._history.trouble.append(f"{work} cannot be looked at: {error!r} {error}")
            await job.close()
        await self._user.stop()
        return True


# Recipe jobs: which job does which work.

JOBS: Final[dict[Work, type[Job]]] = {
    job.work: job
    for job in (
        LedgerJob,
        CounterJob,
        QueueJob,
        LockJob,
        ElectionJob,
        KeyValueJob,
        RegistersJob,
        SnapshotJob,
        SerializableJob,
    )
}


# Recipe noise: entries in a topic of recipes that are no commands.

# Machines of the plan's recipes whose commands have a form: of a ledger any bytes are a command.
NOISE_NAMES: Final = ("counter", "queue", "kv", "lock", "leader", "another")


def noise(rng: random.Random, names: Sequence[str]) -> bytes:
    """One entry that no recipe may apply or stop at."""
    name, pack = rng.choice(names), msgspec.msgpack.encode
    client = rng.randbytes(16)
    command = rng.choice(
        (
            add_command(7),
            encode_queue_command(PutItems([b"noise"])),
            encode_lock_command(Enter("noise", 10**9, "noise")),
        )
    )
    whole = encode_envelope(Envelope(name, client, 0, 1, 1, command))
    return rng.choice(
        (
            rng.randbytes(rng.randint(0, 40)),
            MAGIC + rng.randbytes(rng.randint(0, 3)),
            MAGIC + b"\x02\x90",
            MAGIC + b"\x02" + pack(["another", rng.getrandbits(40)]),
            MAGIC + b"\x02" + pack([name, client])[:-1],
            # Sound commands in envelopes that no client can have made: of the future, of no number, without an end.
            HEAD + pack([name, client, 2**60, 1, 1, command]),
            HEAD + pack([name, client, 0, 0, 0, command]),
            HEAD + pack([name, client, 0, 10**12, 1, command]),
            HEAD + pack([name, b"", 0, 1, 1, command]),
            whole[: rng.randint(len(HEAD), len(whole) - 1)],
            whole + b"\x00",
            # And envelopes of a client that hold no command.
            encode_envelope(Envelope(name, client, 0, 1, 1, rng.randbytes(3))),
            encode_envelope(Envelope(name, client, 0, 1, 1, pack([1]))),
            encode_envelope(Envelope(name, client, 0, 1, 1, b'[1,"enter",["x"],5,"x"]')),
            SKIP_HEAD + pack([name, 10**12]),
            SKIP_HEAD + pack([name])[:-1],
        )
    )
