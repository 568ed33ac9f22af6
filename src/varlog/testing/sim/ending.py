"""The end of a run: the cluster heals, then clients and disks are read back."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack

from varlog.client.connect import connect_admin, connect_log
from varlog.client.log import Log
from varlog.model.batch import check_body, entries_of, walk
from varlog.model.cluster import ClusterView, StreamState
from varlog.model.errors import VarlogError
from varlog.model.events import sentence
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.limits import MIB
from varlog.model.status import ClusterStatus, ReplicaState
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.storage.committed.log_store import LogStore
from varlog.storage.committed.state_file import STATE_NAME
from varlog.storage.sequenced.unit_state import UNIT_NAME
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.host import Host
from varlog.testing.sim.core.loop import Process
from varlog.testing.sim.sequenced.ending import what_is_wrong_with_chains
from varlog.testing.sim.users.user import Attempts, Copier
from varlog.testing.workload import Client, Mix
from varlog.verify.history import CallOutcome, Ending, HarmAccount, History, StoredEntry, TrimCall

# How long, in virtual time, a cluster may take to run again once the faults have stopped.
HEAL_S = 60.0
READ_BACK_S = 60.0
# A topic that did not grow for this long has nothing in flight.
QUIET_S = 0.5
# After harm that replication does not survive: how long the cluster may take to be well or to show what is not, how long one
# question may take, and how many positions of a topic are read individually.
ACCOUNT_WAIT_S = 15.0
ACCOUNT_S = 3.0
ACCOUNT_READS = 24


class EndingCheck:
    """A client that is never hurt. It waits until the cluster is well, and reads everything."""

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        repository: str,
        topics: Sequence[str],
        replicas: int,
        history: History,
    ) -> None:
        self.view: ClusterView | None = None  # of the cluster when it was well
        self._environment = environment
        self._transport = transport
        self._repository = repository
        self._topics = list(topics)
        self._replicas = replicas
        self._history = history
        self._rounds = 0

    async def heal(self) -> bool:
        """Wait until every stream runs and takes an append; write down what keeps them from it."""
        self._rounds += 1
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HEAL_S
        trouble = "nobody answers"
        while loop.time() < deadline:
            try:
                trouble = await self._probe()
            except VarlogError as error:
                trouble = f"{type(error).__name__}: {error}"
            if not trouble:
                return True
            await asyncio.sleep(0.2)
        self._history.trouble.append(f"not well {HEAL_S:g} s after the last fault: {trouble}")
        return False

    async def wait_tidy(self) -> None:
        """Until nothing is left over: a manager that looked before all was well may just have made a unit that is not needed any
        more. What is there still is found on the disks."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HEAL_S
        while loop.time() < deadline:
            with contextlib.suppress(VarlogError):
                async with await connect_admin(
                    self._transport, self._environment, self._repository, timeout_s=5.0
                ) as admin:
                    if not what_is_wrong(await admin.status(), self._replicas):
                        return
            await asyncio.sleep(0.2)

    async def wait_quiet(self) -> None:
        """Until no topic grows: an append that waited in a storage node while its topic was stopped is written as soon as the
        topic continues, long after its client has given it up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HEAL_S
        before: dict[str, int] = {}
        trouble = "nobody answers"
        while loop.time() < deadline:
            try:
                tails = {}
                for topic in self._topics:
                    async with await self._connect(topic) as log:
                        tails[topic] = int(await log.tail(timeout_s=5.0))
                if tails == before:
                    return
                before, trouble = tails, f"the tails are {tails}"
            except VarlogError as error:
                trouble = f"{type(error).__name__}: {error}"
            await asyncio.sleep(QUIET_S)
        self._history.trouble.append(f"topics grow although nobody appends: {trouble}")

    async def _probe(self) -> str:
        """What is wrong, or nothing."""
        async with await connect_admin(
            self._transport, self._environment, self._repository, timeout_s=5.0
        ) as admin:
            status = await admin.status()
            if trouble := what_is_wrong(status, self._replicas):
                return trouble
            self.view = status.view
        for topic in self._topics:
            if topic in self._history.copies:
                continue  # only its source says what is appended to it
            async with await self._connect(topic) as log:
                for stream in log.streams:
                    # Of a sequenced topic the position says which stream it is.
                    chosen = None if log.topic.sequenced else stream.log_stream
                    append = await self._client(topic, log).append(chosen)
                    if append.outcome is not CallOutcome.DONE:
                        return f"stream {stream.log_stream} takes no append: {append.message}"
        return ""

    async def read_back(self) -> None:
        """Everything that exists, in order, and what is trimmed; a few positions individually."""
        for topic in self._topics:
            async with await self._connect(topic) as log:
                client = self._client(topic, log)
                tail = (await client.tail()).glsn or 0
                trimmed = await log.trimmed()
                got = await client.subscribe(trimmed + 1, max(trimmed, tail) + 1, READ_BACK_S)
                entries = [seen for _, seen in got.got]
                self._history.endings.append(Ending(topic, trimmed, tail, entries))
                rng = self._environment.entropy
                for glsn in sorted({trimmed, trimmed + 1, tail, tail + 1, rng.randint(1, tail + 1)}):
                    if glsn:
                        await client.read(glsn)

    async def account(self, refusals: Sequence[str]) -> None:
        """What became of everything that was known, and what the status shows. Nothing has to be well."""
        shown = await self._wait_shown(refusals)
        shown = "; ".join([*refusals, *([shown] if shown else [])])
        for topic in self._topics:
            account = HarmAccount(topic, shown)
            self._history.accounts.append(account)
            known = {seen.glsn: seen for _, seen, _ in self._history.sightings(topic)}
            try:
                log = await self._connect(topic)
            except VarlogError as error:
                account.gone = f"{type(error).__name__}: {error}"
                continue
            async with log:
                client = self._client(topic, log, timeout_s=ACCOUNT_S)
                _ = await client.tail()
                asked = [one.glsn for one in self._history.of(topic) if isinstance(one, TrimCall)]
                trimmed = max(await self._trimmed(log), self._history.first - 1)
                begin = max([trimmed, *(glsn for glsn in asked if glsn <= max(known, default=0))]) + 1
                got = await client.subscribe(begin, max(known, default=0) + 1, ACCOUNT_S)
                missing = sorted(
                    {glsn for glsn in known if glsn >= begin} - {seen.glsn for _, seen in got.got}
                )
                for glsn in missing[:: len(missing) // ACCOUNT_READS + 1]:
                    account.reads.append(await client.read(glsn))
                for stream in log.streams:
                    _ = await client.append(None if log.topic.sequenced else stream.log_stream)

    async def _wait_shown(self, refusals: Sequence[str]) -> str:
        """What the status shows once it has had time to be well; '' if that is nothing. A repository that knows of no stream shows
        nothing wrong: then nodes or managers refuse it, which is in `refusals` soon."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ACCOUNT_WAIT_S
        while True:
            try:
                async with await connect_admin(
                    self._transport, self._environment, self._repository, timeout_s=5.0
                ) as admin:
                    status = await admin.status()
                    empty = not status.view.streams
                    shown = "" if empty else what_is_wrong(status, self._replicas)
            except VarlogError as error:
                empty, shown = False, f"{type(error).__name__}: {error}"
            if not (shown or (empty and not refusals)) or loop.time() > deadline:
                return shown
            await asyncio.sleep(0.5)

    async def _trimmed(self, log: Log) -> int:
        try:
            return await log.trimmed()
        except VarlogError:
            return 0

    async def finish(self, attempts: Attempts, copier: Copier) -> None:
        """What is written by several attempts gets the one that must succeed."""
        async with AsyncExitStack() as stack:
            logs = {
                topic: await stack.enter_async_context(await self._connect(topic)) for topic in self._topics
            }
            await attempts.finish(logs)
            for copy, source in self._history.copies.items():
                await copier.finish(logs[source], logs[copy])

    async def _connect(self, topic: str) -> Log:
        return await connect_log(
            self._transport, self._environment, self._repository, topic=topic, create=False, timeout_s=10.0
        )

    def _client(self, topic: str, log: Log, timeout_s: float = 10.0) -> Client:
        self._rounds += 1
        name = f"judge.{self._rounds}"
        rng = random.Random(self._environment.entropy.getrandbits(64))
        return Client(name, topic, log, self._history, rng, Mix(entry_bytes_max=40, timeout_s=timeout_s))


