"""A model of one log stream: the repository, replicas on nodes, connections. It keeps the contracts that the repair rules rely on.

Laws 1, 2, 6, 7. Nodes crash, disks are emptied, connections break with batches on the way, a step reaches only some of its nodes,
or arrives a second time much later.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from varlog.manager.committed.inputs import RepairInputs
from varlog.manager.committed.rules import next_step
from varlog.manager.repair_steps import (
    CreateReplica,
    Move,
    RebuildReplica,
    RepairStep,
    ReplaceReplica,
    SealReplicas,
    SealStream,
    SyncReplica,
    UnsealReplicas,
    UnsealStream,
)
from varlog.manager.zombie_rules import Zombie, unregistered
from varlog.model.cluster import ClusterView, LogStream, StreamState
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import NodeStatus, ReplicaState, ReplicaStatus, SyncState, SyncStatus

NODES = (NodeID(1), NodeID(2), NodeID(3))
PRIMARY = NODES[0]
SPARE = NodeID(4)
EVERYWHERE = (*NODES, SPARE)
STREAM = LogStreamID(7)


@dataclass
class Replica:
    """One replica: `entries` are durable, as (epoch, what); `taken` is what a primary took and has not written yet."""

    state: ReplicaState = ReplicaState.SEALING
    epoch: int = 0
    sealed_end: int = 1
    opened: bool = False
    primary: bool = False
    entries: list[tuple[int, int]] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)
    committed_end: int = 1
    sync_error: bool = False

    @property
    def durable_end(self) -> int:
        return len(self.entries) + 1

    def seal(self, epoch: int, end: int) -> None:
        if self.state is ReplicaState.FROZEN:
            return
        if epoch < self.epoch or (epoch == self.epoch and self.opened):
            return
        assert self.committed_end <= end, "a seal never undoes a commit (law 6)"
        if self.state is ReplicaState.SEALED and epoch == self.epoch:
            return
        self.state, self.epoch, self.sealed_end = ReplicaState.SEALING, epoch, end
        self.opened = self.primary = False
        self.taken.clear()
        if self.committed_end == end:
            del self.entries[end - 1 :]
            self.state = ReplicaState.SEALED

    def unseal(self, epoch: int, *, primary: bool) -> None:
        if epoch == self.epoch and self.state is ReplicaState.SEALED:
            self.state, self.opened, self.primary = ReplicaState.RUNNING, True, primary

    def stop(self) -> None:
        """It cannot continue on its own, or was restored from disk."""
        if self.state is not ReplicaState.FROZEN:
            self.state, self.primary = ReplicaState.SEALING, False
        self.taken.clear()

    def copy_from(self, source: Replica, count: int) -> None:
        """What is above its committed end gives way to what was ordered."""
        end = min(self.committed_end + count, self.sealed_end)
        self.entries[self.committed_end - 1 :] = source.entries[self.committed_end - 1 : end - 1]
        self.committed_end = end

    def status(self) -> ReplicaStatus:
        sync = SyncStatus(SyncState.ERROR, NodeID(1), LLSN(1), LLSN(1), 0, "cut off", False)
        return ReplicaStatus(
            log_stream=STREAM,
            topic=TopicID(1),
            state=self.state,
            epoch=Epoch(self.epoch),
            committed_end=LLSN(self.committed_end),
            durable_end=LLSN(self.durable_end),
            low_watermark=GLSN(0),
            high_watermark=GLSN(0),
            path="",
            opened=self.opened,
            sync=sync if self.sync_error else None,
        )


@dataclass
class World:
    """A stream at the repository, its replicas, and what is on the way from the primary to each backup."""

    epoch: int = 1
    state: StreamState = StreamState.SEALED
    sealed_end: int = 1
    members: tuple[NodeID, ...] = NODES
    ordered: list[tuple[int, int]] = field(default_factory=list)
    reports: dict[NodeID, tuple[int, int]] = field(default_factory=dict)
    replicas: dict[NodeID, Replica] = field(default_factory=lambda: {node: Replica() for node in NODES})
    down: dict[NodeID, None] = field(default_factory=dict)
    given_up: dict[NodeID, None] = field(default_factory=dict)
    wires: dict[NodeID, list[tuple[int, int, int]]] = field(default_factory=dict)
    sealed_by_admin: bool = False
    move: Move | None = None
    primary: NodeID | None = None  # instead of one with a slow disk

    # --- what the manager sees ----------------------------------------------------------------------------------

    def stream(self) -> LogStream:
        return LogStream(
            STREAM,
            TopicID(1),
            self.members,
            self.state,
            Epoch(self.epoch),
            LLSN(self.sealed_end),
            self.sealed_by_admin,
        )

    def statuses(self) -> dict[NodeID, ReplicaStatus | None]:
        return {
            node: replica.status() if (replica := self.replicas.get(node)) is not None else None
            for node in self.members
            if node not in self.down
        }

    def decide(self) -> RepairStep:
        unusable_s = {node: 99.0 if node in self.given_up else 1.0 for node in self.down}
        spares = tuple(node for node in EVERYWHERE if node not in self.down)
        return next_step(
            self.stream(),
            self.statuses(),
            RepairInputs(spares, unusable_s, 30.0, self.move, primary=self.primary),
        )

    def zombies(self) -> list[Zombie]:
        view = ClusterView(ClusterID(1), 1, streams=(self.stream(),))
        living = {
            node: NodeStatus(
                ClusterID(1),
                node,
                "",
                (),
                (self.replicas[node].status(),) if node in self.replicas else (),
            )
            for node in EVERYWHERE
            if node not in self.down
        }
        return list(unregistered(view, living, lambda log_stream: True).zombies)

    # --- what happens --------------------------------------------------------------------------------------------

    def open_primary(self) -> NodeID | None:
        return next(
            (
                node
                for node, replica in self.replicas.items()
                if replica.primary and replica.state is ReplicaState.RUNNING and node not in self.down
            ),
            None,
        )

    def append(self, what: int) -> None:
        if (node := self.open_primary()) is not None:
            primary = self.replicas[node]
            llsn = primary.durable_end + len(primary.taken)
            primary.taken.append((primary.epoch, what))
            for wire in self.wires.values():
                wire.append((primary.epoch, llsn, what))

    def write(self) -> None:
        if (node := self.open_primary()) is not None and self.replicas[node].taken:
            self.replicas[node].entries.append(self.replicas[node].taken.pop(0))

    def deliver(self, node: NodeID) -> None:
        epoch, llsn, what = self.wires[node].pop(0)
        backup = None if node in self.down else self.replicas.get(node)
        fits = backup is not None and backup.state is ReplicaState.RUNNING and backup.epoch == epoch
        if backup is not None and fits and backup.durable_end == llsn:
            backup.entries.append((epoch, what))
        else:
            self.break_wires()

    def break_wires(self) -> None:
        """A primary that lost a backup seals itself."""
        self.wires.clear()
        if (node := self.open_primary()) is not None:
            self.replicas[node].stop()

    def crash(self, node: NodeID) -> None:
        self.break_wires()
        self.down[node] = None
        if node in self.replicas:
            self.replicas[node].taken.clear()

    def restart(self, node: NodeID, rows_lost: int) -> None:
        self.down.pop(node, None)
        self.given_up.pop(node, None)
        if (replica := self.replicas.get(node)) is not None:
            replica.stop()
            if replica.state is not ReplicaState.FROZEN:
                replica.committed_end = max(1, replica.committed_end - rows_lost)

    def lose(self, node: NodeID) -> None:
        """The node's directory is deleted."""
        self.crash(node)
        self.replicas.pop(node, None)

    def freeze(self, node: NodeID) -> None:
        self.break_wires()
        self.replicas[node].state = ReplicaState.FROZEN

    def can_spare(self, node: NodeID) -> bool:
        """Every other replica holds all that was ordered: this one may be lost."""
        others = [self.replicas.get(other) for other in self.members if other != node]
        ordered = self.ordered
        return bool(others) and all(
            other is not None
            and other.state is not ReplicaState.FROZEN
            and other.entries[: len(ordered)] == ordered
            for other in others
        )

    def report(self, node: NodeID) -> None:
        replica = self.replicas.get(node)
        if replica is not None and node in self.members and node not in self.down:
            end = replica.durable_end if replica.opened else min(replica.durable_end, replica.sealed_end)
            self.reports[node] = (replica.epoch, end)

    def order(self) -> None:
        if self.state is not StreamState.RUNNING:
            return
        reports = [self.reports.get(node, (0, 0)) for node in self.members]
        if any(epoch != self.epoch for epoch, _ in reports):
            return
        for llsn in range(len(self.ordered) + 1, min(end for _, end in reports)):
            # One whose disk was emptied since it reported does not have it any more; the others all do (law 2).
            copies = [
                replica.entries[llsn - 1]
                for node in self.members
                if (replica := self.replicas.get(node)) is not None
                and replica.durable_end > llsn
                and replica.entries[llsn - 1][0] == self.epoch
            ]
            assert copies and all(entry == copies[0] for entry in copies), (
                "every replica before ordered (law 2)"
            )
            self.ordered.append(copies[0])

    def learn(self, node: NodeID) -> None:
        """The repository's rows arrive; one of another epoch than the entry there is not taken."""
        replica = self.replicas.get(node)
        if replica is None or node in self.down or node not in self.members:
            return
        if replica.state is ReplicaState.FROZEN:
            return
        while replica.committed_end <= len(self.ordered) and replica.committed_end < replica.durable_end:
            epoch, _ = self.ordered[replica.committed_end - 1]
            if epoch != replica.entries[replica.committed_end - 1][0] or epoch > replica.epoch:
                return
            replica.committed_end += 1

    # --- what the manager does -----------------------------------------------------------------------------------

    def carry_out(
        self,
        step: RepairStep,
        reached: Container[NodeID] = EVERYWHERE,
        members: tuple[NodeID, ...] = (),
        copied: int = 1_000,
    ) -> None:
        """`members`: whom the manager took for the stream's replicas when it decided."""

        def replica_on(node: NodeID) -> Replica | None:
            return self.replicas.get(node) if node in reached and node not in self.down else None

        match step:
            case SealStream():
                self._seal_stream()
            case UnsealStream(epoch):
                if epoch == self.epoch:
                    self.state = StreamState.RUNNING
            case SealReplicas(nodes, epoch, end):
                for replica in [found for node in nodes if (found := replica_on(node)) is not None]:
                    replica.seal(epoch, end)
            case UnsealReplicas(nodes, epoch):
                for node in [node for node in nodes if replica_on(node) is not None]:
                    self._unseal(node, epoch, members or self.members)
            case CreateReplica(node):
                if node in reached and node not in self.down:
                    self.replicas.setdefault(node, Replica())
            case RebuildReplica(node, epoch):
                frozen = replica_on(node)
                if frozen is not None and frozen.state is ReplicaState.FROZEN and frozen.epoch <= epoch:
                    self.replicas[node] = Replica()
            case SyncReplica(node, source, epoch):
                self._sync(replica_on(node), replica_on(source), epoch, copied)
            case ReplaceReplica():
                self._replace(step, reached)

    def remove(self, zombie: Zombie) -> None:
        """RemoveLogStream: in the epoch in which it was seen, and in no other."""
        replica = self.replicas.get(zombie.node)
        if replica is not None and zombie.node not in self.down and replica.epoch == zombie.epoch:
            del self.replicas[zombie.node]

    def _seal_stream(self) -> None:
        if self.state is StreamState.RUNNING:
            self.order()
            self.state, self.epoch, self.sealed_end = (
                StreamState.SEALED,
                self.epoch + 1,
                len(self.ordered) + 1,
            )

    def _unseal(self, node: NodeID, epoch: int, members: tuple[NodeID, ...]) -> None:
        primary = members[0] == node
        if primary:
            # A primary opens its connections first, and a backup must run and stand exactly where the primary stands.
            for other in members[1:]:
                backup = None if other in self.down else self.replicas.get(other)
                if backup is None or backup.state is not ReplicaState.RUNNING or backup.epoch != epoch:
                    return
                if backup.durable_end != self.replicas[node].durable_end:
                    return
        was = self.replicas[node].state
        self.replicas[node].unseal(epoch, primary=primary)
        if primary and was is not self.replicas[node].state:
            self.wires = {other: [] for other in members[1:]}

    def _sync(self, replica: Replica | None, source: Replica | None, epoch: int, copied: int) -> None:
        if replica is None or replica.state is not ReplicaState.SEALING or replica.epoch != epoch:
            return
        if source is None or source.state is not ReplicaState.SEALED or source.epoch != epoch:
            replica.sync_error = True
        elif not replica.opened and replica.committed_end < replica.sealed_end:
            replica.copy_from(source, copied)
            replica.sync_error = replica.committed_end < replica.sealed_end

    def _replace(self, step: ReplaceReplica, reached: Container[NodeID]) -> None:
        """First the replica on its node, unless it has one, then the repository; cut off between where the node is not reached."""
        if step.new not in reached or step.new in self.down:
            return
        if step.new not in self.members:
            left = self.replicas.get(step.new)
            if left is None or left.epoch:
                self.replicas[step.new] = Replica()
        if step.epoch == self.epoch and self.state is StreamState.SEALED:
            self.members, self.epoch = step.replicas, self.epoch + 1
            self.reports = {node: found for node, found in self.reports.items() if node in self.members}
