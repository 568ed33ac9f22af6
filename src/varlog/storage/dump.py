"""Read-only dump and verification of a data directory, for the CLI and reports.

It never writes: it may be used on a directory that must be kept unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from varlog.model.batch import BatchHeader
from varlog.model.commit import CommitRow
from varlog.model.errors import CorruptBatch, CorruptReplica, StartupError
from varlog.model.lsn import FIRST_LLSN, LLSN, NO_LLSN
from varlog.runtime.disk import Disk
from varlog.storage.committed.index import decode_index
from varlog.storage.committed.recovery import survey
from varlog.storage.committed.row_file import ROWS_NAME, read_row, read_rows
from varlog.storage.committed.segment import first_llsn_of, scan
from varlog.storage.committed.state_file import STATE_NAME, ReplicaStateFile, read_state
from varlog.storage.identity import Identity, read_identity
from varlog.storage.read_only import ReadOnlyDisk
from varlog.storage.segment_file import SEGMENT_SUFFIX, good_batches, index_path
from varlog.storage.sequenced.page_recovery import scan_pages, survey_unit
from varlog.storage.sequenced.page_segment import segment_number
from varlog.storage.sequenced.sidecar import decode_sidecar
from varlog.storage.sequenced.sync_watermark import SYNCED_NAME, Synced, read_mark
from varlog.storage.sequenced.unit_state import UNIT_NAME, UnitStateFile, read_unit
from varlog.storage.volume import numbered

# A data directory may contain the volumes of several nodes; they are searched for down to this depth.
_DEPTH_MAX = 3


@dataclass(frozen=True, slots=True)
class SegmentDump:
    """One segment file. `batches` and `entries` count the good ones from its start."""

    path: Path
    first_llsn: LLSN
    end_llsn: LLSN
    file_bytes: int
    batch_bytes: int
    batches: int
    entries: int
    index: str  # "ok", "none" (right for the newest segment), "missing", "damaged"
    problem: str


@dataclass(slots=True)
class ReplicaDump:
    """One replica. `problems` are what opening it would refuse; `notes` what opening it would repair."""

    path: Path
    state: ReplicaStateFile | None = None
    written_end: LLSN = FIRST_LLSN
    committed_end: LLSN = FIRST_LLSN
    rows: int = 0
    last_row: CommitRow | None = None
    segments: list[SegmentDump] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class NodeDump:
    """One storage node's directory on one volume."""

    path: Path
    identity: Identity | None = None
    replicas: list[ReplicaDump] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    units: list[UnitDump] = field(default_factory=list)


@dataclass(slots=True)
class VolumeDump:
    """One volume."""

    path: Path
    nodes: list[NodeDump] = field(default_factory=list)


@dataclass(slots=True)
class Dump:
    """A data directory."""

    path: Path
    volumes: list[VolumeDump] = field(default_factory=list)

    @property
    def replicas(self) -> list[ReplicaDump]:
        return [replica for volume in self.volumes for node in volume.nodes for replica in node.replicas]

    @property
    def units(self) -> list[UnitDump]:
        return [unit for volume in self.volumes for node in volume.nodes for unit in node.units]

    @property
    def problems(self) -> list[str]:
        """All problems; none means that every byte is as it was written."""
        nodes = [node for volume in self.volumes for node in volume.nodes]
        return [
            *(problem for node in nodes for problem in node.problems),
            *(problem for replica in self.replicas for problem in replica.problems),
            *(problem for unit in self.units for problem in unit.problems),
        ]


def dump(disk: Disk, path: Path) -> Dump:
    """Everything below `path`: a data directory, a volume, a node's, a replica's or a log unit's directory."""
    looking = ReadOnlyDisk(disk)
    if _is_unit(looking, path):
        unit = dump_unit(disk, path)
        return Dump(path, [VolumeDump(path.parent, [NodeDump(path.parent, units=[unit])])])
    if disk.exists(path / STATE_NAME) or disk.exists(path / ROWS_NAME):
        replica = dump_replica(disk, path)
        return Dump(path, [VolumeDump(path.parent, [NodeDump(path.parent, None, [replica])])])
    if any(numbered(looking, path, "lsid")):
        return Dump(path, [VolumeDump(path, [_dump_node(looking, path)])])
    return Dump(path, [_dump_volume(looking, volume) for volume in _volumes(looking, path, _DEPTH_MAX)])


