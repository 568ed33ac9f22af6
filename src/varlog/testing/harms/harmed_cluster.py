"""HarmedCluster: real processes whose files are harmed, and what was acknowledged.

Unlike `ClusterUnderLoad` nothing runs meanwhile: a test appends, harms, restarts, and compares. So a cell of the table of harms
takes seconds, and one cluster serves many cells. A kill of a storage node loses the commit rows that were not synced: they are in
memory only. It therefore stands for a power loss, except for what the operating system would have lost of unsynced data.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np

from varlog import aio
from varlog.client.log import Log
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import ensure_topic, is_fully_running
from varlog.model.batch import check_body, entries_of, walk
from varlog.model.cluster import Ordering
from varlog.model.errors import CorruptBatch, StartupError, Unavailable, VarlogError
from varlog.model.events import sentence
from varlog.model.lsn import FIRST_LLSN
from varlog.model.status import ClusterStatus
from varlog.storage.committed.row_file import ROW_BYTES, ROW_TYPE, ROWS_NAME, good_rows
from varlog.testing.processes import command

COMMITTED, SEQUENCED = "orders", "chain"
STRIPE_SIZE = 8
# A call that may never be answered is to end soon: many cells wait for one.
CALL_S = 5.0
CONNECT_S = 10.0
READ_S = 8.0
ENTRY_BYTES = 100
HIDDEN = "BEHIND THE TAIL"
# A cluster that is not whole after this time, and says so, waits for a person.
HEAL_S = 15.0
# Only so that nothing hangs.
WAIT_S = 90.0


@dataclass
class Record:
    """What was acknowledged in one topic. `broken` has every contradiction so far, in words."""

    topic: str
    entries: dict[int, bytes] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    appended: int = 0

    def next_entry(self) -> bytes:
        self.appended += 1
        return (b"%s-%d|" % (self.topic.encode(), self.appended)).ljust(ENTRY_BYTES, b".")

    def acknowledge(self, glsn: int, data: bytes) -> None:
        before = self.entries.setdefault(glsn, data)
        if before != data:
            self.broken.append(
                f"GIVEN TWICE: position {glsn} of {self.topic} was acknowledged for {_name(before)} and again for {_name(data)}"
            )

    def compare(self, found: dict[int, bytes]) -> list[str]:
        """How what was read differs from what was acknowledged."""
        differences = []
        tail = max(found, default=0)
        for glsn, data in self.entries.items():
            if glsn > tail:
                differences.append(
                    f"{HIDDEN}: position {glsn} of {self.topic} ({_name(data)}) is above the tail {tail}"
                )
            elif glsn not in found:
                differences.append(f"LOST: position {glsn} of {self.topic} ({_name(data)}) is missing")
            elif found[glsn] != data:
                differences.append(
                    f"WRONG: position {glsn} of {self.topic} was acknowledged for {_name(data)} and holds {_name(found[glsn])}"
                )
        return differences


class HarmedCluster:
    """A cluster of `plan` with a topic of each ordering. Processes are killed, files changed, processes started again."""

    def __init__(self, plan: ClusterPlan, orderings: Iterable[Ordering] = tuple(Ordering)) -> None:
        self.plan = plan
        names = {Ordering.COMMITTED: COMMITTED, Ordering.SEQUENCED: SEQUENCED}
        self.topics = {names[ordering]: ordering for ordering in orderings}
        self.records = {topic: Record(topic) for topic in self.topics}
        self.supervisor = Supervisor(plan, say=print)

    @property
    def address(self) -> str:
        return self.plan.repository

    # --- processes ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.supervisor.start()

    async def make_topics(self) -> None:
        for topic, ordering in self.topics.items():
            await ensure_topic(self.plan, topic, ordering=ordering, stripe_size=STRIPE_SIZE)

    async def stop(self) -> None:
        await self.supervisor.stop()

    def kill_all(self) -> None:
        """kill -9 of every process at once, as a power loss does; none comes back by itself."""
        names = list(self.supervisor.pids())
        for name in names:
            self.supervisor.signal(name, signal.SIGSTOP)
        self.kill(*names)

    def kill(self, *names: str) -> None:
        for name in names:
            self.supervisor.kill(name, restart=False)

    async def restart(self, *names: str) -> None:
        """Those that were killed, the others continue. StartupError if one refuses to start, with its reason."""
        for name in names:
            await self.supervisor.restart(name)

    def names(self) -> list[str]:
        """Of all processes, in the order in which they start."""
        return [process.name for process in self.plan.processes()]

    def varlog(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command as an operator types it."""
        return command("varlog.cli", arguments)

    # --- copies of the files -----------------------------------------------------------------------------------------

    def directories(self) -> list[Path]:
        """Of every process that keeps something."""
        return sorted(
            path for path in self.plan.data.iterdir() if path.is_dir() and path.name not in ("logs", "copies")
        )

    def copy(self, name: str, *processes: str) -> Path:
        """A copy of the files of these processes, or of all; taken while they run it is what a plain `cp -r` gives."""
        copy = self.plan.data / "copies" / name
        shutil.rmtree(copy, ignore_errors=True)
        for path in self.directories():
            if not processes or path.name in processes:
                shutil.copytree(path, copy / path.name)
        return copy

    def restore(self, copy: Path, *processes: str) -> None:
        """Put a copy back in place of what is there; the processes must not run."""
        for path in copy.iterdir():
            if not processes or path.name in processes:
                shutil.rmtree(self.plan.data / path.name)
                shutil.copytree(path, self.plan.data / path.name)

    # --- what a client sees ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def log(self, topic: str) -> AsyncIterator[Log]:
        async with asyncio.timeout(WAIT_S):
            log = await aio.connect(self.address, topic, create=False, timeout_s=CONNECT_S)
        async with log:
            yield log

    async def append(self, count: int, *topics: str) -> None:
        """This many entries to each topic at the same time; every acknowledgement is recorded. Raises if one fails."""
        for topic in topics or self.topics:
            async with self.log(topic) as log:
                record = self.records[topic]
                await asyncio.gather(*(self._append_one(log, record, timeout_s=WAIT_S) for _ in range(count)))

    async def append_to(self, log_stream: int, count: int, topic: str = COMMITTED) -> None:
        """This many entries to one log stream, at the same time."""
        async with self.log(topic) as log:
            record = self.records[topic]
            await asyncio.gather(
                *(self._append_one(log, record, log_stream, timeout_s=WAIT_S) for _ in range(count))
            )

    async def _append_one(
        self, log: Log, record: Record, log_stream: int | None = None, *, timeout_s: float
    ) -> None:
        data = record.next_entry()
        position = await log.append(data, log_stream=log_stream, timeout_s=timeout_s)
        record.acknowledge(position.glsn, data)

    async def try_append(self, count: int, *topics: str) -> list[str]:
        """As `append`, but one after the other, and what is refused is returned in words."""
        refused = []
        for topic in topics or self.topics:
            try:
                async with self.log(topic) as log:
                    for _ in range(count):
                        await self._append_one(log, self.records[topic], timeout_s=CALL_S)
            except VarlogError as error:
                refused.append(f"append to {topic}: {error}")
        return refused

    async def differences(self, *topics: str) -> list[str]:
        """Everything acknowledged so far against what a client reads now. VarlogError if it cannot be read."""
        found: list[str] = []
        for topic in topics or self.topics:
            record = self.records[topic]
            found += record.broken
            if not record.entries:
                continue
            async with self.log(topic) as log:
                found += record.compare(await read_all(log))
        return found

    def broken(self) -> list[str]:
        """What acknowledgements alone show."""
        return [line for record in self.records.values() for line in record.broken]

    async def status(self) -> ClusterStatus:
        async with asyncio.timeout(WAIT_S), aio.admin(self.address) as admin:
            return await admin.status()

    async def wait_status(self, there: Callable[[ClusterStatus], bool]) -> ClusterStatus:
        """Until what the manager says of the cluster is as it should be."""
        async with asyncio.timeout(WAIT_S):
            while True:
                with suppress(VarlogError):  # the manager has just started: ask again
                    if there(seen := await self.status()):
                        return seen
                await asyncio.sleep(0.05)

    async def wait_rows_synced(self) -> None:
        """Until every replica has the order of all its committed entries on its disk."""
        await self.wait_status(
            lambda seen: all(
                rows_end(Path(replica.path)) >= replica.committed_end
                for health in seen.nodes
                if health.status is not None
                for replica in health.status.replicas
            )
        )

    async def wait_healed(self, timeout_s: float = WAIT_S) -> None:
        """Until every replica of every stream runs. TimeoutError names what is in the way."""
        seen = "no status"
        try:
            async with asyncio.timeout(timeout_s), aio.admin(self.address) as admin:
                while True:
                    try:
                        status = await admin.status()
                        if is_fully_running(status):
                            return
                        seen = f"{[(wait.log_stream, sentence(wait)) for wait in status.waits]}"
                    except VarlogError as error:
                        seen = str(error)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise TimeoutError(f"not healed after {timeout_s:g} s: {seen}") from None

    # --- what processes log ------------------------------------------------------------------------------------------

    def log_sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self._logs()}

    def logged_since(self, sizes: dict[str, int], *levels: str) -> list[str]:
        """Lines of all logs behind these sizes, of these levels or of all."""
        lines = []
        for path in self._logs():
            with path.open("rb") as file:
                file.seek(sizes.get(path.name, 0))
                text = file.read().decode("utf-8", "replace")
            lines += [
                f"{path.stem}: {line}"
                for line in text.splitlines()
                if not levels or any(level in line for level in levels)
            ]
        return lines

    def _logs(self) -> list[Path]:
        return sorted((self.plan.data / "logs").glob("*.log"))


