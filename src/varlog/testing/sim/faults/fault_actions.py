"""FaultActions: what each kind of fault does; DuplicateDelivery."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import copy_context

from varlog.model.cluster import Ordering
from varlog.rpc import messages as m
from varlog.rpc.framing import REQUEST
from varlog.rpc.messages import Message
from varlog.rpc.transport import Call
from varlog.testing.sim.core.drive import Inode
from varlog.testing.sim.core.host import VOLUME, Host
from varlog.testing.sim.core.loop import Process, SimLoop
from varlog.testing.sim.core.network import SimConnection, SimNetwork, link_connections
from varlog.testing.sim.core.plan import FaultKind, SimPlan
from varlog.testing.sim.faults.harm_actions import HarmActions
from varlog.testing.sim.faults.survivor_check import SurvivorCheck
from varlog.testing.sim.sequenced.fault_actions import LEASED, SEQUENCERS, SequencedFaultActions

# Who is hit how often: storage nodes (sn), repositories (mr), managers (mc), sequencers (sq), clients (c).
EVERYONE = {"sn": 5, "mr": 5, "mc": 2, "c": 1, "sq": 3}
SERVERS = {"sn": 5, "mr": 5, "mc": 2, "sq": 3}
# A manager is to die between any two of its steps: each is a message. So is a client, which reconfigures sequenced topics.
SENDERS = {"sn": 3, "mr": 3, "mc": 12, "c": 1, "sq": 1}
SEQUENCED_SENDERS = {**SENDERS, "c": 6}
NODES = {"sn": 1}
REPOSITORIES = {"mr": 1}
KEEP_FILES = {"sn": 4, "mr": 1}
CLOCKS = {"sn": 2, "mr": 1, "sq": 2}
# Requests of clients whose connection breaks behind them.
STRAGGLERS = (
    m.Append, m.AppendIdempotent, m.AppendAt, m.FindAppend, m.Fetch, m.ReadAt,
    m.WriteUnit, m.FillUnit, m.ReadUnit, m.NextTokens,
)  # fmt: skip


class FaultActions:
    """One method a kind. Everything it starts is over after `clear`."""

    def __init__(
        self,
        plan: SimPlan,
        rng: random.Random,
        network: SimNetwork,
        hosts: Sequence[Host],
        survivors: SurvivorCheck,
        trace: Callable[[str], None],
        said: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.away: dict[str, float] = {}  # hosts that stay down for longer than others, once they are down
        self._plan = plan
        self._rng = rng
        self._network = network
        self._hosts = list(hosts)
        self._survivors = survivors
        self._trace = trace
        # A fault may strike inside the process that it hits; what ends it must not belong to that one.
        self._outside = copy_context()
        self._duplicates = DuplicateDelivery(network, rng)
        self._senders: dict[Process, int] = {}  # messages until it crashes
        self._straggles = 0
        self._at_commit: list[FaultKind] = []
        self._stores_cut: dict[str, float] = {}
        senders = SENDERS if plan.ordering is Ordering.COMMITTED else SEQUENCED_SENDERS
        sequenced = SequencedFaultActions(rng, network, hosts, self.pause, self._stop, trace, survivors.view)
        self.harms = harms = HarmActions(rng, network, hosts, survivors, trace, said)
        harms.away = self.away
        self._table: dict[FaultKind, tuple[dict[str, int], Callable[[Host], None]]] = {
            FaultKind.CRASH: (EVERYONE, lambda host: host.crash()),
            FaultKind.CRASH_WRITING: (NODES, self._crash_writing),
            FaultKind.CRASH_SENDING: (senders, self._crash_sending),
            FaultKind.CRASH_ORDERING: (
                REPOSITORIES,
                lambda _: self._at_commit.append(FaultKind.CRASH_ORDERING),
            ),
            FaultKind.PAUSE_ORDERING: (
                REPOSITORIES,
                lambda _: self._at_commit.append(FaultKind.PAUSE_ORDERING),
            ),
            FaultKind.STOP: (EVERYONE, self._stop),
            FaultKind.BLACKOUT: (EVERYONE, lambda _: self.blackout()),
            # A paused client cannot keep its deadlines.
            FaultKind.PAUSE: (SERVERS, self.pause),
            FaultKind.AWAY: (NODES, self._away),
            FaultKind.CUT: (EVERYONE, lambda _: self._log_fault("connection cut: ", self._network.cut_one())),
            FaultKind.STRAGGLE: (EVERYONE, self._straggle),
            FaultKind.LOSS: (EVERYONE, self._lose),
            FaultKind.PARTITION: (EVERYONE, self._cut_off),
            FaultKind.ONE_WAY: (EVERYONE, lambda host: self._cut_off(host, one_way=True)),
            FaultKind.STORE_CUT: (REPOSITORIES, self._cut_store),
            FaultKind.ECHO: (EVERYONE, self._echo),
            FaultKind.CLOCK: (SERVERS, self._jump_clock),
            FaultKind.FSYNC: (NODES, self._fail_syncs),
            FaultKind.WRITE: (NODES, self._fail_writes),
            FaultKind.FULL: (NODES, self._fill),
            FaultKind.FLIP: (NODES, self._flip),
            FaultKind.WIPE: (NODES, self._wipe),
            FaultKind.HARM: (NODES, harms.harm),
            FaultKind.REWIND: (NODES, harms.rewind),
            FaultKind.TEAR: (NODES, harms.tear),
            FaultKind.LOST_WRITE: (NODES, harms.lose_writes),
            FaultKind.MISPLACED: (NODES, harms.misplace_writes),
            FaultKind.STORE_HARM: (REPOSITORIES, harms.harm_store),
            FaultKind.STORE_REWIND: (REPOSITORIES, harms.rewind_store),
            FaultKind.BEYOND: (NODES, harms.beyond.strike),
            FaultKind.READ: (NODES, harms.fail_reads),
            FaultKind.OPEN: (KEEP_FILES, harms.fail_opens),
            FaultKind.GRAY: (SERVERS, harms.slow),
            FaultKind.SWIZZLE: (SERVERS, harms.swizzle),
            FaultKind.CORRUPT: (EVERYONE, harms.corrupt),
            FaultKind.STEADY: (CLOCKS, self._upset_steady_clock),
            FaultKind.STORE_FULL: (REPOSITORIES, self._fill),
            FaultKind.STORE_LOST: (REPOSITORIES, self._lose_store),
            FaultKind.SEQUENCER: (SEQUENCERS, sequenced.lose_sequencer),
            FaultKind.ISLAND: (LEASED, sequenced.cut_island),
            FaultKind.LEASE_CUT: (LEASED, sequenced.cut_lease),
            FaultKind.CLIENT_CUT: (LEASED, sequenced.cut_client),
        }

    def serve(self, kind: FaultKind, beside: Host | None = None) -> Host | None:
        """One fault of this kind; at the same host as the one before it, if possible. Returns the host that it hit."""
        whom, strike = self._table[kind]
        host = beside if beside is not None and beside.up and _class(beside) in whom else self._pick(whom)
        if host is not None:
            strike(host)
        return host

    def clear(self) -> None:
        """No more of it: pending faults are dropped, hosts that were cut off or paused continue."""
        self._senders.clear()
        self._at_commit.clear()
        self._stores_cut.clear()
        self.away.clear()
        self._straggles = 0
        self._duplicates.stop()
        self.harms.clear()
        self._network.reunite()
        for host in self._hosts:
            self._resume(host.process)
            if host.disk is not None:
                host.disk.crash_at = None
            host.drive.heal()
            host.excused = False
            host.clock.unfreeze()

    def _pick(self, whom: dict[str, int]) -> Host | None:
        up = [host for host in self._hosts if host.up and _class(host) in whom]
        return self._rng.choices(up, [whom[_class(host)] for host in up])[0] if up else None

    def _log_fault(self, what: str, whom: str) -> None:
        if whom:
            self._trace(f"{what}{whom}")

    def _moment_s(self, *longest_s: float) -> float:
        return self._rng.choice(longest_s) * self._rng.random()

    # --- processes ------------------------------------------------------------------------------------------------

    def blackout(self) -> None:
        """Everything loses power at once, and comes back host after host."""
        self._trace("blackout")
        for host in self._hosts:
            host.crash()

    def _crash_writing(self, host: Host) -> None:
        if host.disk is not None:
            host.disk.crash_at = host.disk.operations + self._rng.randint(1, 12)

    def _crash_sending(self, host: Host) -> None:
        if host.process is not None:
            self._senders[host.process] = self._rng.randint(1, 10)

    def _stop(self, host: Host) -> None:
        _ = asyncio.get_running_loop().create_task(host.stop(), name=f"stop/{host.name}")

    def pause(self, host: Host) -> None:
        """A server is paused, then continues as if nothing had happened."""
        if host.process is not None and host.process.held is None:
            self.pause_for(host.process, self._moment_s(0.3, 1.5, 4.0, 8.0))

    def pause_for(self, process: Process, pause_s: float) -> None:
        self._trace(f"{process.name} is paused for {pause_s:.3f} s")
        process.held = []
        asyncio.get_running_loop().call_later(pause_s, self._resume, process, context=self._outside)

    def _resume(self, process: Process | None) -> None:
        loop = asyncio.get_running_loop()
        if process is not None and process.held is not None and isinstance(loop, SimLoop):
            loop.resume(process)

    def _away(self, host: Host) -> None:
        away_s = self.away[host.name] = min(self._plan.replace_after_s, 2.0) + self._rng.uniform(0.5, 4.0)
        self._trace(f"{host.name} goes away for {away_s:.3f} s")
        host.crash()

    def _jump_clock(self, host: Host) -> None:
        jump_s = self._rng.choice((-1, 1)) * self._moment_s(0.1, 10.0, 100_000.0)
        self._trace(f"the clock of {host.name} jumps by {jump_s:.3f} s")
        host.clock.skew_us += int(jump_s * 1e6)

    def _upset_steady_clock(self, host: Host) -> None:
        """Whether the host has leases or grants them: the other clock of its machine continues as it should."""
        if self._rng.random() < 0.5:
            ahead_s = self._moment_s(0.5, 3.0, 100.0)
            self._trace(f"the steady clock of {host.name} jumps ahead by {ahead_s:.3f} s")
            host.clock.steady_from_us += int(ahead_s * 1e6)
            return
        for_s = self._moment_s(0.5, 1.5, 4.0)
        self._trace(f"the steady clock of {host.name} stops for {for_s:.3f} s")
        host.clock.freeze()
        asyncio.get_running_loop().call_later(for_s, host.clock.unfreeze, context=self._outside)

    # --- the network ----------------------------------------------------------------------------------------------

    def _cut_off(self, host: Host, *, one_way: bool = False) -> None:
        for_s, whom = self._moment_s(0.3, 1.5, 4.0), self._other(host)
        how = "does not reach" if one_way else "is cut off from"
        self._trace(f"{host.name} {how} {whom or 'all'} for {for_s:.3f} s")
        until = asyncio.get_running_loop().time() + for_s
        self._network.cut_off(host.name, whom, until, one_way=one_way)

    def _lose(self, host: Host) -> None:
        if self._rng.random() < 0.5:
            self._log_fault("connection swallows everything: ", self._network.lose_one())
            return
        for_s, whom, one_way = self._moment_s(1.5, 4.0, 8.0), self._other(host), self._rng.random() < 0.5
        until = asyncio.get_running_loop().time() + for_s
        lost = self._network.lose(host.name, whom, until, one_way=one_way)
        self._trace(
            f"everything {'from' if one_way else 'between'} {host.name} {'to' if one_way else 'and'} {whom or 'all'} "
            f"is lost for {for_s:.3f} s ({lost} connections)"
        )

    def _other(self, host: Host) -> str:
        other = self._pick(EVERYONE)
        return other.name if other is not None and other is not host and self._rng.random() < 0.7 else ""

    def _straggle(self, _: Host) -> None:
        self._straggles += 1

    def _echo(self, _: Host) -> None:
        self._duplicates.wanted += self._rng.randint(2, 8)

    def on_message(self, connection: SimConnection, message: Message) -> None:
        """Strike where a message was waited for."""
        if self._senders and (left := self._senders.get(connection.process)) is not None:
            self._senders[connection.process] = left - 1
            if left == 1:
                del self._senders[connection.process]
                for host in self._hosts:
                    if host.process is connection.process:
                        host.crash()
        if self._straggles and isinstance(message, STRAGGLERS) and not connection.accepting:
            self._straggles -= 1
            late_s = self._moment_s(0.05, 0.5, 3.0)
            self._trace(f"{type(message).__name__} of {connection.process.name} straggles for {late_s:.3f} s")
            context = connection.process.context
            asyncio.get_running_loop().call_soon(connection.straggle, late_s, context=context)
        if (
            self._duplicates.wanted > 0
            and (after_s := self._duplicates.observe(connection, message)) is not None
        ):
            self._trace(
                f"{type(message).__name__} of {connection.process.name} comes again in {after_s:.3f} s"
            )

    # --- disks ----------------------------------------------------------------------------------------------------

    def _fail_syncs(self, host: Host) -> None:
        host.excused = True
        host.drive.fail_syncs = self._rng.randint(1, 3)
        self._trace(f"the next {host.drive.fail_syncs} syncs of {host.name}'s disk fail")

    def _fail_writes(self, host: Host) -> None:
        host.excused = True
        host.drive.fail_writes = self._rng.randint(1, 3)
        self._trace(f"the next {host.drive.fail_writes} writes of {host.name}'s disk fail")

    def _fill(self, host: Host) -> None:
        drive, for_s = host.drive, self._moment_s(0.5, 1.5, 4.0)
        host.excused = True
        drive.capacity_bytes = drive.root.size() + self._rng.choice((0, 300, 3000))
        self._trace(f"the disk of {host.name} is full for {for_s:.3f} s")

        def free() -> None:
            drive.capacity_bytes = None

        asyncio.get_running_loop().call_later(for_s, free)

    def _flip(self, host: Host) -> None:
        spare = self._survivors.spare(host)
        folders = [path for path in host.replica_paths() if int(path.name.partition("=")[2]) in spare]
        files = [
            (path / name, node)
            for path in folders
            for name, node in host.drive.folder(path).entries.items()
            if isinstance(node, Inode) and node.content
        ]
        segments = [found for found in files if found[0].suffix == ".seg"]
        if files:
            path, inode = self._rng.choice(segments if segments and self._rng.random() < 0.7 else files)
            at = self._rng.randrange(len(inode.content.rstrip(b"\0")) or 1)
            inode.flip(at, self._rng.randrange(8))
            self._survivors.flipped.add(host.name)
            self._trace(f"a bit flips in {path} of {host.name}, at byte {at}")

    def _wipe(self, host: Host) -> None:
        if self._survivors.may_go(host):
            self._trace(f"{host.name} goes down, and its directory is deleted")
            host.crash()
            host.wipe(VOLUME)

    # --- the store of the repositories ------------------------------------------------------------------------------

    def _cut_store(self, host: Host) -> None:
        for_s = self._moment_s(0.3, 1.5, 4.0)
        self._trace(f"{host.name} does not reach its store for {for_s:.3f} s")
        self._stores_cut[host.name] = asyncio.get_running_loop().time() + for_s

    def _lose_store(self, _: Host) -> None:
        """No repository reaches the store: its majority is lost, and comes back with all it had."""
        for_s = self._moment_s(0.5, 2.0, 5.0)
        self._trace(f"the store is lost for {for_s:.3f} s")
        for host in self._hosts:
            if host.name.startswith("mr"):
                self._stores_cut[host.name] = asyncio.get_running_loop().time() + for_s

    def store_held_until(self, host: str) -> float:
        """When what this host says to its store arrives there at the earliest."""
        return self._stores_cut.get(host, 0.0)

    def on_commit(self, process: Process) -> None:
        """Strike where a commit was waited for: the process that makes it is right before or right behind it."""
        if not self._at_commit or self._rng.random() < 0.5:
            return
        kind = self._at_commit.pop()
        for host in self._hosts:
            if host.process is process:
                self._trace(f"{process.name} is in the middle of a commit: {kind}")
                if kind is FaultKind.PAUSE_ORDERING:
                    self.pause(host)
                else:
                    host.crash()


def _class(host: Host) -> str:
    return host.name[:1] if host.name[0] == "c" else host.name[:2]


# DuplicateDelivery: control requests arrive a second time, later and over another connection, as from a second manager or a retry.

# What steers the cluster: each of these must be harmless when it comes twice, late, or behind what was asked after it.
# Not SetSealedByAdmin: it is an operator's word, and the last word that arrives counts.
CONTROL: frozenset[type[Message]] = frozenset(
    {
        m.AddLogStream,
        m.RepairReplica,
        m.OpenSession,
        m.RebuildReplica,
        m.RegisterNode,
        m.RemoveLogStream,
        m.SealReplica,
        m.SealStream,
        m.SetReplicas,
        m.SyncReplica,
        m.UnsealReplica,
        m.UnsealStream,
        # Of sequenced topics:
        m.FillUnit,
        m.ProposeProjection,
        m.RenewSequencer,
        m.SealUnit,
        m.SyncUnit,
    }
)


class DuplicateDelivery:
    """Copies of what is sent, delivered later, until `stop`. `wanted` counts the copies still to be taken."""

    def __init__(self, network: SimNetwork, rng: random.Random) -> None:
        self.wanted = 0
        self._network = network
        self._rng = rng
        self._timers: list[asyncio.TimerHandle] = []
        # A message is observed inside the process that sends it, and its copy outlives that one.
        self._outside = copy_context()

    def observe(self, connection: SimConnection, message: Message) -> float | None:
        """If a copy of it is to come, after how many seconds."""
        if type(message) not in CONTROL or connection.accepting or connection.process.incarnation == 0:
            return None
        self.wanted -= 1
        after_s = self._rng.choice((0.01, 0.5, 5.0)) * self._rng.random()
        host, address = connection.process.host, connection.peer
        loop = asyncio.get_running_loop()
        self._timers.append(
            loop.call_later(after_s, self._echo, host, address, message, context=self._outside)
        )
        return after_s

    def stop(self) -> None:
        self.wanted = 0
        timers, self._timers = self._timers, []
        for timer in timers:
            timer.cancel()

    def _echo(self, host: str, address: str, message: Message) -> None:
        """The copy comes from a process that wants no answer, and is gone a little later."""
        server = self._network.listener(address)
        if server is None:
            return
        ghost = Process(host, 0)
        ours, theirs = link_connections(self._network, ghost, server.process, address)
        ours.serve_with(_ignore)
        server.accept(theirs)
        ours._post(REQUEST, message, b"", 1)
        delay_s = self._rng.uniform(0.2, 2.0)
        asyncio.get_running_loop().call_later(delay_s, ours.close, context=ghost.context)


def _ignore(call: Call | None, message: Message, payload: bytearray) -> None:
    """Whatever the other side has to say."""