def what_is_wrong(status: ClusterStatus, replicas: int) -> str:
    """What a healed cluster must not show; '' if nothing: all streams run, whole, on living nodes, and nothing is left over."""
    view = status.view
    if not view.streams:
        return "there are no streams"
    if stopped := [f"{topic.name}: {topic.stopped}" for topic in view.topics if topic.stopped]:
        return f"topics are STOPPED: {stopped}"
    silent = [health.node for health in status.nodes if not health.alive]
    if silent:
        return f"nodes {silent} do not answer"
    shown = {
        (health.node, replica.log_stream): replica
        for health in status.nodes
        if health.status is not None
        for replica in health.status.replicas
    }
    waits = {wait.log_stream: sentence(wait) for wait in status.waits}
    trims = {topic.topic: topic.trimmed for topic in view.topics}
    sequenced = {topic.topic for topic in view.topics if topic.sequenced}
    if trouble := what_is_wrong_with_chains(status, replicas):
        return trouble
    for stream in view.streams:
        if stream.topic in sequenced:
            continue
        name = f"stream {stream.log_stream}"
        mine = [shown.pop((node, stream.log_stream), None) for node in stream.replicas]
        if stream.state is not StreamState.RUNNING:
            return f"{name} does not run: {waits.get(stream.log_stream, '')} {stream} {mine}"
        # One more where an operator's move broke off half-way: the new replica had joined, the old one not left yet.
        if len(stream.replicas) < replicas:
            return f"{name} has {len(stream.replicas)} replicas, not {replicas}"
        for replica in mine:
            if replica is None or replica.state is not ReplicaState.RUNNING:
                return f"{name} runs, and a replica of it does not: {replica}"
            if replica.low_watermark < trims.get(stream.topic, 0):
                return f"a replica of {name} is not trimmed to {trims[stream.topic]} yet: {replica}"
            if replica.damage or replica.full:
                return f"a replica of {name} is damaged or full: {replica}"
    if shown:
        return f"replicas are left over that belong to no stream (node, stream): {list(shown)}"
    return ""


