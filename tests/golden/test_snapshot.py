"""The description of a snapshot, as version 1 writes it.

What was written once is read forever.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from varlog.model.errors import PreconditionFailed
from varlog.spark.snapshot import (
    FORMAT,
    VERSION,
    SnapshotFile,
    SnapshotTopic,
    TopicSnapshot,
    decode_topic_snapshot,
    encode_topic_snapshot,
)

GOLDEN = Path(__file__).with_name("snapshot_v1.json")
SNAPSHOT = TopicSnapshot(
    FORMAT,
    VERSION,
    SnapshotTopic(5, 3, "orders"),
    begin=1,
    position=120,
    since=100,
    rows=17,
    key="get_json_object(data::string, '$.id')",
    value="data",
    delete="length(data) = 0",
    columns="key string, value binary, glsn bigint, timestamp timestamp",
    files=(SnapshotFile("part-00000.snappy.parquet", 1234),),
)


def test_a_snapshot_is_described_as_in_version_1() -> None:
    assert encode_topic_snapshot(SNAPSHOT) == GOLDEN.read_bytes()
    assert decode_topic_snapshot(GOLDEN.read_bytes(), "golden") == SNAPSHOT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"format": "varlog-snapshot", "version": 2}',
            "of version 2, and this varlog reads .* use a newer one",
        ),
        (b'{"format": "other", "version": 1}', "is other of version 1"),
        (b'{"format": "varlog-snapshot", "version": 1}', "is no description of a snapshot"),
        (b"[]", "is no description of a snapshot"),
        (b"", "is no description of a snapshot"),
    ],
)
def test_anything_but_a_snapshot_of_this_version_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(PreconditionFailed, match=message):
        decode_topic_snapshot(content, "here")
