"""The manifest of an archive.

Every released version is read forever, and the current one is written the same way.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.archive_rules import HOLES_VERSION, ArchiveCommit, ArchivedFile, range_name
from varlog.spark.archive.manifest import commit_name, decode_commit, encode_archive_commit, read_contents

GOLDEN = Path(__file__).with_name("archive_commit_v1.json")
HOLES = Path(__file__).with_name("archive_commit_v2.json")


def commit_v1() -> ArchiveCommit:
    directory = f"topic=orders/{range_name(1001, 3001, '00112233aabbccdd')}"
    times = (1_790_000_000_000_000, 1_790_000_000_500_000, 1_790_000_001_000_000)
    files = (
        ArchivedFile(f"{directory}/part-00000-a.zstd.parquet", 1001, 2001, 65_536, times[0], times[1]),
        ArchivedFile(f"{directory}/part-00001-a.zstd.parquet", 2001, 3001, 65_000, times[1], times[2]),
    )
    return ArchiveCommit(5, 3, "orders", 1001, 3001, 130_536, times[0], times[2], 0xCBF43926, files)


def commit_v2() -> ArchiveCommit:
    """Of a sequenced topic: three positions have no row."""
    whole = commit_v1()
    return replace(whole, version=HOLES_VERSION, files=(replace(whole.files[0], missing=3), *whole.files[1:]))


@pytest.mark.parametrize(("commit", "file"), [(commit_v1(), GOLDEN), (commit_v2(), HOLES)])
def test_the_same_commit_is_written_as_the_same_bytes_and_read(commit: ArchiveCommit, file: Path) -> None:
    assert encode_archive_commit(commit) == file.read_bytes(), (
        f"{file.name}: the format changed; give it a new version and a new golden file"
    )
    assert decode_commit(file.read_bytes(), file.name) == commit


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            GOLDEN.read_bytes().replace(b'"version": 1', b'"version": 3'),
            "version 3, and this varlog reads versions 1 and 2",
        ),
        (b"{}", "no version"),
        (GOLDEN.read_bytes()[:100], "is no manifest"),
        (GOLDEN.read_bytes().replace(b'"end": 3001,', b'"end": "x",'), "is no manifest"),
    ],
)
def test_another_file_is_refused_by_name(content: bytes, message: str) -> None:
    with pytest.raises(PreconditionFailed, match=f"7.json.*{message}"):
        decode_commit(content, "7.json")


class Files(dict[str, bytes]):
    """Files of an archive in memory."""

    def names(self, directory: str) -> list[str]:
        return [name.removeprefix(f"{directory}/") for name in self if name.startswith(f"{directory}/")]

    def read(self, name: str) -> bytes:
        return self[name]


def test_a_manifest_is_read_in_the_order_of_its_numbers() -> None:
    second = ArchiveCommit(
        5, 3, "orders", 3001, 3002, 9, 1, 1, 0, (ArchivedFile("topic=orders/x/y", 3001, 3002, 9, 1, 1),)
    )
    files = Files(
        {
            commit_name("orders", 2): encode_archive_commit(second),
            commit_name("orders", 1): GOLDEN.read_bytes(),
        }
    )
    contents = read_contents(files, "orders")
    assert (contents.begin, contents.end, contents.next_number, len(contents.files)) == (1001, 3002, 3, 3)
    assert not read_contents(files, "payments")


def test_a_missing_number_is_reported() -> None:
    files = Files({commit_name("orders", 2): GOLDEN.read_bytes()})
    with pytest.raises(PreconditionFailed, match=r"00000001\.json is missing"):
        read_contents(files, "orders")
