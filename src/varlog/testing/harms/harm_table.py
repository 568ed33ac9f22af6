"""The table of harms: every file, every harm, running and stopped; its report.

A cell is one of them. `healed`: everything acknowledged is right and appends work, without a person. `said`: something is refused,
with words. Anything else is a bug. What replication survives, which is the harm of one node's file, has to be healed, but for the
few exceptions below, each with its reason. What exists once has to be right, or said. What is deleted or replaced while its process
runs has to be healed before the process is killed: it has everything open, or in memory.

The files are found in a live cluster. One of a kind that is not known here fails the test: its row has to be added.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from varlog.testing.harms.harmed_cluster import HarmOutcome, HarmResult

# Harms to one file: what a device, a crash or a mistake does to it.
#
# "Newest" is what was written last: what differs from an older copy of the file. Where there is none, or nothing differs, it is
# what
# is before the zeros at the end of the file: files that are reserved ahead end in them.

SECTOR_BYTES = 512
# Harms one file in place; the bytes are those of an older copy.
FileHarm = Callable[[Path, bytes], None]


def newest(path: Path, older: bytes) -> range:
    """From the first to behind the last byte that was written since the older copy."""
    now = path.read_bytes()
    size = max(len(now), len(older))
    if older and now != older:
        before, after = older.ljust(size, b"\0"), now.ljust(size, b"\0")
        end = _last_difference(before, after)
        begin = size - _last_difference(before[::-1], after[::-1])
        return range(min(begin, len(now)), min(end, len(now)))
    return range(len(now.rstrip(b"\0")))


def _last_difference(before: bytes, after: bytes) -> int:
    """Behind the last byte that differs; found by halves, as files are large."""
    low, high = 0, len(before)  # everything from `high` on is equal
    while low < high:
        middle = (low + high) // 2
        if before[middle:high] == after[middle:high]:
            high = middle
        else:
            low = middle + 1
    return high


def flip_newest_bit(path: Path, older: bytes) -> None:
    """One bit in the middle of what was written last."""
    written = newest(path, older)
    _flip(path, written[len(written) // 2] if written else 0)


def flip_last_bit(path: Path, older: bytes) -> None:
    """One bit, a few bytes before the end of what was written last."""
    _flip(path, max(0, newest(path, older).stop - 5))


def flip_middle_bit(path: Path, older: bytes) -> None:
    """One bit in the middle of everything that was written."""
    _flip(path, newest(path, older).stop // 2)


def zero_newest_sector(path: Path, older: bytes) -> None:
    """The sector that the newest byte is in."""
    begin = max(0, newest(path, older).stop - 1) // SECTOR_BYTES * SECTOR_BYTES
    _overwrite(path, begin, bytes(min(SECTOR_BYTES, path.stat().st_size - begin)))


def zero_tail(path: Path, older: bytes) -> None:
    """From the middle of what was written last on, as a file system leaves it that had recorded a size and no data."""
    written = newest(path, older)
    begin = (written.start + written.stop) // 2
    _overwrite(path, begin, bytes(path.stat().st_size - begin))


def truncate_newest_bytes(path: Path, older: bytes) -> None:
    """A few bytes fewer than were written."""
    os.truncate(path, max(0, newest(path, older).stop - 3))


def truncate_to_nothing(path: Path, older: bytes) -> None:
    os.truncate(path, 0)


def delete_file(path: Path, older: bytes) -> None:
    path.unlink()


def older_copy(path: Path, older: bytes) -> None:
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(older)
        file.truncate()


def replace(path: Path, older: bytes) -> None:
    """Another file, with the older bytes, is moved over it: a process that has it open continues with one that has no name."""
    other = path.with_name(f"{path.name}.old")
    other.write_bytes(older)
    os.replace(other, path)


def _flip(path: Path, at: int) -> None:
    with path.open("rb") as file:
        file.seek(at)
        found = file.read(1)
    if found:
        _overwrite(path, at, bytes([found[0] ^ 0x10]))


def _overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


RUNNING, STOPPED = "running", "stopped"
HARMS: dict[str, FileHarm] = {
    "bit in the newest bytes": flip_newest_bit,
    "bit in the middle": flip_middle_bit,
    "sector zeroed": zero_newest_sector,
    "tail zeroed": zero_tail,
    "cut by a few bytes": truncate_newest_bytes,
    "cut to nothing": truncate_to_nothing,
    "deleted": delete_file,
    "older copy": older_copy,
    "replaced": replace,
}
ALL_HARMS = tuple(HARMS)
# A process that has the file open notices these only if it looks for the name.
NAMELESS = ("deleted", "replaced")


@dataclass(frozen=True)
class FileKind:
    """One kind of file. `pattern` matches its path below the data directory; "{replica}" and "{unit}" stand for the directory of a
    replica of a committed, of a unit of a sequenced log stream. `copies`: it is on every node, so that one may be lost."""

    name: str
    pattern: str
    copies: bool

    def matches(self, path: str) -> bool:
        return re.fullmatch(self.pattern, path) is not None


_NODE = r"(?:vsn-\d+|volume)/cid=\d+/snid=\d+"
_REPLICA, _UNIT = rf"{_NODE}/replica=\d+", rf"{_NODE}/unit=\d+"
_REPOSITORY = r"(?:vmr/)?metadata\.db"

KINDS: tuple[FileKind, ...] = (
    FileKind("repository: database", _REPOSITORY, copies=False),
    FileKind("repository: database's WAL", rf"{_REPOSITORY}-wal", copies=False),
    FileKind("repository: index of the WAL", rf"{_REPOSITORY}-shm", copies=False),
    FileKind("repository: journal", rf"{_REPOSITORY}\.journal", copies=False),
    FileKind("repository: journal's mirror", r"mirror/metadata\.db\.journal", copies=False),
    FileKind("repository: lock", rf"{_REPOSITORY}\.lock", copies=False),
    FileKind("node: identity", rf"{_NODE}/identity", copies=True),
    FileKind("node: lock", rf"{_NODE}/lock", copies=True),
    FileKind("node: ballast", rf"{_NODE}/ballast", copies=True),
    FileKind("node: copy of the view", rf"{_NODE}/view", copies=True),
    FileKind("node: terms and epochs", rf"{_NODE}/witness", copies=True),
    FileKind("replica: closed segment", rf"{_REPLICA}/closed\.seg", copies=True),
    FileKind("replica: index of a closed segment", rf"{_REPLICA}/closed\.idx", copies=True),
    FileKind("replica: newest segment", rf"{_REPLICA}/newest\.seg", copies=True),
    FileKind("replica: commit rows", rf"{_REPLICA}/commits\.log", copies=True),
    FileKind("replica: state", rf"{_REPLICA}/state", copies=True),
    FileKind("replica: cluster's UUID", rf"{_REPLICA}/cluster", copies=True),
    FileKind("unit: closed segment", rf"{_UNIT}/closed\.seg", copies=True),
    FileKind("unit: index of a closed segment", rf"{_UNIT}/closed\.idx", copies=True),
    FileKind("unit: newest segment", rf"{_UNIT}/newest\.seg", copies=True),
    FileKind("unit: synced mark", rf"{_UNIT}/synced", copies=True),
    FileKind("unit: state", rf"{_UNIT}/unit", copies=True),
    FileKind("unit: cluster's UUID", rf"{_UNIT}/cluster", copies=True),
    FileKind("embedded: identity", r"varlog\.json", copies=False),
    FileKind("embedded: lock", r"varlog\.lock", copies=False),
)

# Files with copies whose harm may end with `said` if the node is stopped, and why no program may decide there. A running node has
# them in memory and writes them again.
MAY_SAY: dict[str, str] = {
    "node: identity": "whose directory it is cannot be guessed (R-SN-7); the node's other volumes, or an operator, know",
}


class UnknownFile(Exception):
    """A process keeps a file of a kind that the table does not have."""


def kinds_in(directory: Path, *, nodes: Iterable[str] = ()) -> dict[str, Path]:
    """One file of each kind below a data directory; of nodes, only of those that are named, if any are."""
    found: dict[str, Path] = {}
    unknown = []
    only = tuple(nodes)
    for path in _files(directory):
        parts = path.relative_to(directory).parts
        if parts[0] in ("logs", "copies", "cluster.json", "up.lock"):
            continue
        generic = _generic(path, directory)
        kind = next((kind for kind in KINDS if kind.matches(generic)), None)
        if kind is None:
            unknown.append(str(path.relative_to(directory)))
        elif not only or parts[0] in only or not parts[0].startswith("vsn-"):
            found.setdefault(kind.name, path)
    if unknown:
        raise UnknownFile(
            f"the table of harms has no row for {unknown}: add a Kind to {Path(__file__).name}, and see what each harm does"
        )
    return found


def _files(directory: Path) -> Iterator[Path]:
    """The oldest segments first: of several closed ones it is any, of the newest it is the last that is not empty."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.endswith(".new"):
            yield path


