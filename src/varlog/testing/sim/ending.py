"""The end of a run: the cluster heals, everything is read back through a client, then replica by replica from the disks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from varlog.client.connect import connect_admin, connect_log
from varlog.client.log import Log
from varlog.model.batch import check_body, entries_of, walk
from varlog.model.cluster import StreamState
from varlog.model.errors import VarlogError
from varlog.model.limits import MIB
from varlog.rpc.transport import Transport
from varlog.runtime.doors import Doors
from varlog.storage.log_store import LogStore
from varlog.testing.history import Ending, History, Outcome, StoredEntry
from varlog.testing.sim.disk import SimDisk
from varlog.testing.sim.drive import Drive, Folder
from varlog.testing.sim.host import Host
from varlog.testing.sim.process import Process
from varlog.testing.workload import Client, Mix

# How long, in virtual time, a cluster may take to run again once the faults have stopped.
HEAL_S = 60.0
READ_BACK_S = 60.0


class Judge:
    """A client that is never hurt. It waits until the cluster is well, and reads everything."""

    def __init__(
        self, doors: Doors, transport: Transport, repository: str, topics: Sequence[str], history: History
    ) -> None:
        self._doors = doors
        self._transport = transport
        self._repository = repository
        self._topics = list(topics)
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

    async def _probe(self) -> str:
        """What is wrong, or nothing."""
        async with await connect_admin(
            self._transport, self._doors, self._repository, timeout_s=5.0
        ) as admin:
            view = await admin.view()
            sealed = [stream.log_stream for stream in view.streams if stream.state is not StreamState.RUNNING]
            if sealed or not view.streams:
                try:
                    told = f" ({[node.status for node in (await admin.status()).nodes]})"
                except VarlogError as error:
                    told = f" ({error})"
                return f"streams {sealed} do not run{told}"
        for topic in self._topics:
            async with await self._connect(topic) as log:
                for stream in log.streams:
                    append = await self._client(topic, log).append(stream.log_stream)
                    if append.outcome is not Outcome.DONE:
                        return f"stream {stream.log_stream} takes no append: {append.told}"
        return ""

    async def read_back(self) -> None:
        """Everything that is there, in order, and what is trimmed; a few positions one by one."""
        for topic in self._topics:
            async with await self._connect(topic) as log:
                client = self._client(topic, log)
                tail = (await client.tail()).glsn or 0
                trimmed = await log.trimmed()
                got = await client.subscribe(trimmed + 1, tail + 1, READ_BACK_S)
                entries = [seen for _, seen in got.got]
                self._history.endings.append(Ending(topic, trimmed, tail, entries))
                rng = self._doors.entropy
                for glsn in sorted({trimmed, trimmed + 1, tail, tail + 1, rng.randint(1, tail + 1)}):
                    if glsn:
                        await client.read(glsn)

    async def _connect(self, topic: str) -> Log:
        return await connect_log(
            self._transport, self._doors, self._repository, topic=topic, create=False, timeout_s=10.0
        )

    def _client(self, topic: str, log: Log) -> Client:
        self._rounds += 1
        name = f"judge.{self._rounds}"
        rng = random.Random(self._doors.entropy.getrandbits(64))
        return Client(name, topic, log, self._history, rng, Mix(entry_bytes_max=40, timeout_s=10.0))


def examine(hosts: Sequence[Host], topics: dict[int, str], history: History, segment_bytes: int) -> None:
    """Open every replica on every drive and write down what it holds. The nodes must have stopped."""
    endings = {ending.topic: ending for ending in history.endings}
    for host in hosts:
        process = Process("examiner")
        disk = SimDisk(host.drive, process, random.Random(0), lambda: None)
        for path in _replica_paths(host.drive):
            try:
                store = LogStore.open(disk, path, segment_bytes=segment_bytes)
            except VarlogError as error:
                history.complaints.append(f"{path} on {host.name} cannot be opened: {error}")
                continue
            ending = endings.get(topics.get(store.topic, ""))
            if ending is not None:
                replicas = ending.replicas.setdefault(store.log_stream, {})
                replicas[host.name] = list(_stored(store))


def _replica_paths(drive: Drive) -> list[Path]:
    found: list[Path] = []

    def search(path: Path, folder: Folder) -> None:
        for name in sorted(folder.entries):
            node = folder.entries[name]
            if isinstance(node, Folder):
                if name.startswith("lsid="):
                    found.append(path / name)
                else:
                    search(path / name, node)

    search(Path("/"), drive.root)
    return found


def _stored(store: LogStore) -> Iterator[StoredEntry]:
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
