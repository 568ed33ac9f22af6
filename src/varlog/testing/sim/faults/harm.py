"""Harm to files and drives, within and beyond what replication survives."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from varlog.model.cluster import LogStream
from varlog.model.errors import StartupError
from varlog.storage.sequenced.sync_watermark import SYNCED_NAME
from varlog.testing.sim.core.drive import BLOCK_BYTES, SECTOR_BYTES, Drive, Folder, Inode
from varlog.testing.sim.core.host import VOLUME, Host
from varlog.testing.sim.faults.survivor_check import SurvivorCheck

# How often the drives are written down, in virtual seconds, and how many such moments are kept of each.
SNAPSHOT_S = 0.4
SNAPSHOTS_MAX = 12
# A lock holds nothing; it goes with its process.
LOCK_NAMES = ("lock", "metadata.db.lock")


class Harm(StrEnum):
    """What can happen to one file."""

    BIT = "a bit flips"
    SECTOR = "a sector is garbage"
    ZEROED = "the tail is zeroed"
    TRUNCATED = "it is truncated"
    DELETED = "it is deleted"
    OLDER = "an older copy is put in its place"
    REPLACED = "another file is moved over it"  # a process that has it open continues with the unlinked one


# Of these a process that has the file open notices nothing until it looks for its name.
NAMELESS = (Harm.DELETED, Harm.REPLACED)
# An older copy of a repository's file is another matter: see the witnesses of the order.
STORE_HARMS = (Harm.BIT, Harm.SECTOR, Harm.ZEROED, Harm.TRUNCATED, Harm.DELETED)


class Past:
    """What the drives of some hosts were like a while ago."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._kept: dict[str, deque[tuple[float, Folder]]] = {
            host.name: deque(maxlen=SNAPSHOTS_MAX) for host in hosts
        }
        self._hosts = list(hosts)

    def take(self, now_s: float) -> None:
        """Write down how all drives are now."""
        for host in self._hosts:
            self._kept[host.name].append((now_s, host.drive.snapshot()))

    def of(self, host: Host) -> list[tuple[float, Folder]]:
        """(virtual time, drive), oldest first."""
        return list(self._kept.get(host.name, ()))

    def older(self, host: Host, path: Path) -> list[bytes]:
        """The contents that a file had and has no more, oldest first."""
        now = host.drive.find(path)
        found: list[bytes] = []
        for _, root in self._kept.get(host.name, ()):
            drive = Drive()
            drive.root = root
            node = drive.find(path)
            if isinstance(node, Inode) and isinstance(now, Inode) and node.durable != now.durable:
                content = bytes(node.durable)
                if not found or found[-1] != content:
                    found.append(content)
        return found


def files_of(host: Host, below: Path) -> list[Path]:
    """All files on a host's drive below a directory, as a process sees them."""

    def search(path: Path, folder: Folder) -> Iterator[Path]:
        for name in sorted(folder.entries):
            node = folder.entries[name]
            if isinstance(node, Folder):
                yield from search(path / name, node)
            elif name not in LOCK_NAMES:
                yield path / name

    found = host.drive.find(below)
    return list(search(below, found)) if isinstance(found, Folder) else []


def harm_file(
    host: Host, path: Path, rng: random.Random, past: Past, wanted: Sequence[Harm] = tuple(Harm)
) -> str:
    """Harm one file in one way; returns how, or '' where there is nothing to harm. Handles that are open see it, too,
    unless the file lost its name."""
    inode = host.drive.file(path)
    older = past.older(host, path)
    # Of space that is reserved and not used nothing can be lost.
    size = len(inode.content.rstrip(b"\0"))
    ways = [Harm.DELETED]
    if size:
        ways += [Harm.BIT, Harm.SECTOR, Harm.ZEROED, Harm.TRUNCATED]
    if older:
        ways += [Harm.OLDER, Harm.OLDER]
    ways.append(Harm.REPLACED)
    way = rng.choice([one for one in ways if one in wanted])
    folder = host.drive.folder(path.parent)
    if way is Harm.DELETED:
        folder.unlink(path.name)
        folder.sync()
        return str(way)
    if way is Harm.REPLACED:
        # A copy of itself is right at this moment, and lacks whatever comes next.
        folder.link(path.name, Inode(rng.choice([*older, bytes(inode.content)])))
        folder.sync()
        return str(way)
    if way is Harm.OLDER:
        inode.rewrite(rng.choice(older))
        return str(way)
    at = rng.randrange(size)
    if way is Harm.BIT:
        inode.flip(at, rng.randrange(8))
        return f"{way}, at byte {at}"
    content = bytearray(inode.content)
    if way is Harm.SECTOR:
        begin = at - at % rng.choice((SECTOR_BYTES, BLOCK_BYTES))
        end = min(begin + SECTOR_BYTES, len(content))
        content[begin:end] = rng.randbytes(end - begin)
    elif way is Harm.ZEROED:
        content[at:] = bytes(len(content) - at)
    else:
        del content[at:]
    inode.rewrite(bytes(content))
    return f"{way}, from byte {at} on"


