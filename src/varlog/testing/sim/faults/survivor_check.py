"""SurvivorCheck: which other hosts have all of a stream.

A fault that destroys a copy permanently must leave a complete one: replication promises no more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from varlog.model.batch import check_body, parse_header
from varlog.model.cluster import ClusterView, LogStream, StreamState
from varlog.model.errors import CorruptBatch, CorruptReplica
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.projection import Projection
from varlog.model.status import ReplicaState, ReplicaStatus
from varlog.storage.dump import dump_replica
from varlog.storage.sequenced.page_recovery import survey_unit
from varlog.storage.sequenced.page_store import PageRef, PageStore
from varlog.storagenode.node import StorageNodeServer
from varlog.storagenode.sequenced.unit import LogUnit
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.host import Host
from varlog.testing.sim.core.loop import Process

PAGES_A_LOOK = 1_000_000


class SurvivorCheck:
    """`nodes` are the hosts of storage nodes 1, 2, …; `view` is what the leading repository knows, None while nobody leads."""

    def __init__(self, nodes: Sequence[Host], view: Callable[[], ClusterView | None]) -> None:
        self._nodes = {NodeID(number): host for number, host in enumerate(nodes, 1)}
        self.view = view
        # Whose files were harmed on purpose: what they look like may be an older truth, so nothing counts on them any more.
        self.harmed: set[str] = set()
        # Where a bit has flipped: of that replica another one is whole, and all else there counts as before.
        self.flipped: set[str] = set()
        # Whose own files were harmed while it runs: it may refuse to start over them, with all that it writes until then.
        self.doomed: set[str] = set()

    def spare(self, host: Host) -> list[LogStreamID]:
        """The streams whose replica on this host could be lost or damaged without harm."""
        view = self.view()
        if view is None:
            return []
        return [stream.log_stream for stream in self._on(host, view) if self._kept(stream, host)]

    def may_go(self, host: Host) -> bool:
        """Whether all that this host has could be lost without harm."""
        view = self.view()
        return view is not None and all(self._kept(stream, host) for stream in self._on(host, view))

    def may_go_later(self, host: Host) -> bool:
        """Whether what this host writes next may be lost. That concerns streams, too, that are made until then: of each there must
        be a node whose writes are safe."""
        view = self.view()
        copies = min((len(stream.replicas) for stream in view.streams), default=0) if view is not None else 0
        unsafe = {node.name for node in self._nodes.values() if _loses_writes(node)} | self.doomed
        return len({*unsafe, host.name}) < copies and self.may_go(host)

    def registered(self, host: Host, path: Path) -> bool:
        """Whether a file belongs to the node itself, or to a replica that the repository knows. One that it does not know is
        removed only if it is sound and empty: a damaged one is kept for an operator."""
        view = self.view()
        streams = {str(found.log_stream) for found in self._on(host, view)} if view is not None else set()
        folder = next((part for part in path.parts if part.startswith("lsid=")), "")
        return not folder or folder.partition("=")[2] in streams

    def _on(self, host: Host, view: ClusterView) -> tuple[LogStream, ...]:
        number = next((node for node, found in self._nodes.items() if found is host), NodeID(0))
        return view.streams_on(number)

    def _kept(self, stream: LogStream, without: Host) -> bool:
        """Another replica runs, in the stream's epoch, so it has everything; and the bytes on its disk are good. Only of a stream
        that runs: of one that is being repaired a step may be in progress that relies on this copy."""
        if projection := self._projection(stream):
            chain = projection.chain(stream.log_stream)
            settled = all(self._is_settled(node, stream, projection.epoch) for node in chain.nodes)
            return (
                settled
                and not chain.out_of_sync
                and any(
                    self._has_chain(self._nodes[node], stream)
                    for node in chain.nodes
                    if self._counts(node, without)
                )
            )
        return stream.state is StreamState.RUNNING and any(
            self._has_all(self._nodes[node], stream)
            for node in stream.replicas
            if self._counts(node, without)
        )

    def _counts(self, node: NodeID, without: Host) -> bool:
        host = self._nodes[node]
        return host is not without and host.name not in self.harmed

    def _projection(self, stream: LogStream) -> Projection | None:
        view = self.view()
        found = view.projection(stream.topic) if view is not None else None
        return found if found is not None and stream.state is StreamState.RUNNING else None

    def _unit(self, host: Host, stream: LogStream) -> LogUnit | None:
        if not host.up or not isinstance(host.service, StorageNodeServer):
            return None
        return host.service._units.get(stream.log_stream)

    def _is_settled(self, node: NodeID, stream: LogStream, epoch: int) -> bool:
        """Nobody who makes the next projection has counted on this copy: it would be in the next epoch. And it has been compared
        with its chain since its node started: of two older drives, neither of which was compared, nothing shows that they are old
        while the third node is away."""
        unit = self._unit(self._nodes[node], stream)
        return unit is not None and unit._machine.newest_epoch == epoch and not unit.unverified

    def _has_chain(self, host: Host, stream: LogStream) -> bool:
        """A unit that serves has all that was acknowledged; its bytes are as they were written. Those of trimmed pages count too:
        after a restart the unit is found by its page headers, one after the other."""
        unit = self._unit(host, stream)
        if unit is None or unit.trouble:
            return False
        store = unit.store
        disk = SimDisk(host.drive, Process("keeper"), random.Random(0), lambda: None)
        try:
            found = survey_unit(disk, store.path)
        except CorruptReplica:
            return False
        return not found.corrupt_ranges and all(
            _is_good(host, store, page) for page in store.pages_from(store.low, PAGES_A_LOOK)
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


def _loses_writes(host: Host) -> bool:
    drive = host.drive
    return bool(drive.lose_writes or drive.misplace_writes or drive.spoils)


def _is_good(host: Host, store: PageStore, page: PageRef) -> bool:
    content = host.drive.file(store.path / f"{page.segment:020d}.seg").content
    data = bytes(content[page.offset : page.offset + page.size])
    try:
        header = parse_header(data)
        check_body(data, header)
    except CorruptBatch:
        return False
    return (header.first_llsn, header.crc) == (page.first_llsn, page.crc)


def _replica(host: Host, log_stream: LogStreamID) -> ReplicaStatus | None:
    if not host.up or not isinstance(host.service, StorageNodeServer):
        return None
    return next((one for one in host.service.status().replicas if one.log_stream == log_stream), None)
