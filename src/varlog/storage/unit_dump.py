"""Read-only look into one log unit, with every byte of its pages checked. Part of the dump."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from varlog.model.errors import CorruptReplica
from varlog.model.lsn import FIRST_LLSN, LLSN, NO_LLSN
from varlog.runtime.disk import Disk
from varlog.storage.page_recovery import survey_unit
from varlog.storage.page_scan import scan_pages
from varlog.storage.page_segment import segment_number
from varlog.storage.page_sidecar import decode_sidecar
from varlog.storage.read_only import ReadOnlyDisk
from varlog.storage.segment_file import SEGMENT_SUFFIX, index_path
from varlog.storage.sync_watermark import Synced, read_mark
from varlog.storage.unit_state import UnitStateFile, read_unit


@dataclass(frozen=True, slots=True)
class PageSegmentDump:
    """One segment file. `batches` and `entries` count its pages up to the first that cannot be told from what follows."""

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
    holes. `problems` are what opening it would refuse or say; `notes` what opening it would put right."""

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
    """One log unit, every page of it checked."""
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
        _dump_segment(looking, unit, number, newest=number == numbers[-1])
    return unit


def _dump_segment(disk: Disk, unit: UnitDump, number: int, *, newest: bool) -> None:
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
