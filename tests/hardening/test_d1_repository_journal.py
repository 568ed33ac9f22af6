"""D1: harm to the repository's own files.

A bad bit, a bad sector or a missing end of its journal was taken for a shorter journal, and a bad bit or an older copy
of its database was served: acknowledged positions were assigned to other entries. Now every acknowledged commit is
present, or the store refuses to open and names the remedy. One bad sector never stops it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from varlog.metarepo.store import journal as journals
from varlog.metarepo.store.base import DeleteItem, DeleteItems, PutItem, StoreChange
from varlog.metarepo.store.journal import SECTOR_BYTES, apply_changes
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.errors import StartupError
from varlog.runtime.disk import OsDisk
from varlog.runtime.environment import Environment, system_environment
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.drive import Drive
from varlog.testing.sim.core.loop import Process

DATABASE = "metadata.db"
JOURNAL = "metadata.db.journal"
FOLDER = Path("/data")
SALTS = random.Random(7)  # every opening has another one
Files = dict[str, bytes]
Items = dict[str, bytes]

CUTS: list[list[StoreChange]] = [
    [PutItem(f"cut/{number:03d}", bytes([number]) * 40)] for number in range(1, 9)
]
STORIES: dict[str, list[list[StoreChange]]] = {
    "nothing": [],
    "one": CUTS[:1],
    "all in the journal": CUTS,
    "of several sectors": [*CUTS[:3], [PutItem("members", bytes(range(250)) * 60), DeleteItem("cut/001")]],
    "a base between": [*CUTS[:5], [PutItem("base", b"5"), DeleteItems("cut/", "cut/005")], *CUTS[5:]],
    "a base at the end": [*CUTS[:5], [PutItem("base", b"5"), DeleteItems("cut/", "cut/005")]],
    "several laps": [
        *CUTS,
        *CUTS,
        *CUTS,
        *list[list[StoreChange]]([PutItem("x", bytes([n]))] for n in range(30)),
    ],
    "one too large for the journal": [*CUTS[:2], [PutItem("members", bytes(200_000))], *CUTS[2:4]],
}


@pytest.fixture(autouse=True)
def _small_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "JOURNAL_BYTES", 28 * SECTOR_BYTES)


def _environment(drive: Drive) -> Environment:
    process = Process("mr")
    disk = SimDisk(drive, process, random.Random(1), process.die)
    disk.make_directory(FOLDER)
    return dataclasses.replace(system_environment(), disk=disk, entropy=SALTS)


def _drive(files: Files) -> tuple[Drive, Environment]:
    drive = Drive()
    environment = _environment(drive)
    for name, content in files.items():
        environment.disk.replace_file(FOLDER / name, content)
    return drive, environment


def _files(drive: Drive) -> Files:
    return {name: bytes(drive.file(FOLDER / name).content) for name in (DATABASE, JOURNAL)}


def _expected(commits: Sequence[Sequence[StoreChange]], before: Items | None = None) -> Items:
    items = dict(before or {})
    for changes in commits:
        apply_changes(items, changes)
    return dict(sorted(items.items()))


def _run(files: Files, commits: Sequence[Sequence[StoreChange]], *, killed: bool = True) -> list[Files]:
    """The files after each commit; and after the end, if that is a clean one."""

    async def body() -> list[Files]:
        drive, environment = _drive(files)
        store = SqliteStore(FOLDER / DATABASE, environment)
        await store.open()
        seen = [_files(drive)]
        for changes in commits:
            await store.commit(changes)
            seen.append(_files(drive))
        if not killed:
            await store.close()
            seen.append(_files(drive))
        return seen

    return asyncio.run(body())


def _opened(files: Files) -> tuple[Items, list[str]]:
    async def body() -> tuple[Items, list[str]]:
        _, environment = _drive(files)
        store = SqliteStore(FOLDER / DATABASE, environment)
        items = (await store.open()).items
        await store.close()
        return items, store.complaints

    return asyncio.run(body())


def _right_or_said(files: Files, expected: Items) -> bool:
    """Whether it opened; if so, it must have everything that was acknowledged."""
    try:
        items, _ = _opened(files)
    except StartupError:
        return False
    assert items == expected
    return True


def _flip(at: int) -> Callable[[bytearray], None]:
    def harm(sector: bytearray) -> None:
        sector[at] ^= 1 << at % 8

    return harm


def _fill(value: bytes) -> Callable[[bytearray], None]:
    def harm(sector: bytearray) -> None:
        sector[:] = (value * len(sector))[: len(sector)]

    return harm


SECTOR_HARMS: dict[str, Callable[[bytearray], None]] = {
    **{f"bit of byte {at}": _flip(at) for at in (0, 4, 9, 24, 33, 41, 44, 48, 52, 54, 57, 58, 61, 90, 4095)},
    "zeros": _fill(b"\0"),
    "ones": _fill(b"\xff"),
    "another sector": _fill(random.Random(1).randbytes(SECTOR_BYTES)),
}


def _harmed(content: bytes, place: int, harm: Callable[[bytearray], None]) -> bytes:
    sector = bytearray(content[place * SECTOR_BYTES : (place + 1) * SECTOR_BYTES])
    harm(sector)
    return content[: place * SECTOR_BYTES] + bytes(sector) + content[(place + 1) * SECTOR_BYTES :]


@pytest.fixture(scope="module", params=STORIES)
def killed(request: pytest.FixtureRequest) -> Iterator[tuple[Files, Items]]:
    """The files of a repository that was killed, and what it had acknowledged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "JOURNAL_BYTES", 28 * SECTOR_BYTES)
        commits = STORIES[request.param]
        yield _run({}, commits)[-1], _expected(commits)


