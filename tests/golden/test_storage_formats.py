"""Every released storage format is read back forever.

The current one is written the same way.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.golden.storage_formats import (
    ENTRIES,
    FILES,
    HERE,
    IDENTITY,
    MARKS,
    PAGES,
    POINTS,
    ROWS,
    STATE,
    UNIT,
    UUID,
    VIEW_COPY,
)
from varlog.model.batch import check_body, entries_of, parse_header
from varlog.model.ids import NO_UUID, LogStreamID, TopicID
from varlog.model.lsn import LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.cluster_file import decode_cluster
from varlog.storage.committed.index import decode_index
from varlog.storage.committed.row_file import check_row_header, read_rows
from varlog.storage.committed.segment import scan
from varlog.storage.committed.state_file import decode_state
from varlog.storage.dump import dump_rows
from varlog.storage.identity import IDENTITY_NAME, Identity, read_identity
from varlog.storage.sequenced.page_recovery import scan_pages
from varlog.storage.sequenced.sidecar import decode_sidecar, encode_pages, sidecar_rows
from varlog.storage.sequenced.sync_watermark import decode_slots
from varlog.storage.sequenced.unit_state import decode_unit
from varlog.storage.view_copy import decode_view_copy


def golden(name: str) -> bytes:
    return (HERE / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_the_same_values_are_written_as_the_same_bytes(name: str) -> None:
    assert FILES[name]() == golden(name), (
        f"{name}: the format changed; give it a new version and a new golden file"
    )


def test_the_batch_of_version_1_is_read() -> None:
    content = golden("batch_v1.bin")
    header = parse_header(content)
    check_body(content, header)
    assert entries_of(content, header) == ENTRIES
    assert (header.epoch, header.first_llsn, header.producer, header.sequence) == (1, 1, 5, 1)


def test_the_segment_of_version_1_is_read() -> None:
    content = golden("segment_v1.seg")
    found = scan(lambda size, offset: content[offset : offset + size], len(content), LLSN(1))
    assert (found.batches, found.end_llsn, found.size, found.problem) == (2, 5, len(content), "")


def test_the_sidecar_of_version_1_is_read() -> None:
    index = decode_index(golden("sidecar_v1.idx"), LLSN(1001), LLSN(1010), 9070)
    assert index is not None
    assert [(index.llsn(point), index.offset(point)) for point in range(len(index))] == [
        (llsn, offset) for llsn, offset, _ in POINTS
    ]


@pytest.mark.parametrize("name", ["commits_v1.log", "commits_compacted_v1.log"])
def test_the_row_file_of_version_1_is_read(name: str) -> None:
    content = golden(name)
    check_row_header(content, TopicID(7), LogStreamID(3), Path(name))
    found = read_rows(lambda size, offset: content[offset : offset + size], len(content), Path(name))
    assert (len(found), found.end_llsn, found.torn, found.marked) == (3, 14, False, True)
    assert list(dump_rows(OsDisk(), HERE / name)) == ROWS


def test_a_row_file_that_begins_later_is_read() -> None:
    """Of a replica that was filled from one whose older entries were trimmed."""
    content, path = golden("commits_begun_v1.log"), Path("commits.log")
    begin = check_row_header(content, TopicID(7), LogStreamID(3), path)
    found = read_rows(lambda size, offset: content[offset : offset + size], len(content), path, begin)
    assert (len(found), found.begin, found.end_llsn, found.torn) == (0, 1234, 1234, False)
    assert check_row_header(golden("commits_v1.log"), TopicID(7), LogStreamID(3), path) == 1


def test_the_state_of_version_1_is_read() -> None:
    assert decode_state(golden("state_v1.bin"), Path("state")) == STATE


def test_the_identity_of_version_1_is_read() -> None:
    read = msgspec.json.decode(golden("identity_v1.json"), type=Identity)
    assert read == msgspec.structs.replace(IDENTITY, format=1, cluster_uuid=NO_UUID)


def test_the_identity_of_version_2_is_read(tmp_path: Path) -> None:
    (tmp_path / IDENTITY_NAME).write_bytes(golden("identity_v2.json"))
    read = read_identity(OsDisk(), tmp_path)
    assert read is not None
    assert msgspec.structs.replace(read, crc32c=0) == IDENTITY


@pytest.mark.parametrize(
    "name",
    ["view_copy_v1.bin", "view_copy_v1_stopped.bin", "view_copy_v1_missed.bin", "view_copy_v1_terms.bin"],
)
def test_the_copy_of_the_view_of_version_1_is_read(name: str) -> None:
    assert decode_view_copy(golden(name), HERE / name) == VIEW_COPY


@pytest.mark.parametrize("name", ["view_copy_v2.bin", "view_copy_v3.bin"])
def test_the_copy_of_the_view_of_versions_2_and_3_is_read(name: str) -> None:
    assert decode_view_copy(golden(name), HERE / name) == VIEW_COPY


def test_the_cluster_of_a_replica_of_version_1_is_read() -> None:
    assert decode_cluster(golden("cluster_v1.bin"), HERE / "cluster_v1.bin") == UUID


def test_the_unit_of_version_1_is_read() -> None:
    assert decode_unit(golden("unit_v1.bin"), Path("unit")) == UNIT


def test_the_page_segment_of_version_1_is_read() -> None:
    content = golden("page_segment_v1.seg")
    found = scan_pages(lambda size, offset: content[offset : offset + size], len(content), len(content))
    assert [(page.first_llsn, page.end_llsn, page.is_junk) for page in found.pages] == [
        (4, 5, False),
        (5, 7, True),
        (1, 4, False),
    ]
    assert (found.size, found.problem, found.corrupt_ranges) == (len(content), "", [])


def test_the_page_sidecar_of_version_1_is_read() -> None:
    rows = decode_sidecar(golden("page_sidecar_v1.idx"), 4, 272)
    assert rows is not None and rows.tolist() == sidecar_rows(encode_pages(PAGES)).tolist()


def test_the_synced_mark_of_version_1_is_read() -> None:
    assert decode_slots(golden("synced_v1.bin")) == MARKS