def examine(
    hosts: Sequence[Host],
    view: ClusterView,
    history: History,
    segment_bytes: int,
) -> None:
    """Open every registered replica on every drive and write down what it holds. The nodes must have stopped."""
    endings = {ending.topic: ending for ending in history.endings}
    names = {topic.topic: topic.name for topic in view.topics}
    sequenced = {topic.topic for topic in view.topics if topic.sequenced}
    for number, host in enumerate(hosts, 1):
        disk = SimDisk(host.drive, Process("examiner"), random.Random(0), lambda: None)
        missing = {
            stream.log_stream: stream
            for stream in view.streams_on(NodeID(number))
            if stream.topic not in sequenced
        }
        for path in host.replica_paths():
            if disk.exists(path / UNIT_NAME):
                continue  # see sequenced_ending
            if not disk.exists(path / STATE_NAME) and int(path.name.partition("=")[2]) not in missing:
                continue  # never finished: the next creation clears it away
            try:
                store = LogStore.open(disk, path, segment_bytes=segment_bytes)
                entries = list(stored_entries(store))
            except VarlogError as error:
                history.not_whole.append(f"{path} on {host.name} is not whole at the end: {error}")
                missing.pop(LogStreamID(int(path.name.partition("=")[2])), None)
                continue
            if missing.pop(store.log_stream, None) is None:
                history.complaints.append(f"{path} on {host.name} belongs to no stream, and is there still")
                continue
            ending = endings.get(names.get(store.topic, ""))
            if ending is not None:
                ending.replicas.setdefault(store.log_stream, {})[host.name] = entries
                ending.trims.setdefault(store.log_stream, {})[host.name] = store.trimmed
        for path in host.replica_paths(prefix="aside-"):
            history.complaints.append(f"{path} on {host.name} is set aside, and is there still")
        for log_stream in missing:
            history.complaints.append(f"log stream {log_stream} has no replica on {host.name}'s disk")


# What is on disk: the committed entries of a replica, read from its files.


def stored_entries(store: LogStore) -> Iterator[StoredEntry]:
    """Every committed entry, checked against its checksum, with the header of its batch."""
    llsn = store.low_llsn
    while llsn < store.committed_end:
        chunk = store.read(store.extent(llsn, MIB))
        for at, header in walk(chunk.data):
            check_body(chunk.data, header, at)
            batch = (
                header.epoch,
                header.first_llsn,
                header.producer,
                header.sequence,
                header.time_us,
                header.body_crc,
            )
            for index, data in enumerate(entries_of(chunk.data, header, at)):
                mine = header.first_llsn + index
                if llsn <= mine < store.committed_end:
                    yield StoredEntry(mine, store.glsn_of(type(llsn)(mine)), batch, data)
        llsn = chunk.end_llsn
