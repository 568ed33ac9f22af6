"""What is_blank takes for a directory that never held an entry, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.committed.log_store import LogStore
from varlog.storage.committed.row_file import encode_row
from varlog.storage.committed.segment import segment_path
from varlog.storage.committed.state_file import ReplicaStateFile, encode_state
from varlog.storage.sequenced.page_store import PageStore
from varlog.storage.sequenced.sync_watermark import Synced, encode_slot
from varlog.storage.sequenced.unit_state import UnitStateFile, encode_unit
from varlog.storage.volume import is_blank

TOPIC, STREAM = TopicID(1), LogStreamID(1)
DISK = OsDisk()
ROW = encode_row(CommitRow(1, GLSN(1), GLSN(0), GLSN(1), LLSN(1), 1, Epoch(1)), 0)


def _made(tmp_path: Path, *, unit: bool) -> Path:
    path = tmp_path / "lsid=1"
    make = PageStore.create if unit else LogStore.create
    make(DISK, path, topic=TOPIC, log_stream=STREAM).close()
    return path


def _empty(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(b"")


def _content(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(content)


@pytest.mark.parametrize("unit", [False, True])
def test_what_was_just_made_is_blank(tmp_path: Path, unit: bool) -> None:
    assert is_blank(DISK, _made(tmp_path, unit=unit))


@pytest.mark.parametrize(
    ("unit", "lost"),
    [
        (unit, name)
        for unit in (False, True)
        for name in ("cluster", "unit" if unit else "state", "synced" if unit else "commits.log")
    ],
)
def test_what_lost_a_write_of_its_making_is_blank(tmp_path: Path, unit: bool, lost: str) -> None:
    path = _made(tmp_path, unit=unit)
    (path / lost).write_bytes(b"")
    assert is_blank(DISK, path)
    (path / lost).write_bytes(bytes(64))
    assert is_blank(DISK, path)


@pytest.mark.parametrize(
    ("unit", "change"),
    [
        (False, _content("state", encode_state(ReplicaStateFile(TOPIC, STREAM, Epoch(1))))),
        (False, _content("state", b"damaged".ljust(64))),
        (False, lambda path: (path / "state").unlink()),
        (False, _content("commits.log", bytes(64) + ROW)),
        (False, _content(segment_path(Path(), LLSN(1)).name, b"entry")),
        (False, lambda path: segment_path(path, LLSN(9)).touch()),
        (True, _content("unit", encode_unit(UnitStateFile(TOPIC, STREAM, Epoch(1))))),
        (True, _content("synced", encode_slot(Synced(1, 100)) * 2)),
        (True, _content(segment_path(Path(), LLSN(1)).name, b"page")),
    ],
    ids=("epoch", "bad state", "no state", "row", "entry", "trimmed", "unit epoch", "synced page", "page"),
)
def test_what_may_have_held_an_entry_is_not_blank(
    tmp_path: Path, unit: bool, change: Callable[[Path], object]
) -> None:
    path = _made(tmp_path, unit=unit)
    change(path)
    assert not is_blank(DISK, path)


def test_a_directory_that_is_gone_is_not_blank(tmp_path: Path) -> None:
    assert not is_blank(DISK, tmp_path / "lsid=1")