def dump_replica(disk: Disk, path: Path) -> ReplicaDump:
    """Dump one replica, checking every batch and row of it."""
    looking = ReadOnlyDisk(disk)
    replica = ReplicaDump(path)
    begin = FIRST_LLSN  # what lies below, opening it would remove
    try:
        found = survey(looking, path)
        replica.notes += found.notes
        replica.problems += [
            f"{found.segments[-1].path}: the ordered entries [{first}, {end}) are damaged"
            for first, end in found.corrupt_ranges
        ]
        replica.written_end, replica.committed_end = found.written_end, found.committed_end
        begin = found.rows.begin
    except CorruptReplica as damaged:
        replica.problems.append(str(damaged))
    try:
        replica.state = read_state(looking, path)
        _dump_rows(looking, path, replica)
    except CorruptReplica as damaged:
        if str(damaged) not in replica.problems:
            replica.problems.append(str(damaged))
    firsts = [
        llsn
        for name in looking.list(path)
        if name.endswith(SEGMENT_SUFFIX) and (llsn := first_llsn_of(name)) and llsn >= begin
    ]
    for number, first in enumerate(firsts):
        following = firsts[number + 1] if number + 1 < len(firsts) else None
        segment = _dump_segment(looking, path / f"{first:020d}{SEGMENT_SUFFIX}", first, following)
        replica.segments.append(segment)
        if segment.problem and following is not None:
            problem = (
                f"{segment.path} at byte {segment.batch_bytes} (LLSN {segment.end_llsn}): {segment.problem}"
            )
            replica.problems.append(problem)
    return replica


def dump_batches(disk: Disk, segment: Path) -> Iterator[tuple[int, BatchHeader | CorruptBatch]]:
    """(offset, header) of each good batch of a segment file, of a replica or a log unit; at the end the reason why the next one is
    not good, if so."""
    content = disk.read_file(segment)
    first = None if _is_unit(disk, segment.parent) else first_llsn_of(segment.name) or FIRST_LLSN
    at = 0
    try:
        for at, header in good_batches(_slices(content), len(content), first):
            yield at, header
            at += header.size
    except CorruptBatch as problem:
        if content[at:].count(0) != len(content) - at:
            yield at, problem


def dump_rows(disk: Disk, rows_file: Path) -> Iterator[CommitRow]:
    """The commit rows of a `commits.log`, in order; CorruptReplica if one that was durable is bad."""
    content = disk.read_file(rows_file)
    read = _slices(content)
    for number in range(len(read_rows(read, len(content), rows_file))):
        yield read_row(read, number)


def _volumes(disk: Disk, path: Path, depth: int) -> Iterator[Path]:
    if any(numbered(disk, path, "cid")):
        yield path
    elif depth and disk.is_directory(path):
        for name in disk.list(path):
            yield from _volumes(disk, path / name, depth - 1)


def _dump_volume(disk: Disk, volume: Path) -> VolumeDump:
    clusters = [path for _, path in numbered(disk, volume, "cid")]
    return VolumeDump(
        volume,
        [_dump_node(disk, node) for cluster in clusters for _, node in numbered(disk, cluster, "snid")],
    )


def _dump_node(disk: Disk, path: Path) -> NodeDump:
    node = NodeDump(path)
    try:
        node.identity = read_identity(disk, path)
        if node.identity is None:
            node.problems.append(f"{path} has no identity file")
    except StartupError as error:
        node.problems.append(str(error))
    for _, found in numbered(disk, path, "lsid"):
        if _is_unit(disk, found):
            node.units.append(dump_unit(disk, found))
        else:
            node.replicas.append(dump_replica(disk, found))
    return node


def _is_unit(disk: Disk, path: Path) -> bool:
    return any(disk.exists(path / name) for name in (UNIT_NAME, SYNCED_NAME))


def _dump_rows(disk: Disk, directory: Path, replica: ReplicaDump) -> None:
    path = directory / ROWS_NAME
    if not disk.exists(path):
        return
    content = disk.read_file(path)
    replica.rows = len(read_rows(_slices(content), len(content), path))
    if replica.rows:
        replica.last_row = read_row(_slices(content), replica.rows - 1)


