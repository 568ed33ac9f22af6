"""The end of a run for sequenced topics: healed chains and units on disk."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from varlog.model.batch import check_body, crc32c, entries_of, parse_header
from varlog.model.cluster import ClusterView, StreamState, Topic
from varlog.model.errors import CorruptBatch, CorruptReplica, VarlogError
from varlog.model.events import sentence
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN
from varlog.model.projection import Projection
from varlog.model.status import ClusterStatus, UnitStatus
from varlog.storage.disk_space import DiskSpace
from varlog.storage.segment_file import SEGMENT_SUFFIX
from varlog.storage.sequenced.page_store import PageStore
from varlog.storage.sequenced.unit_state import UNIT_NAME, read_unit
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.host import VOLUME, Host
from varlog.testing.sim.core.loop import Process
from varlog.verify.history import Ending, History, StoredEntry, StoredPage

PAGES_A_LOOK = 10_000


def what_is_wrong_with_chains(status: ClusterStatus, replicas: int) -> str:
    """'' if every sequenced topic has a projection whose chains are full, of well units in its epoch, and a sequencer."""
    view = status.view
    units = {
        (health.node, unit.log_stream): unit
        for health in status.nodes
        if health.status is not None
        for unit in health.status.units
    }
    waits = {wait.log_stream: sentence(wait) for wait in status.waits}
    for topic in view.topics:
        if not topic.sequenced:
            continue
        projection = view.projection(topic.topic)
        if projection is None:
            return f"topic {topic.name} has no projection"
        if projection.sequencer not in view.sequencers:
            return f"topic {topic.name} has no sequencer: {projection.sequencer} is none of {view.sequencers}"
        for stream in view.streams_of(topic.topic):
            if stream.state is not StreamState.RUNNING:
                return f"log stream {stream.log_stream} is in no projection yet: {waits.get(stream.log_stream, '')}"
        for chain in projection.chains:
            why = waits.get(chain.log_stream, "")
            if chain.out_of_sync or len(chain.nodes) < replicas:
                return f"{chain} is not full: {why}"
            for node in chain.nodes:
                unit = units.pop((node, chain.log_stream), None)
                trouble = _trouble(unit, projection, topic)
                if not trouble and unit is not None and unit.unverified and len(chain.nodes) > 1:
                    trouble = "has not been compared with its chain since it was restored"
                if trouble:
                    return f"the unit of {chain} on node {node}: {trouble}: {unit} {why}"
    bare = [
        health.node
        for health in status.nodes
        if health.status and health.status.units and not health.status.leased
    ]
    if bare:
        return f"nodes {bare} have units and no lease"
    return f"units are left over that belong to no chain (node, stream): {list(units)}" if units else ""


def _trouble(unit: UnitStatus | None, projection: Projection, topic: Topic) -> str:
    if unit is None:
        return "is missing"
    if unit.epoch != projection.epoch:
        return f"is not in epoch {projection.epoch}"
    if unit.trouble or unit.damage or unit.full:
        return "is not well"
    low = projection.llsn_from(unit.log_stream, GLSN(topic.trimmed + 1))
    return f"is not trimmed below {low} yet" if unit.low < low else ""


def examine_units(
    hosts: Sequence[Host], view: ClusterView, history: History, segment_bytes: int, *, rotten: bool
) -> None:
    """Open every unit on every drive and write down what it holds. The nodes must have stopped. `rotten`: bits flipped."""
    topics = {topic.topic: topic for topic in view.topics if topic.sequenced}
    endings = {ending.topic: ending for ending in history.endings}
    for number, host in enumerate(hosts, 1):
        disk = SimDisk(host.drive, Process("examiner"), random.Random(0), lambda: None)
        missing = {stream.log_stream for stream in view.streams_on(NodeID(number)) if stream.topic in topics}
        for path in host.replica_paths():
            if not disk.exists(path / UNIT_NAME):
                continue
            try:
                store = PageStore.open(
                    disk, path, segment_bytes=segment_bytes, disk_space=DiskSpace(disk, VOLUME)
                )
                topic = topics.get(store.topic)
                if topic is None or store.log_stream not in missing:
                    history.complaints.append(
                        f"{path} on {host.name} belongs to no chain, and is there still"
                    )
                    continue
                projection = view.projection(store.topic)
                ending = endings.get(topic.name)
                if ending is not None and projection is not None:
                    write_down(store, projection, ending, host.name)
                missing.remove(store.log_stream)
            except VarlogError as error:
                # What became corrupt and was trimmed is no loss: the next start finds it, and the unit is created again.
                if not (rotten and _is_trimmed_rot(disk, path, error)):
                    history.not_whole.append(f"{path} on {host.name} is not whole at the end: {error}")
                missing.discard(LogStreamID(int(path.name.partition("=")[2])))
        for log_stream in missing:
            history.complaints.append(f"log stream {log_stream} has no unit on {host.name}'s disk")


def _is_trimmed_rot(disk: SimDisk, path: Path, error: VarlogError) -> bool:
    """Whether the damage may be of trimmed pages: in a segment of a unit in which something is trimmed."""
    segment = isinstance(error, CorruptBatch) or (
        isinstance(error, CorruptReplica) and error.path.endswith(SEGMENT_SUFFIX)
    )
    try:
        return segment and read_unit(disk, path).low > FIRST_LLSN
    except CorruptReplica:
        return False


def write_down(store: PageStore, projection: Projection, ending: Ending, host: str) -> None:
    """What one unit holds on its disk."""
    log_stream, trimmed = store.log_stream, GLSN(ending.trimmed)
    pages: list[StoredPage] = []
    entries: list[StoredEntry] = []
    for page, header_of, stored in _pages(store):
        pages.append(page)
        for llsn, glsn, count in projection.rows(log_stream, LLSN(page.llsn), LLSN(page.llsn + page.entries)):
            for at in range(count):
                if llsn + at < store.low:
                    continue
                if page.junk:
                    ending.junk.add(glsn + at)
                else:
                    data = stored[llsn + at - page.llsn]
                    entries.append(StoredEntry(llsn + at, glsn + at, header_of, data))
    low = projection.llsn_from(log_stream, GLSN(trimmed + 1))
    ending.units.setdefault(log_stream, {})[host] = pages
    ending.replicas.setdefault(log_stream, {})[host] = entries
    floor = trimmed if store.low == low else projection.position(log_stream, store.low)[0] - 1
    ending.trims.setdefault(log_stream, {})[host] = floor


def _pages(store: PageStore) -> Iterator[tuple[StoredPage, tuple[int, ...], list[bytes]]]:
    """Every batch that reaches above the low end, checked against its checksum."""
    for page in store.pages_from(store.low, PAGES_A_LOOK):
        data = store.read([page])
        header = parse_header(data)
        check_body(data, header)
        of_batch = (
            header.epoch,
            header.first_llsn,
            header.producer,
            header.sequence,
            header.time_us,
            header.body_crc,
        )
        found = StoredPage(
            header.first_llsn, header.count, header.is_junk, crc32c(bytes(data[: header.size]))
        )
        yield found, of_batch, [bytes(one) for one in entries_of(data, header)]