# Beyond: harm that replication does not survive. Every copy of a stream, or the repository's files with what nodes know.
#
# The demand is in RightOrSaid: each acknowledged entry is right at the end, or its loss is reported.

# What is cut off at the end of the newest file of every copy cannot be distinguished from what was never written, unless
# another process counts. This can.
DISTINGUISHABLE = (Harm.BIT, Harm.SECTOR, Harm.DELETED)
# How many runs harm the repository, and not every copy of a stream.
STORES_SHARE = 0.3
# How often the owner of a node that refuses to start gives it an empty directory; else it stays down.
EMPTIED_SHARE = 0.5
# … and how often there is a backup of a repository's files.
RESTORED_SHARE = 0.7


class Beyond:
    """One fault after the other, each to all who have a copy. `reported` takes what a process says as it refuses to start."""

    def __init__(
        self,
        rng: random.Random,
        hosts: Sequence[Host],
        survivors: SurvivorCheck,
        past: Past,
        trace: Callable[[str], None],
        reported: Callable[[str], None],
    ) -> None:
        self.given_up: set[str] = set()  # hosts that refused to start, and that nobody starts again
        self._unharmed: dict[str, Folder] = {}  # the newest whole copy of a repository's drive
        # One side at a time: where the repository and all nodes went back in time together, nobody is left that knows better.
        self._stores: bool | None = None  # drawn with the first strike
        self._busy = False
        self._tasks: list[asyncio.Task[None]] = []
        self._rng = rng
        self._hosts = list(hosts)
        self._survivors = survivors
        self._past = past
        self._trace = trace
        self._reported = reported

    def strike(self, _: Host) -> None:
        """Every copy of one stream, or the repository and all nodes at once."""
        view = self._survivors.view()
        if view is None or not view.streams:
            return
        if self._stores is None:
            self._stores = self._rng.random() < STORES_SHARE
        stream = self._rng.choice(view.streams)
        sequenced = any(topic.topic == stream.topic and topic.sequenced for topic in view.topics)
        ways = [self._harm_store] if self._stores else [self._harm_files, self._harm_files, self._wipe]
        # A chain whose units all went back in time has nobody left that knows better: no node and no repository counts its
        # entries. That is not in the promise (decision 26).
        if not sequenced:
            ways.append(self._rewind_store if self._stores else self._rewind)
        self._rng.choice(ways)(stream, sequenced=sequenced)

    def refused(self, host: Host, error: Exception) -> bool:
        """A process reports that it cannot start over its files. Its owner leaves it so, or gives a node an empty directory, or
        a repository a copy of its files."""
        if self._stores is None or not isinstance(error, StartupError):
            return False
        self._reported(f"{host.name} refuses to start: {error}")
        if host.name.startswith("sn") and self._rng.random() < EMPTIED_SHARE:
            self._trace(f"{host.name} is given an empty directory")
            host.wipe(VOLUME)
        elif (
            before := self._unharmed.pop(host.name, None)
        ) is not None and self._rng.random() < RESTORED_SHARE:
            self._trace(f"the files of {host.name} are put back")
            host.drive.restore(before)
        else:
            self._trace(f"{host.name} stays down")
            self.given_up.add(host.name)
        return True

    def started(self, host: Host) -> None:
        """It runs over what was harmed: a copy from before that is an older one from now on."""
        self._unharmed.pop(host.name, None)

    def _holders(self, stream: LogStream) -> list[Host]:
        view = self._survivors.view()
        projection = view.projection(stream.topic) if view is not None else None
        nodes = projection.chain(stream.log_stream).nodes if projection is not None else stream.replicas
        names = {f"sn{node}" for node in (*nodes, *stream.replicas)}
        return [host for host in self._hosts if host.name in names]

    def _harm_files(self, stream: LogStream, *, sequenced: bool) -> None:
        """The same sort of file at every holder, while all run or while all are down."""
        stopped, ways = self._rng.random() < 0.5, tuple(Harm)
        if sequenced:
            ways = DISTINGUISHABLE
        holders = self._holders(stream)
        sort = self._rng.choice(self._sorts(holders, stream) or [".seg"])
        for host in holders:
            if sequenced:
                self._settle_marks(host, stream)
            if stopped:
                host.crash()
            files = [path for path in self._files(host, stream) if (path.suffix or path.name) == sort]
            for path in self._rng.sample(files, min(len(files), self._rng.choice((1, 1, 2)))):
                how = harm_file(host, path, self._rng, self._past, ways)
                self._trace(f"{path} of {host.name}, {'stopped' if stopped else 'running'}: {how}")

    def _settle_marks(self, host: Host, stream: LogStream) -> None:
        """What distinguishes corruption from a torn write is on the device: a power loss that takes it from every unit of a chain,
        just before the same end of each becomes corrupt, leaves no witness. That is not in the promise (decision 26)."""
        for path in [path for path in self._files(host, stream) if path.name == SYNCED_NAME]:
            host.drive.file(path).sync()

    def _sorts(self, holders: Sequence[Host], stream: LogStream) -> list[str]:
        return sorted({path.suffix or path.name for host in holders for path in self._files(host, stream)})

    def _files(self, host: Host, stream: LogStream) -> list[Path]:
        name = f"lsid={int(stream.log_stream)}"
        return [path for path in files_of(host, VOLUME) if name in path.parts]

    def _wipe(self, stream: LogStream, *, sequenced: bool) -> None:
        for host in self._holders(stream):
            self._trace(f"{host.name} goes down, and its directory is deleted")
            host.crash()
            host.wipe(VOLUME)

    def _rewind(self, stream: LogStream, *, sequenced: bool) -> None:
        """All drives with a copy are as they were at one moment; the repository's is not."""
        holders = self._holders(stream)
        back = self._rng.randrange(1, 6)
        for host in holders:
            moments = self._past.of(host)
            if len(moments) >= back:
                at, snapshot = moments[-back]
                host.crash()
                host.drive.restore(snapshot)
                back_s = asyncio.get_running_loop().time() - at
                self._trace(f"the drive of {host.name} is as it was {back_s:.3f} s ago")

    def _rewind_store(self, stream: LogStream, *, sequenced: bool) -> None:
        """The only repository's drive is as it was a while ago, and every node of the stream has its commit rows harmed. Nodes
        stop before: rows that they have not synced yet are known to nobody after a power loss (decision 21)."""
        host = next((one for one in self._hosts if one.name == "mr"), None)
        if host is not None and self._past.of(host) and not self._busy:
            at, snapshot = self._rng.choice(self._past.of(host))
            self._busy = True
            coming = self._rewound_store(host, self._holders(stream), stream, at, snapshot)
            self._tasks.append(asyncio.get_running_loop().create_task(coming, name="beyond"))

    async def _rewound_store(
        self, host: Host, holders: Sequence[Host], stream: LogStream, at: float, snapshot: Folder
    ) -> None:
        try:
            for node in holders:
                await node.stop()
                for path in [path for path in self._files(node, stream) if path.suffix == ".log"]:
                    how = harm_file(node, path, self._rng, self._past, DISTINGUISHABLE)
                    self._trace(f"{path} of {node.name}, stopped: {how}")
            host.crash()
            host.drive.restore(snapshot)
            back_s = asyncio.get_running_loop().time() - at
            self._trace(f"the drive of {host.name} is as it was {back_s:.3f} s ago")
        finally:
            self._busy = False

    def clear(self) -> None:
        """Nothing more is harmed."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _harm_store(self, stream: LogStream, *, sequenced: bool) -> None:
        """Files of the only repository, mostly all, while everyone loses power and with it what was not synced yet."""
        for host in self._hosts:
            if host.name.startswith("sn"):
                host.crash()
        for host in self._hosts:
            if host.name == "mr":
                host.crash()
                before, files = host.drive.snapshot(), files_of(host, VOLUME)
                self._unharmed.setdefault(host.name, before)
                for path in (
                    files if self._rng.random() < 0.7 else self._rng.sample(files, min(1, len(files)))
                ):
                    how = harm_file(host, path, self._rng, self._past, STORE_HARMS)
                    self._trace(f"{path} of {host.name}: {how}")