def _dump_segment(disk: Disk, path: Path, first: LLSN, following: LLSN | None) -> SegmentDump:
    content = disk.read_file(path)
    found = scan(_slices(content), len(content), first)
    problem = found.problem
    index = "none"
    if following is not None:
        if not problem and (found.end_llsn, found.size) != (following, len(content)):
            problem = f"it ends at LLSN {found.end_llsn}, and the next segment begins at {following}"
        sidecar = index_path(path)
        index = "missing"
        if disk.exists(sidecar):
            good = decode_index(disk.read_file(sidecar), first, following, len(content)) is not None
            index = "ok" if good else "damaged"
    entries = found.end_llsn - first
    return SegmentDump(
        path, first, found.end_llsn, len(content), found.size, found.batches, entries, index, problem
    )


def _slices(content: bytes) -> Callable[[int, int], memoryview]:
    view = memoryview(content)
    return lambda size, offset: view[offset : offset + size]


# --- log units -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PageSegmentDump:
    """One segment file. `batches` and `entries` count its pages up to the first one whose end is not known."""

    path: Path
    number: int
    lowest_llsn: LLSN
    highest_llsn: LLSN
    file_bytes: int
    batch_bytes: int
    batches: int
    entries: int
    junk_entries: int
    index: str  # "ok", "none" (right for the newest segment), "missing", "damaged"
    problem: str


@dataclass(slots=True)
class UnitDump:
    """One log unit. `newest`: the largest LLSN that is written; everything below `dense_end` is; `runs`: one more than there are
    holes. `problems` are what opening it would refuse or report; `notes` what opening it would repair."""

    path: Path
    state: UnitStateFile | None = None
    newest: LLSN = NO_LLSN
    dense_end: LLSN = FIRST_LLSN
    runs: int = 0
    synced: Synced = field(default_factory=Synced)
    segments: list[PageSegmentDump] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def dump_unit(disk: Disk, path: Path) -> UnitDump:
    """Dump one log unit, checking every page of it."""
    looking = ReadOnlyDisk(disk)
    unit = UnitDump(path)
    first = 0
    try:
        found = survey_unit(looking, path)
        _, runs = found.pages()
        low = found.state.low
        unit.notes += found.notes
        unit.dense_end, unit.runs = runs.gap_from(low), len(runs)
        unit.newest = LLSN(max(low, *(segment.end_llsn for segment in found.segments)) - 1)
    except CorruptReplica as damaged:
        unit.problems.append(str(damaged))
    try:
        unit.state = read_unit(looking, path)
        first = unit.state.first_segment
    except CorruptReplica as damaged:
        if str(damaged) not in unit.problems:
            unit.problems.append(str(damaged))
    unit.synced = read_mark(looking, path) or Synced()
    numbers = [
        number
        for name in looking.list(path)
        if name.endswith(SEGMENT_SUFFIX) and (number := segment_number(name)) is not None and number >= first
    ]
    for number in numbers:
        _dump_page_segment(looking, unit, number, newest=number == numbers[-1])
    return unit


def _dump_page_segment(disk: Disk, unit: UnitDump, number: int, *, newest: bool) -> None:
    path = unit.path / f"{number:020d}{SEGMENT_SUFFIX}"
    content = memoryview(disk.read_file(path))
    synced = unit.synced.size if newest and unit.synced.segment == number else 0
    found = scan_pages(
        lambda size, offset: content[offset : offset + size],
        len(content),
        synced if newest else len(content),
    )
    problem = found.problem
    if not problem and not newest and found.size != len(content):
        problem = "zeros follow"
    if problem and (not newest or found.size < synced):
        unit.problems.append(f"{path} at byte {found.size}: {problem}")
    unit.problems += [
        f"{path}: the entries [{begin}, {end}) are damaged" for begin, end in found.corrupt_ranges
    ]
    index = "none"
    if not newest:
        sidecar = index_path(path)
        index = "missing"
        if disk.exists(sidecar):
            good = decode_sidecar(disk.read_file(sidecar), number, len(content)) is not None
            index = "ok" if good else "damaged"
    pages = found.pages
    unit.segments.append(
        PageSegmentDump(
            path,
            number,
            min((page.first_llsn for page in pages), default=LLSN(0)),
            LLSN(max((page.end_llsn for page in pages), default=LLSN(1)) - 1),
            len(content),
            found.size,
            len(pages),
            sum(page.count for page in pages),
            sum(page.count for page in pages if page.is_junk),
            index,
            problem,
        )
    )
