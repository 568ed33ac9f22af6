"""[Q5] Opens a log unit after a crash: scans the pages, decides, changes nothing.

What a crash can leave is repaired: a torn tail behind the sync watermark is cut, segments that a trim was removing are removed
(law 9). What a crash cannot explain is CorruptReplica, or, where only the body of a page is damaged, a corrupt range. No crash
removes the watermark: if it cannot be read, the newest segment must be whole by itself, because what is cut off might have been
acknowledged (law 10).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from varlog.model.batch import BatchHeader
from varlog.model.errors import CorruptBatch, CorruptReplica
from varlog.model.lsn import LLSN
from varlog.runtime.disk import Disk
from varlog.storage.segment_file import (
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    ReadFileAt,
    all_batches,
    index_path,
    only_zeros,
)
from varlog.storage.sequenced.page_index import JUNK_BIT, LlsnRuns, PageIndex, PageRef
from varlog.storage.sequenced.page_segment import page_segment_path, segment_number
from varlog.storage.sequenced.sidecar import (
    PageRows,
    closed_bytes,
    decode_sidecar,
    encode_pages,
    sidecar_rows,
)
from varlog.storage.sequenced.sync_watermark import SYNCED_NAME, Synced, read_mark
from varlog.storage.sequenced.unit_state import UnitStateFile, read_unit


@dataclass(slots=True)
class FoundPages:
    """A segment that stays. `size` are its good bytes; `file_bytes` may be more in the newest one."""

    path: Path
    number: int
    rows: PageRows
    size: int
    file_bytes: int
    sidecar_lost: bool = False

    @property
    def end_llsn(self) -> LLSN:
        """The LLSN above which no page of it ends."""
        return LLSN(int(_ends(self.rows).max())) if len(self.rows) else LLSN(0)


@dataclass(frozen=True, slots=True)
class UnitRecovery:
    """What a log unit has on disk, and what is to be done before it can be used."""

    state: UnitStateFile
    segments: tuple[FoundPages, ...]
    synced: int  # bytes of the newest segment that are proven; the rest must be written again
    remove: tuple[Path, ...]
    notes: tuple[str, ...]  # what the crash left, for people
    corrupt_ranges: tuple[tuple[LLSN, LLSN], ...]  # acknowledged pages with damaged bytes

    def pages(self) -> tuple[PageIndex, LlsnRuns]:
        """The pages that are not trimmed, by LLSN. CorruptReplica if two of them overlap (law 8)."""
        rows = np.concatenate([found.rows for found in self.segments])
        numbers = np.repeat(
            np.array([found.number for found in self.segments], "<u4"),
            [len(found.rows) for found in self.segments],
        )
        # A page of the chain that begins below the trim point may overlap trimmed pages, which were never part of the chain.
        alive = _ends(rows) > self.state.low
        rows, numbers = rows[alive], numbers[alive]
        order = np.argsort(rows["firsts"], kind="stable")
        rows, numbers = rows[order], numbers[order]
        ends = _ends(rows)
        doubled = np.flatnonzero(rows["firsts"][1:] < ends[:-1])
        if len(doubled):
            at = int(doubled[0]) + 1
            path = page_segment_path(self.segments[0].path.parent, int(numbers[at]))
            raise CorruptReplica(str(path), f"LLSN {rows['firsts'][at]} is written twice")
        columns = {name: rows[name] for name in rows.dtype.names or ()}
        gaps = np.flatnonzero(rows["firsts"][1:] > ends[:-1])
        begins = rows["firsts"][np.concatenate(([0], gaps + 1))] if len(rows) else rows["firsts"]
        runs = LlsnRuns(begins.tolist(), ends[np.concatenate((gaps, [-1]))].tolist() if len(rows) else ())
        return PageIndex.of_sorted(columns | {"segments": numbers}), runs


def survey_unit(disk: Disk, directory: Path) -> UnitRecovery:
    """Read what opening needs: state, mark, sidecars and the newest segment. Changes nothing; raises CorruptReplica."""
    state = read_unit(disk, directory)
    if directory.name.startswith("lsid=") and directory.name != f"lsid={state.log_stream}":
        raise CorruptReplica(
            str(directory), f"it holds log stream {state.log_stream}: it was renamed or copied"
        )
    names = disk.list(directory)
    numbers = sorted(number for number in map(segment_number, _segments(names)) if number is not None)
    kept = [number for number in numbers if number >= state.first_segment]
    mark = read_mark(disk, directory)
    proven = mark or Synced()
    _check_complete(directory, state, kept, proven)
    corrupt_ranges: list[tuple[LLSN, LLSN]] = []
    segments = [
        _closed_segment(disk, page_segment_path(directory, number), number, corrupt_ranges)
        for number in kept[:-1]
    ]
    synced = proven.size if proven.segment == kept[-1] else 0
    newest, problem = _newest_segment(
        disk, page_segment_path(directory, kept[-1]), kept[-1], synced, corrupt_ranges
    )
    notes = [f"cut {newest.path.name} at byte {newest.size}: {problem}"] if problem else []
    if mark is None:
        _check_whole(disk, newest, problem)
        notes.append(f"the mark {SYNCED_NAME!r} is missing or damaged: it is written again")
    remove = _leftovers(directory, names, set(kept))
    return UnitRecovery(
        state, (*segments, newest), synced, tuple(remove), tuple(notes), tuple(corrupt_ranges)
    )


def _check_complete(directory: Path, state: UnitStateFile, kept: list[int], mark: Synced) -> None:
    """Segments are numbered without a gap, and a trim removes them from the first on."""
    newest = kept[-1] if kept else state.first_segment - 1
    missing = set(range(state.first_segment, max(newest, mark.segment, state.first_segment) + 1)) - set(kept)
    if missing:
        raise CorruptReplica(str(page_segment_path(directory, min(missing))), "it is missing")


def _check_whole(disk: Disk, newest: FoundPages, problem: str) -> None:
    """For a unit without a watermark: nothing shows which bytes were synced, so a torn tail looks like damage, and a segment that
    was not created yet like one that is missing."""
    unmarked = f"and the mark {SYNCED_NAME!r} that shows what was synced is missing or damaged"
    if problem:
        raise CorruptReplica(str(newest.path), f"at byte {newest.size}: {problem}, {unmarked}")
    if disk.exists(index_path(newest.path)):
        following = page_segment_path(newest.path.parent, newest.number + 1)
        raise CorruptReplica(str(following), f"the segment before it is closed and it is missing, {unmarked}")


def _closed_segment(
    disk: Disk, path: Path, number: int, corrupt_ranges: list[tuple[LLSN, LLSN]]
) -> FoundPages:
    """From its sidecar, without reading the segment; scanned only if the sidecar is lost."""
    sidecar = index_path(path)
    file = disk.open(path)
    try:
        size = file.size()
        index = disk.read_file(sidecar) if disk.exists(sidecar) else b""
        rows = decode_sidecar(index, number, size)
        if rows is not None:
            return FoundPages(path, number, rows, size, size)
        # A file truncated between two batches would scan as whole, and nothing else knows what followed.
        if (closed_bytes(index, number) or 0) > size:
            raise CorruptReplica(
                str(path), f"it has {size} bytes, and was closed with {closed_bytes(index, number)}"
            )
        if size == 0 and disk.exists(sidecar):
            raise CorruptReplica(str(path), "it is empty, and its index is of something else")
        found = scan_pages(file.read_at, size, size)
    finally:
        file.close()
    if found.size != size:
        raise CorruptReplica(str(path), f"at byte {found.size}: {found.problem or 'zeros follow'}")
    corrupt_ranges += found.corrupt_ranges
    return FoundPages(path, number, sidecar_rows(encode_pages(found.pages)), size, size, sidecar_lost=True)


def _newest_segment(
    disk: Disk, path: Path, number: int, synced: int, corrupt_ranges: list[tuple[LLSN, LLSN]]
) -> tuple[FoundPages, str]:
    """The segment, and why it was cut, if a crash was the reason."""
    file = disk.open(path)
    try:
        size = file.size()
        found = scan_pages(file.read_at, size, synced)
    finally:
        file.close()
    if found.size < synced:
        problem = found.problem or "nothing follows"
        raise CorruptReplica(str(path), f"at byte {found.size} of {synced} that were synced: {problem}")
    corrupt_ranges += found.corrupt_ranges
    return FoundPages(path, number, sidecar_rows(encode_pages(found.pages)), found.size, size), found.problem


def _ends(rows: PageRows) -> npt.NDArray[np.uint64]:
    ends: npt.NDArray[np.uint64] = rows["firsts"] + (rows["counts"] & ~np.uint32(JUNK_BIT))
    return ends


def _segments(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(SEGMENT_SUFFIX)]


def _leftovers(directory: Path, names: list[str], kept: set[int]) -> list[Path]:
    """What a trim was removing, sidecars first, and replacements that were never put in place."""
    gone = [name for name in names if (number := segment_number(name)) is not None and number not in kept]
    gone.sort(key=lambda name: not name.endswith(INDEX_SUFFIX))
    return [directory / name for name in [*gone, *(name for name in names if name.endswith(".new"))]]


# --- scan ----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PageScan:
    """The good pages of a segment, and what comes behind them."""

    pages: list[PageRef] = field(default_factory=list)
    size: int = 0
    problem: str = ""  # why the next bytes are no page; empty where the file ends or only zeros follow
    corrupt_ranges: list[tuple[LLSN, LLSN]] = field(default_factory=list)  # synced pages with damaged bytes


def scan_pages(read: ReadFileAt, file_bytes: int, synced: int, number: int = 0) -> PageScan:
    """Check the segment from its first byte on; stop at the first page that is damaged.

    A damaged body before `synced` is skipped: no crash damages what was synced, and its header still shows where the next page
    begins. It is recorded, and the other nodes of the chain have its bytes.
    """
    found = PageScan()
    try:
        for at, header, problem in all_batches(read, file_bytes, None):
            if problem is not None:
                if at + header.size > min(synced, file_bytes):
                    raise problem
                found.corrupt_ranges.append((header.first_llsn, header.end_llsn))
            found.pages.append(_page(header, number, at))
            found.size = at + header.size
    except CorruptBatch as problem:
        if not only_zeros(read, file_bytes, found.size):
            found.problem = problem.what
    return found


def _page(header: BatchHeader, segment: int, offset: int) -> PageRef:
    return PageRef(header.first_llsn, header.count, header.size, header.crc, segment, offset, header.is_junk)