def _name(data: bytes) -> str:
    """What is before the padding."""
    return data.partition(b"|")[0].decode(errors="replace")


def rows_end(replica: Path) -> int:
    """One past the last LLSN that the row file of a replica orders."""
    content = (replica / ROWS_NAME).read_bytes()
    rows = np.frombuffer(content[ROW_BYTES : len(content) // ROW_BYTES * ROW_BYTES], ROW_TYPE)
    rows = rows[good_rows(rows)]
    return int(rows["llsn"][-1] + rows["count"][-1]) if len(rows) else FIRST_LLSN


def stored_data(replica: Path) -> set[bytes]:
    """Every entry in the segments of a replica whose node does not run, ordered or not; nothing is changed."""
    found: set[bytes] = set()
    for segment in sorted(replica.glob("*.seg")):
        content = segment.read_bytes()
        with suppress(CorruptBatch):  # the unused end of a segment
            for at, header in walk(content):
                check_body(content, header, at)
                found.update(bytes(data) for data in entries_of(content, header, at))
    return found


async def read_all(log: Log, quiet_s: float = READ_S) -> dict[int, bytes]:
    """Every position that is not trimmed, up to the tail, as a subscriber gets them. What a subscriber waits for in vain is asked
    for by itself: the answer says why. VarlogError, or TimeoutError if nothing does."""
    found: dict[int, bytes] = {}
    async with asyncio.timeout(quiet_s):
        tail, trimmed = await log.tail(), await log.trimmed()
    if tail <= trimmed:
        return found
    entries = log.subscribe(trimmed + 1, tail + 1)
    try:
        while True:
            async with asyncio.timeout(quiet_s):
                entry = await anext(entries)
            found[entry.glsn] = bytes(entry.data)
    except StopAsyncIteration:
        return found
    except TimeoutError:
        lacking = next(glsn for glsn in range(trimmed + 1, tail + 1) if glsn not in found)
        async with asyncio.timeout(WAIT_S):
            entry = await log.read(lacking, timeout_s=quiet_s)
        raise Unavailable(
            f"a subscriber gets nothing behind {lacking - 1}, although {lacking} can be read"
        ) from None


@asynccontextmanager
async def harmed_cluster(
    plan: ClusterPlan, orderings: Iterable[Ordering] = tuple(Ordering)
) -> AsyncIterator[HarmedCluster]:
    """Started, with its topics; no process is left, however the body ends."""
    cluster = HarmedCluster(plan, orderings)
    try:
        await cluster.start()
        await cluster.make_topics()
        yield cluster
    finally:
        await cluster.stop()


# --- result ---------------------------------------------------------------------------------------------------------


class HarmOutcome(StrEnum):
    """Of one harm. The last two are failures of the product."""

    HEALED = "healed"  # everything acknowledged is right, and appends work, without a person
    SAID = "said"  # something is refused, with words where an operator looks; nothing is wrong
    SILENT = "SILENT"  # something is refused, and nothing says why
    LOST = "LOST"  # something acknowledged is gone, swapped, or its position was given again


@dataclass(frozen=True)
class HarmResult:
    """`words`: what the processes logged, or what is broken; the most important line first."""

    outcome: HarmOutcome
    words: tuple[str, ...] = ()

    @property
    def right_or_said(self) -> bool:
        return self.outcome in (HarmOutcome.HEALED, HarmOutcome.SAID)

    def __str__(self) -> str:
        return f"{self.outcome}: " + "; ".join(self.words[:5])


async def result_after_restart(
    cluster: HarmedCluster, *names: str, heals: bool = False, appends: int = 20
) -> HarmResult:
    """Start what was killed (all, if none is named), wait until it heals or says that it cannot, append, and compare. `heals` as
    in `result_of`."""
    sizes = cluster.log_sizes()
    try:
        if names:
            await cluster.restart(*names)
        else:
            await cluster.stop()
            await cluster.start()
    except StartupError as error:
        return HarmResult(HarmOutcome.SAID, (str(error),))
    return await result_of(cluster, sizes, heals=heals, appends=appends)


async def result_of(
    cluster: HarmedCluster, sizes: dict[str, int], *, heals: bool = False, appends: int = 20
) -> HarmResult:
    """Of a cluster that runs; `sizes` are those of its logs before the harm. `heals`: it must heal by itself, so neither words in
    its logs nor a slow machine end the wait."""
    said: list[str] = []
    now = asyncio.get_running_loop().time
    deadline, last_deadline = now() + (WAIT_S if heals else HEAL_S), now() + WAIT_S
    while True:
        said = cluster.logged_since(sizes, "CRITICAL")
        left = deadline - now()
        waits = left > 0 and (heals or not said)
        try:
            await cluster.wait_healed(max(0.1, min(left, 1.0)))
            refused = await cluster.try_append(appends)
            unreadable: list[str] = []
        except (TimeoutError, VarlogError) as error:
            if waits:
                continue
            refused, unreadable = [str(error), *await cluster.try_append(appends)], []
        try:
            different = await cluster.differences()
        except (TimeoutError, VarlogError) as error:
            different, unreadable = cluster.broken(), [f"cannot be read: {error}"]
        said = cluster.logged_since(sizes, "CRITICAL")
        # A topic that is stopped shows no more than the repository knows: an operator has to decide first.
        hidden = bool(said and refused) and all(line.startswith(HIDDEN) for line in different)
        if different and not hidden:
            return HarmResult(HarmOutcome.LOST, (f"{len(different)} entries", *different))
        if not refused and not unreadable:
            return HarmResult(HarmOutcome.HEALED, tuple(cluster.logged_since(sizes, "CRITICAL", "ERROR")))
        if waits:
            continue
        said = [*said, *cluster.logged_since(sizes, "ERROR"), *await _shown(cluster)]
        if said or now() > last_deadline:  # on a slow machine the words come late as well
            break
    words = (*said, *refused, *unreadable)
    return HarmResult(HarmOutcome.SAID if said else HarmOutcome.SILENT, words)


async def _shown(cluster: HarmedCluster) -> list[str]:
    """What the status says of topics and streams that do not run."""
    try:
        seen = await cluster.status()
        stopped = [f"status: STOPPED: {topic.stopped}" for topic in seen.view.topics if topic.stopped]
        return stopped + [f"status: log stream {wait.log_stream}: {sentence(wait)}" for wait in seen.waits]
    except (TimeoutError, VarlogError) as error:
        return [f"status: {error}"]
