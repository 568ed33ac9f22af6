"""PURE. ArchiveCommit, Contents: what an archive has, and what follows from it.

What to write next, what may be trimmed, and which files a read needs. Positions are GLSNs, ranges half-open. An archive holds one
range of a topic, without gaps; only its manifest says how far.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from varlog.model.errors import PreconditionFailed

FORMAT_VERSION = 1
# As 1, but some positions have no row: a reader of version 1 would misplace the rows behind them.
HOLES_VERSION = 2

# The maximum of entries per range, and the approximate size of its files before compression.
RANGE_RECORDS = 1_000_000
FILE_BYTES = 256 << 20

_RANGE_NAME = re.compile(r"glsn_range=(\d{20})-(\d{20})-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file, by its path below the archive's: row i is position `begin + i`. Times are those of its entries.

    `missing`: the number of junk positions of a sequenced topic, which have no row; then rows are found by their column."""

    path: str
    begin: int
    end: int
    bytes: int
    first_us: int
    last_us: int
    missing: int = 0

    @property
    def rows(self) -> int:
        return self.end - self.begin - self.missing


@dataclass(frozen=True, slots=True)
class ArchiveCommit:
    """One file of the manifest: positions [begin, end) of a topic are in these files, all of them that hold an entry, once.

    `last_checksum` is the CRC-32 of the entry at `end - 1`, as the log had it: it distinguishes another cluster with the same
    numbers."""

    version: int = field(default=FORMAT_VERSION, kw_only=True)
    cluster: int
    topic: int
    name: str
    begin: int
    end: int
    bytes: int
    first_us: int
    last_us: int
    last_checksum: int
    files: tuple[ArchivedFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that a manifest names of one topic, oldest first; empty before the first commit."""

    commits: tuple[ArchiveCommit, ...] = ()

    def __post_init__(self) -> None:
        for number, commit in enumerate(self.commits, 1):
            _check_commit(number, commit, self.commits[number - 2] if number > 1 else None)

    def __bool__(self) -> bool:
        return bool(self.commits)

    @property
    def begin(self) -> int:
        return self.commits[0].begin

    @property
    def end(self) -> int:
        return self.commits[-1].end

    @property
    def rows(self) -> int:
        return sum(commit.rows for commit in self.commits)

    @property
    def bytes(self) -> int:
        return sum(commit.bytes for commit in self.commits)

    @property
    def dense(self) -> bool:
        """Every position has a row."""
        return all(file.missing == 0 for file in self.files)

    @property
    def next_number(self) -> int:
        return len(self.commits) + 1

    @property
    def files(self) -> tuple[ArchivedFile, ...]:
        return tuple(file for commit in self.commits for file in commit.files)


def _check_commit(number: int, commit: ArchiveCommit, before: ArchiveCommit | None) -> None:
    """Refuse a manifest that was changed by others: nothing may be read or trimmed because of it."""
    if before is not None and (commit.cluster, commit.topic, commit.name) != (
        before.cluster,
        before.topic,
        before.name,
    ):
        raise PreconditionFailed(
            f"commit {number} of the manifest is of another topic than commit {number - 1}"
        )
    if before is not None and commit.begin != before.end:
        raise PreconditionFailed(
            f"commit {number} of the manifest begins at {commit.begin}, not at {before.end}: positions are missing"
        )
    ends = [commit.begin, *(file.end for file in commit.files)]
    if [file.begin for file in commit.files] != ends[:-1] or ends[-1] != commit.end:
        raise PreconditionFailed(
            f"the files of commit {number} of the manifest do not hold {range_text(commit.begin, commit.end)}"
        )


def check_same_topic(contents: Contents, cluster: int, topic: int, name: str) -> None:
    """An archive belongs to one topic of one cluster forever: a recreated topic of that name is another one."""
    if not contents:
        return
    found = contents.commits[-1]
    if found.name != name:
        raise PreconditionFailed(f"this is an archive of topic {found.name!r}, not of {name!r}")
    if found.cluster != cluster:
        raise PreconditionFailed(
            f"this is an archive of topic {name!r} of cluster {found.cluster}, and the log is of cluster {cluster}"
        )
    if found.topic != topic:
        raise PreconditionFailed(
            f"this is an archive of topic {name!r} with the id {found.topic}, and the cluster's has the id {topic}: it was "
            "deleted and recreated; use another path for it"
        )


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows of one file at consecutive positions, from `begin` on."""

    name: str
    begin: int
    rows: int
    first_us: int
    last_us: int

    @property
    def end(self) -> int:
        return self.begin + self.rows


def files_of_runs(
    runs: Sequence[RowRun], directory: str, sizes: Mapping[str, int], begin: int, end: int
) -> tuple[tuple[ArchivedFile, ...], list[tuple[int, int]]]:
    """The files that were written for [begin, end), and the positions of it that have no row. PreconditionFailed: a position is
    there twice,
    files are interleaved, or the last position has no row."""
    made: list[ArchivedFile] = []
    gaps: list[tuple[int, int]] = []
    at = begin
    for name, own in groupby(sorted(runs, key=lambda run: run.begin), key=lambda run: run.name):
        first, parts = at, list(own)
        for run in parts:
            if run.begin < at or any(file.path == f"{directory}/{name}" for file in made):
                raise PreconditionFailed(
                    f"{range_text(run.begin, run.end)} exist twice, or in a file of others"
                )
            gaps += [(at, run.begin)] if run.begin > at else []
            at = run.end
        times = min(run.first_us for run in parts), max(run.last_us for run in parts)
        missing = at - first - sum(run.rows for run in parts)
        made.append(ArchivedFile(f"{directory}/{name}", first, at, sizes[name], *times, missing))
    if at != end:
        raise PreconditionFailed(f"it ends before {range_text(at, end) if at < end else range_text(end, at)}")
    return tuple(made), gaps


def next_range(archived_end: int, newest: int, records_max: int, *, rest: bool) -> tuple[int, int] | None:
    """The positions to write next: a whole range, or with `rest` a partial one."""
    end = min(archived_end + records_max, newest + 1)
    whole = end - archived_end == records_max
    return (archived_end, end) if whole or (rest and end > archived_end) else None


def files_of_range(begin: int, end: int, bytes_: int, file_bytes: int) -> int:
    """The number of files for a range of this size: about equally large, none empty."""
    return max(1, min(end - begin, -(-bytes_ // file_bytes)))


def trim_point(
    archived_end: int, newest: int, keep_records: int, readers: Iterable[int], trimmed: int
) -> int | None:
    """The newest position that may be trimmed: archived, not among the newest `keep_records`, and read by all `readers` (their
    positions). None if it is trimmed already."""
    point = min(archived_end - 1, newest - keep_records, *readers)
    return point if point > trimmed else None


def range_name(begin: int, end: int, run: str) -> str:
    """The directory of a range. Every attempt has its own (`run`), so that two at once cannot conflict; not named
    glsn=…, which Spark would interpret as the column."""
    return f"glsn_range={begin:020d}-{end:020d}-{run}"


def leftovers(names: Iterable[str], contents: Contents) -> list[str]:
    """Range directories of attempts that were too late, or died: their positions are in the manifest with other files, so they can
    no longer be committed. Those above the manifest's end may still be written."""
    if not contents:
        return []
    kept = {file.path.split("/")[1] for file in contents.files}
    found = [(name, _RANGE_NAME.fullmatch(name)) for name in names if name not in kept]
    return [name for name, match in found if match and int(match[1]) < contents.end]


@dataclass(frozen=True, slots=True)
class ReadSplit:
    """Where a read's positions come from. `missing`: trimmed from the log, and not in the archive."""

    archived: tuple[int, int]
    live: tuple[int, int]
    missing: tuple[tuple[int, int], ...] = ()


def split_read(begin: int, end: int, contents: Contents, oldest: int) -> ReadSplit:
    """What the archive has is read from it, also where the log still has it: a trim after archiving cannot disturb the read."""
    end = max(begin, end)
    first = last = begin
    if contents and (contents.begin <= begin or oldest > begin):
        first = min(max(begin, contents.begin), end)
        last = max(first, min(end, contents.end))
    live = max(last, min(oldest, end))
    gaps = [(begin, live)] if first == last else [(begin, first), (last, live)]
    return ReadSplit((first, last), (live, end), tuple(gap for gap in gaps if gap[0] < gap[1]))


def files_between(
    files: Sequence[ArchivedFile],
    begin: int,
    end: int,
    begin_us: int | None = None,
    end_us: int | None = None,
) -> list[ArchivedFile]:
    """The files that can have a row of [begin, end) with a time in [begin_us, end_us)."""
    return [
        file
        for file in files
        if file.begin < end
        and file.end > begin
        and (begin_us is None or file.last_us >= begin_us)
        and (end_us is None or file.first_us < end_us)
    ]


@dataclass(frozen=True, slots=True)
class Slice:
    """Positions [begin, end) of one file."""

    file: ArchivedFile
    begin: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.begin

    @property
    def bytes(self) -> int:
        """Approximately: entries are assumed to be equally long."""
        return self.file.bytes * self.rows // max(1, self.file.end - self.file.begin)


def slices(
    files: Sequence[ArchivedFile], begin: int, end: int, time: tuple[int, int] | None = None
) -> list[Slice]:
    """The slices to read for rows of [begin, end) with a time in `time`."""
    low, high = time or (None, None)
    return [
        Slice(file, max(begin, file.begin), min(end, file.end))
        for file in files_between(files, begin, end, low, high)
    ]


def slice_groups(
    wanted: Sequence[Slice], piece_bytes: int, *, partitions_min: int = 0, records_max: int = 0
) -> list[tuple[Slice, ...]]:
    """What each task reads: large files cut, small neighbours joined, about `piece_bytes` each."""
    total = sum(part.bytes for part in wanted)
    size = max(1, min(piece_bytes, total // partitions_min) if partitions_min else piece_bytes)
    found: list[tuple[Slice, ...]] = []
    for part in (cut for whole in wanted for cut in _cut(whole, size, records_max)):
        joined = (*(found[-1] if found else ()), part)
        small = sum(one.bytes for one in joined) <= size
        few = not records_max or sum(one.rows for one in joined) <= records_max
        if found and small and few:
            found[-1] = joined
        else:
            found.append((part,))
    return found


def _cut(whole: Slice, size: int, records_max: int) -> list[Slice]:
    """In equal parts, of at most `size` bytes and `records_max` records."""
    parts = max(1, -(-whole.bytes // size), -(-whole.rows // records_max) if records_max else 1)
    parts = min(parts, whole.rows)
    bounds = [whole.begin + whole.rows * number // parts for number in range(parts + 1)]
    return [Slice(whole.file, low, high) for low, high in pairwise(bounds)]


def range_text(begin: int, end: int) -> str:
    """A range, in words."""
    return f"position {begin}" if end - begin == 1 else f"positions {begin} to {end - 1}"
