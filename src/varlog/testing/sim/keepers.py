"""Keepers: who else has all of a stream. A fault that takes a copy for good must leave a whole one: nobody promises more."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from varlog.model.cluster import ClusterView, LogStream, ReplicaState, ReplicaStatus, StreamState
from varlog.model.ids import LogStreamID, NodeID
from varlog.storage.dump import dump_replica
from varlog.storagenode.node import StorageNode
from varlog.testing.sim.disk import SimDisk
from varlog.testing.sim.host import Host
from varlog.testing.sim.process import Process


class Keepers:
    """`nodes` are the hosts of storage nodes 1, 2, …; `view` is what the leading repository knows, None while nobody leads."""

    def __init__(self, nodes: Sequence[Host], view: Callable[[], ClusterView | None]) -> None:
        self._nodes = {NodeID(number): host for number, host in enumerate(nodes, 1)}
        self._view = view

    def spare(self, host: Host) -> list[LogStreamID]:
        """The streams whose replica on this host could be lost or damaged without harm."""
        view = self._view()
        if view is None:
            return []
        return [stream.log_stream for stream in self._on(host, view) if self._kept(stream, host)]

    def may_go(self, host: Host) -> bool:
        """Whether all that this host has could be lost without harm."""
        view = self._view()
        return view is not None and all(self._kept(stream, host) for stream in self._on(host, view))

    def _on(self, host: Host, view: ClusterView) -> tuple[LogStream, ...]:
        number = next((node for node, found in self._nodes.items() if found is host), NodeID(0))
        return view.streams_on(number)

    def _kept(self, stream: LogStream, without: Host) -> bool:
        """Another replica runs, in the stream's epoch, so it has everything; and the bytes on its disk are good. Only of a stream
        that runs: of one that is being repaired a step may be under way that relies on this copy."""
        return stream.state is StreamState.RUNNING and any(
            self._has_all(self._nodes[node], stream)
            for node in stream.replicas
            if self._nodes[node] is not without
        )

    def _has_all(self, host: Host, stream: LogStream) -> bool:
        status = _replica(host, stream.log_stream)
        if status is None or status.state is not ReplicaState.RUNNING or status.epoch != stream.epoch:
            return False
        disk = SimDisk(host.drive, Process("keeper"), random.Random(0), lambda: None)
        found = dump_replica(disk, Path(status.path))
        # The newest segment may end in anything; nothing that is durable in it may be bad.
        ends = [segment.end_llsn for segment in found.segments]
        return not found.problems and bool(ends) and min(ends[-1], found.written_end) >= status.durable_end


def _replica(host: Host, log_stream: LogStreamID) -> ReplicaStatus | None:
    if not host.up or not isinstance(host.service, StorageNode):
        return None
    return next((one for one in host.service.status().replicas if one.log_stream == log_stream), None)