def test_without_harm_everything_is_present_and_nothing_is_reported(killed: tuple[Files, Items]) -> None:
    files, expected = killed
    assert _opened(files) == (expected, [])


@pytest.mark.parametrize("harm", SECTOR_HARMS)
def test_one_bad_sector_of_the_journal_loses_nothing(killed: tuple[Files, Items], harm: str) -> None:
    files, expected = killed
    for place in range(len(files[JOURNAL]) // SECTOR_BYTES):
        harmed = _harmed(files[JOURNAL], place, SECTOR_HARMS[harm])
        assert _opened({**files, JOURNAL: harmed})[0] == expected, place


def test_a_bad_copy_of_a_commit_is_reported(tmp_path: Path) -> None:
    files = _run({}, CUTS)[-1]
    for place in range(2, 2 + 2 * len(CUTS)):
        _, complaints = _opened({**files, JOURNAL: _harmed(files[JOURNAL], place, _flip(70))})
        said = f"one copy of commit {place // 2} is damaged (sectors [{place}]); the other one was used"
        assert complaints == [f"{FOLDER / JOURNAL}: {said}"]


@pytest.mark.parametrize("harm", ["zeros", "ones", "bit of byte 61"])
def test_adjacent_bad_sectors_lose_nothing_silently(killed: tuple[Files, Items], harm: str) -> None:
    """Both copies of one commit. One bit in each copy of the newest one looks like a write in flight, until an empty
    commit follows it: only that commit may be gone, and the storage nodes know of it."""
    files, expected = killed
    for place in range(2, len(files[JOURNAL]) // SECTOR_BYTES - 2, 2):
        harmed = _harmed(files[JOURNAL], place, SECTOR_HARMS[harm])
        harmed = _harmed(harmed, place + 1, SECTOR_HARMS[harm])
        try:
            items, _ = _opened({**files, JOURNAL: harmed})
        except StartupError:
            continue
        assert items == expected or (harm.startswith("bit") and len(items) >= len(expected) - 1)


def test_after_a_pause_two_bad_copies_of_the_newest_commit_are_reported() -> None:
    """An empty commit follows the newest one: damage in both copies cannot be a write in flight."""

    async def body() -> Files:
        drive, environment = _drive({})
        store = SqliteStore(FOLDER / DATABASE, environment)
        await store.open()
        for changes in CUTS:
            await store.commit(changes)
        store._write_mark()
        return _files(drive)

    files = asyncio.run(body())
    newest = 2 + 2 * (len(CUTS) - 1)
    harmed = _harmed(_harmed(files[JOURNAL], newest, _flip(61)), newest + 1, _flip(61))
    with pytest.raises(StartupError, match="commit 8 cannot be read, and commit 9 is there"):
        _opened({**files, JOURNAL: harmed})
    assert _opened(files) == (_expected(CUTS), [])


def test_a_journal_of_another_length_is_right_or_refused(killed: tuple[Files, Items]) -> None:
    files, expected = killed
    whole = files[JOURNAL]
    for missing in (1, 3, 7, 512, 4095, 4096, 4097, 10_000, len(whole) // 2, len(whole) - 1, len(whole)):
        with pytest.raises(StartupError, match=r"metadata\.db\.journal"):
            _opened({**files, JOURNAL: whole[: len(whole) - missing]})
    for more in (b"\0", b"12345", bytes(4096)):
        items, complaints = _opened({**files, JOURNAL: whole + more})
        assert items == expected and "longer than it was made" in complaints[0]


def test_a_zeroed_tail_is_right_or_refused(killed: tuple[Files, Items]) -> None:
    files, expected = killed
    whole = files[JOURNAL]
    for begin in (*range(0, len(whole), SECTOR_BYTES), *range(100, len(whole), 3 * SECTOR_BYTES)):
        zeroed = whole[:begin] + bytes(len(whole) - begin)
        _right_or_said({**files, JOURNAL: zeroed}, expected)


@pytest.mark.parametrize("missing", [DATABASE, JOURNAL])
def test_a_missing_file_is_reported(killed: tuple[Files, Items], missing: str) -> None:
    files, _ = killed
    with pytest.raises(StartupError, match="missing"):
        _opened({name: content for name, content in files.items() if name != missing})


def test_a_missing_journal_after_a_clean_end_is_reported_and_not_needed() -> None:
    files = _run({}, CUTS, killed=False)[-1]
    items, complaints = _opened({DATABASE: files[DATABASE]})
    assert items == _expected(CUTS) and "journal is missing" in complaints[0]


# --- older copies -----------------------------------------------------------------------------------------------------------


def _three_openings(*, killed: bool) -> tuple[list[Files], Items]:
    """The files of three openings, each with commits that the previous one lacks, after every commit."""
    seen: list[Files] = []
    commits: list[list[StoreChange]] = []
    for nth in range(3):
        more: list[list[StoreChange]] = [[PutItem(f"{nth}/{number}", bytes([number]))] for number in range(4)]
        more.insert(2, [PutItem("base", bytes([nth])), DeleteItems(f"{nth}/", f"{nth}/1")])
        seen += _run(seen[-1] if seen else {}, more, killed=killed)
        commits += more
    return seen, _expected(commits)


@pytest.mark.parametrize("killed_each_time", [True, False])
def test_an_older_database_beside_the_newest_journal_is_right_or_refused(killed_each_time: bool) -> None:
    """A journal that still has everything that an older database lacks completes it; any other one is refused."""
    seen, expected = _three_openings(killed=killed_each_time)
    answers = [_right_or_said({**seen[-1], DATABASE: older[DATABASE]}, expected) for older in seen]
    assert answers[-1] and not any(answers[:5])


@pytest.mark.parametrize("killed_each_time", [True, False])
def test_an_older_journal_beside_the_newest_database_is_right_or_refused(killed_each_time: bool) -> None:
    """Of an earlier opening, or older than the newest base. What was only in the journal since then is known to other
    processes: the storage nodes."""
    seen, expected = _three_openings(killed=killed_each_time)
    last_base = max(nth for nth, files in enumerate(seen) if files[DATABASE] != seen[-1][DATABASE])
    last = _run(seen[-1], [[PutItem("newest", b"")]])[-1]  # without a base
    for older in seen:
        _right_or_said({**last, JOURNAL: older[JOURNAL]}, {**expected, "newest": b""})
    for older in seen[: last_base + 1]:
        _right_or_said({**seen[-1], JOURNAL: older[JOURNAL]}, expected)


def test_files_of_two_repositories_are_refused() -> None:
    files = _run({}, CUTS)[-1]

    async def body() -> Files:
        drive, environment = _drive({})
        store = SqliteStore(FOLDER / DATABASE, environment)
        await store.open()
        await store.commit([PutItem("of another cluster", b"")])
        return _files(drive)

    other = asyncio.run(body())
    for mixed in ({**files, DATABASE: other[DATABASE]}, {**files, JOURNAL: other[JOURNAL]}):
        with pytest.raises(StartupError, match="older copy"):
            _opened(mixed)


# --- the database -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", ["a base between", "a base at the end"])
def test_a_flipped_bit_anywhere_in_the_database_is_right_or_refused(story: str) -> None:
    files, expected = _run({}, STORIES[story])[-1], _expected(STORIES[story])
    refused = 0
    for at in range(0, len(files[DATABASE]), 13):
        content = bytearray(files[DATABASE])
        content[at] ^= 1 << at % 8
        refused += not _right_or_said({**files, DATABASE: bytes(content)}, expected)
    assert refused


def test_a_flipped_bit_in_a_value_names_its_key() -> None:
    files = _run({}, STORIES["a base at the end"])[-1]
    content = bytearray(files[DATABASE])
    content[content.index(bytes([5]) * 40) + 7] ^= 16
    with pytest.raises(StartupError, match=r"the value of key 'cut/005' is damaged.*vmr recover"):
        _opened({**files, DATABASE: bytes(content)})


def test_an_older_page_of_the_database_is_right_or_refused() -> None:
    """A write that the device lost: the page was valid once, and SQLite sees nothing wrong with it."""
    commits: list[list[StoreChange]] = [
        [PutItem(f"key/{number:03d}", bytes([nth]) * 100), DeleteItems("x", "y")]
        for nth in range(3)
        for number in range(60)
    ]
    seen = _run({}, commits)
    newest, expected = seen[-1], _expected(commits)
    refused = 0
    for older in (seen[100], seen[150]):
        for at in range(0, len(older[DATABASE]), 4096):
            if older[DATABASE][at : at + 4096] != newest[DATABASE][at : at + 4096]:
                mixed = (
                    newest[DATABASE][:at] + older[DATABASE][at : at + 4096] + newest[DATABASE][at + 4096 :]
                )
                refused += not _right_or_said({**newest, DATABASE: mixed}, expected)
    assert refused >= 4


# --- the mirror of the journal ------------------------------------------------------------------------------------------------

MIRROR = Path("/mirror")


def _mirrored(
    files: dict[Path, bytes], commits: Sequence[Sequence[StoreChange]]
) -> tuple[Items, list[str], dict[Path, bytes]]:
    """Open with a mirror and commit: what it found, what it reported, and all files after it was killed."""

    async def body() -> tuple[Items, list[str], dict[Path, bytes]]:
        drive = Drive()
        environment = _environment(drive)
        environment.disk.make_directory(MIRROR)
        for path, content in files.items():
            environment.disk.replace_file(path, content)
        store = SqliteStore(FOLDER / DATABASE, environment, mirror=MIRROR)
        items = (await store.open()).items
        for changes in commits:
            await store.commit(changes)
        paths = (FOLDER / DATABASE, FOLDER / JOURNAL, MIRROR / JOURNAL)
        return items, store.complaints, {path: bytes(drive.file(path).content) for path in paths}

    return asyncio.run(body())


@pytest.mark.parametrize("harm", ["gone", "empty", "zeros", "cut short", "both copies of a commit", "older"])
@pytest.mark.parametrize("harmed", [FOLDER / JOURNAL, MIRROR / JOURNAL])
def test_with_a_mirror_either_journal_may_be_lost(harmed: Path, harm: str) -> None:
    older = _mirrored({}, CUTS[:2])[2]
    files = _mirrored(older, CUTS)[2]
    whole = files[harmed]
    assert files[FOLDER / JOURNAL] == files[MIRROR / JOURNAL]
    if harm == "gone":
        del files[harmed]
    elif harm == "empty":
        files[harmed] = b""
    elif harm == "zeros":
        files[harmed] = bytes(len(whole))
    elif harm == "cut short":
        files[harmed] = whole[:-5]
    elif harm == "older":
        files[harmed] = older[harmed]
    else:
        files[harmed] = _harmed(_harmed(whole, 6, _flip(70)), 7, _flip(70))
    items, complaints, _ = _mirrored(files, [])
    assert items == _expected(CUTS)
    assert any(str(harmed) in complaint for complaint in complaints)


def test_the_journal_that_knows_more_commits_is_used() -> None:
    """The first lost two commits in both copies and has those behind them; the mirror is from a moment before them."""
    files = _mirrored({}, CUTS)[2]
    harmed, older = files[FOLDER / JOURNAL], files[MIRROR / JOURNAL]
    blank = older[24 * SECTOR_BYTES : 25 * SECTOR_BYTES]
    for place in (6, 7, 8, 9):
        harmed = _harmed(harmed, place, _flip(70))
    for place in range(6, 24):
        older = _harmed(older, place, _fill(blank))
    with pytest.raises(StartupError, match="commit 3 cannot be read"):
        _mirrored({**files, FOLDER / JOURNAL: harmed, MIRROR / JOURNAL: older}, [])


def test_a_mirror_that_fails_is_abandoned_and_reported() -> None:
    async def body() -> tuple[Items, list[str]]:
        drive = Drive()
        environment = _environment(drive)
        store = SqliteStore(FOLDER / DATABASE, environment, mirror=MIRROR)  # there is no such directory
        await store.open()
        for changes in CUTS:
            await store.commit(changes)
        complaints = store.complaints
        await store.close()
        again = SqliteStore(FOLDER / DATABASE, environment)
        return (await again.open()).items, complaints

    items, complaints = asyncio.run(body())
    assert items == _expected(CUTS)
    assert len(complaints) == 1 and "no mirror any more: /mirror/metadata.db.journal" in complaints[0]


# --- with the real files ------------------------------------------------------------------------------------------------------


def _left_by_a_kill(path: Path, commits: Sequence[Sequence[StoreChange]]) -> Path:
    """A copy of the directory of an open store: what kill -9 leaves, with SQLite's own log."""
    path.mkdir()

    async def body() -> Path:
        store = SqliteStore(
            path / DATABASE, dataclasses.replace(system_environment(), disk=OsDisk(synced=False))
        )
        await store.open()
        for changes in commits:
            await store.commit(changes)
        left = path.with_name("left")
        shutil.copytree(path, left)
        await store.close()
        return left

    return asyncio.run(body())


def _real_items(path: Path) -> Items:
    async def body() -> Items:
        store = SqliteStore(
            path / DATABASE, dataclasses.replace(system_environment(), disk=OsDisk(synced=False))
        )
        try:
            return (await store.open()).items
        finally:
            await store.close()

    return asyncio.run(body())


@pytest.mark.parametrize("story", ["a base between", "one too large for the journal"])
def test_harm_to_the_write_ahead_log_of_sqlite_is_right_or_refused(tmp_path: Path, story: str) -> None:
    """To SQLite a bad frame, or a missing end, is the end of its log."""
    commits = STORIES[story]
    left = _left_by_a_kill(tmp_path / "store", commits)
    expected = _expected(commits)
    log = (left / f"{DATABASE}-wal").read_bytes()
    assert _real_items(shutil.copytree(left, tmp_path / "unharmed")) == expected
    refused = 0
    steps = range(0, len(log), max(1000, len(log) // 25))
    harms = [log[:at] for at in steps] + [log[:at] + bytes([log[at] ^ 4]) + log[at + 1 :] for at in steps]
    for nth, harmed in enumerate(harms):
        copy = shutil.copytree(left, tmp_path / f"harmed {nth}")
        (copy / f"{DATABASE}-wal").write_bytes(harmed)
        try:
            assert _real_items(copy) == expected
        except StartupError:
            refused += 1
    assert refused
