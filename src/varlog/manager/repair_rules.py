"""PURE. A log stream and what its replicas say -> the next step that brings it back, or why there is none.

Everything is decided anew from a fresh snapshot, so a manager may die between any two steps, and a step may
be done twice.

The way back: SealStream (the repository closes the epoch) -> SealReplicas (each keeps exactly what was
ordered) -> UnsealReplicas (backups, then the primary) -> UnsealStream. A replica that was opened in an epoch
is never sealed in the same one: what it reported would be cut, and the repository could order by a report
that is no longer true (laws 1, 2). Where an unseal broke off half-way and such a replica stopped, the epoch
is finished first: UnsealStream, then SealStream anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from varlog.model.cluster import LogStream, ReplicaState, ReplicaStatus, StreamState
from varlog.model.epoch import Epoch
from varlog.model.ids import NodeID
from varlog.model.lsn import LLSN

# What each node that answered says of its replica; None: it answered, and has none. A node that is missing did
# not answer.
Statuses = Mapping[NodeID, ReplicaStatus | None]


@dataclass(frozen=True, slots=True)
class SealStream:
    """Ask the repository to close the stream's epoch (R-SEAL-3)."""

    why: str


@dataclass(frozen=True, slots=True)
class SealReplicas:
    """Tell these replicas where the closed epoch ends (R-SEAL-4)."""

    nodes: tuple[NodeID, ...]
    epoch: Epoch
    committed_end: LLSN


@dataclass(frozen=True, slots=True)
class UnsealReplicas:
    """Let these replicas run; all of them hold the same entries (R-UNSEAL-1)."""

    nodes: tuple[NodeID, ...]
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class UnsealStream:
    """Tell the repository to order again in this epoch."""

    epoch: Epoch
    why: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """No step is possible or needed. `settled`: only an event from outside changes that; else look again
    soon."""

    why: str
    settled: bool = True


Step = SealStream | SealReplicas | UnsealReplicas | UnsealStream | Nothing

RUNS = Nothing("it runs")
HELD = Nothing("sealed by hand")


def next_step(stream: LogStream, statuses: Statuses, *, held: bool = False) -> Step:
    """The one next step for `stream`; `held` keeps it sealed (an operator asked for that)."""
    known = {node: status for node in stream.replicas if (status := statuses.get(node)) is not None}
    if any(status.epoch > stream.epoch for status in known.values()):
        return Nothing("a replica knows a newer epoch than this view", settled=False)
    if stream.state is StreamState.RUNNING:
        return _while_running(stream, statuses, known, held)
    return _while_sealed(stream, statuses, known, held)


def _while_running(
    stream: LogStream, statuses: Statuses, known: Mapping[NodeID, ReplicaStatus], held: bool
) -> Step:
    if held:
        return SealStream(HELD.why)
    for node in stream.replicas:
        if node not in known:
            return SealStream(_absence(node, statuses))
        if not _runs(known[node], stream.epoch):
            return SealStream(
                f"the replica on node {node} is {known[node].state} in epoch {known[node].epoch}"
            )
    return RUNS


def _while_sealed(
    stream: LogStream, statuses: Statuses, known: Mapping[NodeID, ReplicaStatus], held: bool
) -> Step:
    epoch = stream.epoch
    if _must_renew(stream, known, held):
        return UnsealStream(
            epoch, "an unseal broke off half-way: this epoch is finished before the next begins"
        )
    open_replicas = {
        node: status
        for node, status in known.items()
        if status.state is not ReplicaState.FROZEN and not _runs(status, epoch) and not _sealed(status, epoch)
    }
    ready = tuple(node for node, status in open_replicas.items() if not _waits_for_entries(stream, status))
    if ready:
        return SealReplicas(ready, epoch, stream.sealed_end)
    for node in stream.replicas:
        if node not in known:
            return Nothing(_absence(node, statuses))
        status = known[node]
        if status.state is ReplicaState.FROZEN:
            return Nothing(f"the replica on node {node} is frozen: {status.trouble or 'a law broke there'}")
        if node in open_replicas:
            return Nothing(
                f"the replica on node {node} has {status.committed_end - 1} of {stream.sealed_end - 1} entries ordered",
                settled=False,
            )
    if held:
        return HELD
    return _unseal(stream, known)


def _unseal(stream: LogStream, known: Mapping[NodeID, ReplicaStatus]) -> Step:
    """Every replica is SEALED, or was and RUNS again. Backups first: the primary's first append must find
    them running."""
    sealed = [node for node in stream.replicas if _sealed(known[node], stream.epoch)]
    backups = tuple(node for node in sealed if node != stream.primary)
    if backups:
        return UnsealReplicas(backups, stream.epoch)
    if sealed:
        return UnsealReplicas((stream.primary,), stream.epoch)
    return UnsealStream(stream.epoch, "every replica runs")


def _runs(status: ReplicaStatus, epoch: Epoch) -> bool:
    return status.state is ReplicaState.RUNNING and status.epoch == epoch


def _sealed(status: ReplicaStatus, epoch: Epoch) -> bool:
    return status.state is ReplicaState.SEALED and status.epoch == epoch


def _must_renew(stream: LogStream, known: Mapping[NodeID, ReplicaStatus], held: bool) -> bool:
    """Some replica was opened in the stream's epoch and cannot go on in it. Only a newer epoch can seal it,
    and the repository gives one only to a stream that it orders."""
    opened = [status for status in known.values() if status.epoch == stream.epoch and status.opened]
    stopped = any(status.state is ReplicaState.SEALING for status in opened)
    return bool(opened) and (stopped or held)


def _waits_for_entries(stream: LogStream, status: ReplicaStatus) -> bool:
    """It knows where to stop and is not there yet: asking again changes nothing until more is ordered there."""
    return (
        status.state is ReplicaState.SEALING
        and status.epoch == stream.epoch
        and status.committed_end < stream.sealed_end
    )


def _absence(node: NodeID, statuses: Statuses) -> str:
    if node in statuses:
        return f"node {node} has no replica of it"
    return f"storage node {node} does not answer"