def _generic(path: Path, directory: Path) -> str:
    """The path with what numbers do not matter for taken out."""
    relative = str(path.relative_to(directory))
    if not path.parent.name.startswith("lsid="):
        return relative
    siblings = {other.name for other in path.parent.iterdir()}
    what = "unit" if {"unit", "synced"} & siblings else "replica"
    name = path.name
    if path.suffix in (".seg", ".idx"):
        newest = max(other for other in siblings if other.endswith(".seg"))
        name = ("newest" if path.with_suffix(".seg").name == newest else "closed") + path.suffix
    where = path.parent.parent.relative_to(directory)
    return f"{where}/{path.parent.name.replace('lsid', what)}/{name}"


class Cell(msgspec.Struct, frozen=True):
    """What came of one harm of one kind of file."""

    part: str
    kind: str
    harm: str
    when: str
    outcome: str
    words: str

    @property
    def name(self) -> str:
        return f"{self.part}, {self.kind}, {self.harm}, {self.when}"


def cell_of(part: str, kind: str, harmed: str, when: str, result: HarmResult) -> Cell:
    words = result.words[0] if result.words and result.outcome is not HarmOutcome.HEALED else ""
    return Cell(part, kind, harmed, when, result.outcome, " ".join(words.split())[:300])


def wrong(found: Cell) -> str:
    """Why a cell is a bug; "" if it is as it must be."""
    if found.outcome == HarmOutcome.HEALED:
        return ""
    if found.outcome != HarmOutcome.SAID:
        return f"{found.name}: {found.outcome}: {found.words}"
    why = must_heal(found.part, found.kind, found.harm, found.when)
    return f"{found.name}: {why}, and it is not healed but said: {found.words}" if why else ""


