"""HarmActions: faults behind a process's back, as the simulator draws them.

Within what replication survives: what takes a copy is aimed only at a host all of whose streams another host, never harmed, has
whole. Nothing may be lost then, and nobody but who owns a directory without an identity is needed to heal it.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path

from varlog.metarepo.repository import MetadataRepository
from varlog.model.errors import StartupError
from varlog.rpc.messages import Message
from varlog.testing.sim.core.drive import Folder, Inode
from varlog.testing.sim.core.host import VOLUME, Host
from varlog.testing.sim.core.loop import Process, SimLoop
from varlog.testing.sim.core.network import SimConnection, SimNetwork
from varlog.testing.sim.faults.harm import (
    NAMELESS,
    SNAPSHOT_S,
    STORE_HARMS,
    Beyond,
    Harm,
    Past,
    files_of,
    harm_file,
)
from varlog.testing.sim.faults.survivor_check import SurvivorCheck

# How much slower something is that fails without saying so.
SLOWER = (10.0, 100.0, 1000.0)
# The share of drives that go back in time while every storage node is down.
ALL_DOWN_SHARE = 0.4
# The share of a repository's harms that delete a file while it runs.
UNLINKED_SHARE = 0.4
# A process that hardly gets a processor runs for this long, then stops for longer.
RUNS_S = 0.002


class HarmActions:
    """One method a kind."""

    def __init__(
        self,
        rng: random.Random,
        network: SimNetwork,
        hosts: Sequence[Host],
        survivors: SurvivorCheck,
        trace: Callable[[str], None],
        said: Callable[[str], None],
    ) -> None:
        self._rng = rng
        self._network = network
        self._hosts = list(hosts)
        self._survivors = survivors
        self._trace = trace
        self._said = said
        self.away: dict[str, float] = {}  # see FaultActions
        # The drive of a repository that went back in time, as it was when it knew most: (newest epoch, positions).
        self.newest_store: tuple[tuple[int, int], Folder] | None = None
        self._rewinding = False
        self.on_store_harm: Callable[[], None] = lambda: None  # files of a repository are about to change
        self.past = Past([host for host in hosts if host.name.startswith("sn") or host.name == "mr"])
        self.beyond = Beyond(rng, hosts, survivors, self.past, trace, said)
        self._outside = copy_context()
        self._spoils = 0
        self._watching: asyncio.Task[None] | None = None
        self._unharmed: dict[
            str, Folder
        ] = {}  # the drives of repositories that were harmed while they were down
        # Files of repositories that were deleted while these run.
        self._unlinked: dict[str, tuple[Path, Inode]] = {}
        self._slow: list[asyncio.Task[None]] = []
        self._stops: list[asyncio.Task[None]] = []
        self._closing: list[asyncio.TimerHandle] = []  # links that close in a moment
        for host in self._hosts:
            host.on_refusal = self._refused
            host.on_start = self.started

    def watch(self) -> None:
        """Write down the drives from now on."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="past")

    async def _watch(self) -> None:
        while True:
            self.past.take(asyncio.get_running_loop().time())
            await asyncio.sleep(SNAPSHOT_S)

    def clear(self) -> None:
        """Nothing more happens; who was slow is quick again."""
        self._spoils = 0
        self.beyond.clear()
        self._network.spoil = None
        for task in self._slow:
            task.cancel()
        self._slow.clear()
        for closing in self._closing:
            closing.cancel()
        self._closing.clear()
        for host in self._hosts:
            host.slowness = 1.0
            _resume(host.process)
            if host.name in self._survivors.harmed:
                _reload(host)  # what was lost shows now, and not when all is over
        if self._watching is not None:
            self._watching.cancel()

    def _refused(self, host: Host, error: Exception) -> bool:
        """A process does not start over files that were harmed: it reports them. An operator puts the repository's files
        back, as they were, and gives a node an empty directory."""
        if isinstance(error, StartupError) and self._link_store(host):
            self._said(f"{host.name} refuses to start: {error}")
            self._trace(f"the deleted file of {host.name} is put back")
            return True
        before = self._unharmed.pop(host.name, None)
        if before is not None and isinstance(error, StartupError):
            self._said(f"{host.name} refuses to start: {error}")
            self._trace(f"the files of {host.name} are put back")
            host.drive.restore(before)
            return True
        if self.beyond.refused(host, error):
            return True
        if host.name not in self._survivors.harmed or not isinstance(error, StartupError):
            return False
        self._said(f"{host.name} refuses to start: {error}")
        self._trace(f"{host.name} is given an empty directory")
        host.wipe(VOLUME)
        return True

    @property
    def harmed(self) -> frozenset[str]:
        """Hosts whose files were harmed."""
        return frozenset(self._survivors.harmed)

    @property
    def damaged_hosts(self) -> frozenset[str]:
        """Those, and hosts where a bit has flipped."""
        return frozenset(self._survivors.harmed | self._survivors.flipped)

    def _take_copy(self, host: Host, *, later: bool = False) -> bool:
        """Whether all that this host has may be harmed; `later`: what it writes next as well. It is not counted on any more."""
        if not (self._survivors.may_go_later(host) if later else self._survivors.may_go(host)):
            return False
        self._survivors.harmed.add(host.name)
        return True

    # --- files and drives ------------------------------------------------------------------------------------------

    def harm(self, host: Host) -> None:
        """Some files of a node, while it runs or while it is down."""
        if not self._take_copy(host, later=True):
            return
        stopped = self._rng.random() < 0.5
        if stopped:
            host.crash()
        for _ in range(self._rng.choice((1, 2, 4, 6))):
            # Of each sort as often: there are many segments, and one state.
            sorts: dict[str, list[Path]] = {}
            for path in files_of(host, VOLUME):
                if not self._survivors.registered(host, path):
                    continue
                sorts.setdefault(path.suffix or path.name, []).append(path)
            if sorts:
                path = self._rng.choice(sorts[self._rng.choice(sorted(sorts))])
                if not stopped and not any(part.startswith("lsid=") for part in path.parts):
                    self._survivors.doomed.add(host.name)
                how = harm_file(host, path, self._rng, self.past)
                self._trace(f"{path} of {host.name}, {'stopped' if stopped else 'running'}: {how}")

    def unlink(self) -> None:
        """Some files of a node that runs lose their names: nobody restarts it any more."""
        for host in self._rng.sample(self._hosts, len(self._hosts)):
            files = [path for path in files_of(host, VOLUME) if self._survivors.registered(host, path)]
            if not host.name.startswith("sn") or not host.up or not files or not self._take_copy(host):
                continue
            for path in self._rng.sample(files, min(len(files), self._rng.choice((1, 2, 4)))):
                how = harm_file(host, path, self._rng, self.past, NAMELESS)
                self._trace(f"{path} of {host.name}, running: {how}")
            return

    def harm_store(self, host: Host) -> None:
        """One file of the repository, while it is down. It starts, and everything is right; or it refuses, and its files are as
        they were: what it wrote before it refused is undone with the harm. Or one file is deleted while it runs."""
        if host.up and host.name not in self._unharmed and self._rng.random() < UNLINKED_SHARE:
            self._unlink_store(host)
            return
        host.crash()
        if host.name in self._unharmed or self._lacks_a_file(host):  # it has not started since
            return
        self._unlinked.pop(host.name, None)
        before, files = host.drive.snapshot(), files_of(host, VOLUME)
        if files:
            self._unharmed[host.name] = before
            path = self._rng.choice(files)
            self.on_store_harm()
            how = harm_file(host, path, self._rng, self.past, STORE_HARMS)
            self._trace(f"{path} of {host.name}: {how}")

    def _unlink_store(self, host: Host) -> None:
        """It makes the file again before it ends; or it refuses to start, and the deleted one, into which it wrote to the end, is
        given its name back. Only one at a time: of two, the older one would be put back over what came of the first."""
        files = files_of(host, VOLUME)
        if files and not self._lacks_a_file(host):
            path = self._rng.choice(files)
            self._unlinked[host.name] = path, host.drive.file(path)
            self.on_store_harm()
            how = harm_file(host, path, self._rng, self.past, (Harm.DELETED,))
            self._trace(f"{path} of {host.name}, running: {how}")

    def _lacks_a_file(self, host: Host) -> bool:
        """A file was deleted while it ran, and nothing has its name since."""
        return host.name in self._unlinked and host.drive.find(self._unlinked[host.name][0]) is None

    def _link_store(self, host: Host) -> bool:
        """Put the deleted file back, if nothing has its name since."""
        if not self._lacks_a_file(host):
            return False
        path, inode = self._unlinked.pop(host.name)
        folder = host.drive.folder(path.parent)
        folder.link(path.name, inode)
        folder.sync()
        return True

    def started(self, host: Host) -> None:
        """It runs over what was harmed: from now on that is its truth."""
        self._unharmed.pop(host.name, None)
        self.beyond.started(host)
        self._survivors.doomed.discard(host.name)

    def rewind(self, host: Host) -> None:
        """The drive of a node is as it was a while ago."""
        moments = self.past.of(host)
        if not moments or not self._take_copy(host):
            return
        at, snapshot = self._rng.choice(moments)
        back_s = asyncio.get_running_loop().time() - at
        host.crash()
        host.drive.restore(snapshot)
        self._trace(f"the drive of {host.name} is as it was {back_s:.3f} s ago")
        if self._rng.random() < ALL_DOWN_SHARE:
            # A restart of all: nobody runs who knows what was there since, and the one with the older drive may be back first.
            for other in self._hosts:
                if other.name.startswith(("sn", "sq")):
                    other.crash()

    def rewind_store(self, host: Host) -> None:
        """The drive of the only repository is as it was a while ago, and it starts again. Some nodes may stop before, and start
        later than it waits for them; a clean stop, because what they know is all there is of the newest order."""
        moments = self.past.of(host)
        if not moments or self._rewinding:
            return
        nodes = [other for other in self._hosts if other.name.startswith("sn")]
        late = [node for node in nodes if self._rng.random() < 0.5] if self._rng.random() < 0.5 else []
        late_s = self._rng.choice((0.5, 5.0)) * self._rng.uniform(0.5, 1.5)
        view = self._survivors.view()
        # What nodes have learned of other log streams is in memory: a restart forgets it.
        soon = [node for node in nodes if node not in late] if late and self._rng.random() < 0.7 else []
        # If no node of the newest chains is reached in time, one that was removed from them earlier is believed (decision 21).
        for chain in (
            [chain for found in view.projections for chain in found.chains] if view is not None else ()
        ):
            if late and all(f"sn{node}" in {other.name for other in late} for node in chain.nodes):
                late = [node for node in late if node.name != f"sn{chain.tail}"]
        self._rewinding = True
        stopped = dict.fromkeys(soon, 0.01) | dict.fromkeys(late, late_s)
        coming = self._rewind_store(host, stopped, self._rng.choice(moments))
        self._slow.append(asyncio.get_running_loop().create_task(coming, name="rewind store"))

    async def _rewind_store(
        self, host: Host, stopped: dict[Host, float], moment: tuple[float, Folder]
    ) -> None:
        at, snapshot = moment
        before = self._epochs()
        try:
            for node, away_s in stopped.items():
                self.away[node.name] = away_s
                # When the faults stop meanwhile, it ends all the same, and starts again with all others.
                stop = asyncio.get_running_loop().create_task(node.stop(), name=f"stop/{node.name}")
                self._stops.append(stop)
                await asyncio.shield(stop)
            self._keep_store(host)
            # One that came while they stopped: no node may have received it, and its loss could not be noticed.
            new_projection = self._epochs() != before
            host.crash()
            if new_projection:
                return
            back_s = asyncio.get_running_loop().time() - at
            away = ", ".join(f"{node.name} for {away_s:.3f} s" for node, away_s in stopped.items())
            self._trace(f"the drive of {host.name} is as it was {back_s:.3f} s ago; away: {away or 'none'}")
            self.on_store_harm()
            host.drive.restore(snapshot)
        finally:
            self._rewinding = False

    def _epochs(self) -> dict[int, int]:
        view = self._survivors.view()
        return {found.topic: found.epoch for found in view.projections} if view is not None else {}

    def _keep_store(self, host: Host) -> None:
        """A backup, for what nodes do not know."""
        service = host.service
        if not isinstance(service, MetadataRepository) or service._leader_term is None:
            return
        state = service._leader_term.state
        epoch = max((int(found.epoch) for found in state.view.projections), default=0)
        known = epoch, sum(state.order.high_watermarks.values())
        if self.newest_store is None or known >= self.newest_store[0]:
            self.newest_store = known, host.drive.snapshot()

    def put_back_store(self, host: Host) -> None:
        """An operator restores the newest copy: for what nodes do not keep."""
        if self.newest_store is not None:
            self._trace(f"the newest copy of {host.name}'s files is put back")
            host.crash()
            host.drive.restore(self.newest_store[1])

    def tear(self, host: Host) -> None:
        """A power loss in the middle of the disk's work, which spoils what lies beside the writes in flight."""
        if host.disk is not None and self._take_copy(host, later=True):
            host.drive.spoils = True
            host.disk.crash_at = host.disk.operations + self._rng.randint(1, 12)
            self._trace(f"{host.name} is about to lose power, and what lies beside its writes")

    def lose_writes(self, host: Host) -> None:
        if self._take_copy(host, later=True):
            host.drive.lose_writes = self._rng.randint(1, 6)
            self._trace(f"the next {host.drive.lose_writes} writes of {host.name}'s disk are lost, unsaid")
            self._reload_later(host)

    def misplace_writes(self, host: Host) -> None:
        if self._take_copy(host, later=True):
            host.drive.misplace_writes = self._rng.randint(1, 3)
            self._trace(f"the next {host.drive.misplace_writes} writes of {host.name}'s disk land elsewhere")
            self._reload_later(host)

    def _reload_later(self, host: Host) -> None:
        """Files are read from the platter again after a while, whether or not the host loses power."""
        later_s = self._rng.choice((0.3, 1.0, 3.0)) * self._rng.random()
        asyncio.get_running_loop().call_later(later_s, _reload, host, context=self._outside)

    def fail_reads(self, host: Host) -> None:
        host.excused = True
        host.drive.fail_reads = self._rng.randint(1, 8)
        self._trace(f"the next {host.drive.fail_reads} reads of {host.name}'s disk fail")

    def fail_opens(self, host: Host) -> None:
        host.excused = True
        host.drive.fail_opens = self._rng.randint(1, 4)
        host.drive.open_errno = self._rng.choice((errno.EMFILE, errno.ENOMEM))
        self._trace(f"{host.name} cannot open the next {host.drive.fail_opens} files")

    # --- slowness --------------------------------------------------------------------------------------------------

    def slow(self, host: Host) -> None:
        """A disk, a process or a link answers, and takes ten to a thousand times as long."""
        how = self._rng.choice(("disk", "process", "link"))
        slower = self._rng.choice(SLOWER)
        self.slow_down(host, how, slower, self._rng.choice((0.5, 2.0, 4.0)) * self._rng.random())

    def slow_down(self, host: Host, how: str, slower: float, for_s: float) -> None:
        self._trace(f"{how} of {host.name} is {slower:g} times slower for {for_s:.3f} s")
        loop = asyncio.get_running_loop()
        if how == "disk":
            host.slowness = slower

            def quick() -> None:
                host.slowness = 1.0

            loop.call_later(for_s, quick, context=self._outside)
        elif how == "link":
            for other in self._hosts:
                if other is not host and self._rng.random() < 0.5:
                    self._network.slow_link(host.name, other.name, loop.time() + for_s, 0.0003 * slower)
        elif host.process is not None and not host.name.startswith("c"):
            self._slow.append(loop.create_task(self._starve(host.process, slower, for_s), name="starve"))

    async def _starve(self, process: Process, slower: float, for_s: float) -> None:
        """The process runs in short moments, with long ones between."""
        end = asyncio.get_running_loop().time() + for_s
        try:
            while process.alive and asyncio.get_running_loop().time() < end:
                if process.held is None:
                    process.held = []
                await asyncio.sleep(min(RUNS_S * slower, 0.5) * self._rng.uniform(0.5, 1.0))
                _resume(process)
                await asyncio.sleep(RUNS_S)
        finally:
            _resume(process)

    # --- links and messages -----------------------------------------------------------------------------------------

    def swizzle(self, host: Host) -> None:
        """The links of some hosts close one after another and open in another order."""
        others = [other for other in self._hosts if other is not host]
        hit = [host, *self._rng.sample(others, self._rng.randint(1, min(3, len(others))))]
        links = sorted(
            {(min(a.name, b.name), max(a.name, b.name)) for a in hit for b in self._hosts if a is not b}
        )
        self._rng.shuffle(links)
        opening = self._rng.sample(links, len(links))
        step_s = self._rng.choice((0.02, 0.1, 0.3))
        loop = asyncio.get_running_loop()
        closed_s = step_s * len(links)
        self._trace(
            f"the links of {', '.join(one.name for one in hit)} close one after another within {closed_s:.3f} s"
        )
        for number, (one, two) in enumerate(links):
            opens = loop.time() + closed_s + step_s * opening.index((one, two))
            self._closing.append(
                loop.call_later(
                    step_s * number, self._network.cut_off, one, two, opens, context=self._outside
                )
            )

    def corrupt(self, _: Host) -> None:
        self._spoils += self._rng.randint(1, 4)
        self._network.spoil = self._spoil

    def _spoil(self, connection: SimConnection, message: Message) -> bool:
        if self._spoils <= 0 or self._rng.random() > 0.05:
            return False
        self._spoils -= 1
        self._trace(f"{type(message).__name__} of {connection.process.name} to {connection.peer} is damaged")
        return True


def _reload(host: Host) -> None:
    for path in files_of(host, VOLUME):
        if isinstance(node := host.drive.find(path), Inode):
            node.reload()


def _resume(process: Process | None) -> None:
    loop = asyncio.get_running_loop()
    if process is not None and process.held is not None and isinstance(loop, SimLoop):
        loop.resume(process)