def must_heal(part: str, kind_name: str, harmed: str, when: str) -> str:
    """Why a cell must be healed; "" if it may be said as well."""
    in_memory = harmed in NAMELESS or kind_name in MAY_SAY
    if when == RUNNING and in_memory and part != "embedded":
        return "the process that runs has all of it"
    kind = next(kind for kind in KINDS if kind.name == kind_name)
    return "there are copies" if kind.copies and part == "cluster" and kind_name not in MAY_SAY else ""


# --- results: written by each part, printed when all have ended --------------------------------------------------------


def write_results(path: Path, cells: Iterable[Cell]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(list(cells)))


def read_results(directory: Path) -> list[Cell]:
    return [
        found
        for path in sorted(directory.glob("*.json"))
        for found in msgspec.json.decode(path.read_bytes(), type=list[Cell])
    ]


def as_rows(cells: Iterable[Cell]) -> list[list[str]]:
    """A row per part, kind and state of the process, a column per harm."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for found in cells:
        rows.setdefault((found.part, found.kind, found.when), {})[found.harm] = found.outcome
    return [
        ["", "file", "process", *ALL_HARMS],
        *(
            [part, kind, when, *(by_harm.get(harmed, "-") for harmed in ALL_HARMS)]
            for (part, kind, when), by_harm in rows.items()
        ),
    ]


def as_text(cells: list[Cell]) -> str:
    rows = as_rows(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*lines, "", *_said(cells)])


def as_markdown(cells: list[Cell]) -> str:
    rows = as_rows(cells)
    lines = [
        "# The table of harms",
        "",
        "Rendered by `make faults` (`src/varlog/testing/harms/harm_table.py`); do not edit.",
        "",
        "Every file that a process keeps, what was done to it, and what came of it. *healed*: everything acknowledged is right and",
        "appends work, without a person. *said*: something is refused, with words, and nothing is wrong. *cluster*: files of one",
        "of three nodes, or of the repository, of a cluster of real processes. *mirrored*: the same, with `--journal-mirror`.",
        "*embedded*: one process, one copy of everything.",
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|" + "---|" * len(rows[0]),
        *("| " + " | ".join(row) + " |" for row in rows[1:]),
        "",
        "## What was said",
        "",
        *_said(cells, bullet="- "),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _said(cells: Iterable[Cell], bullet: str = "") -> list[str]:
    """Each message once, with the cells that end with it."""
    by_words: dict[str, list[Cell]] = {}
    for found in cells:
        if found.outcome != HarmOutcome.HEALED:
            by_words.setdefault(f"{found.outcome}, {_plain(found.words)}", []).append(found)
    return [
        f"{bullet}{found[0].part}, {found[0].kind} ({len(found)} cells, first: {found[0].harm}, {found[0].when}): {words}"
        for words, found in by_words.items()
    ]


def _plain(words: str) -> str:
    """Without what differs from run to run: times, directories, ports, numbers."""
    words = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ", "", words)
    words = re.sub(r"/\S*/((?:vsn-\d|vmr|volume|metadata|varlog)\S*)", r"…/\1", words)
    return re.sub(r"\d+", "N", words)


# Prints the table of harms, and renders its page of the documentation.
#
# python -m varlog.testing.harms.harm_table DIRECTORY PAGE


def main(directory: Path, page: Path) -> int:
    cells = read_results(directory)
    if not cells:
        print(f"no results of the table of harms in {directory}")
        return 0
    print(as_text(cells))
    page.write_text(as_markdown(cells), "utf-8")
    bugs = [found for found in map(wrong, cells) if found]
    print(f"{len(cells)} cells, {len(bugs)} of them wrong; {page}")
    return 1 if bugs else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
