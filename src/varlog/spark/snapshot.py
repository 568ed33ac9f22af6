"""TopicSnapshot: the newest value of each key of a topic, up to a position.

Reading it needs no Spark.

    PATH/part-*.parquet     columns key, value, glsn, timestamp: one row per key, in no order
    PATH/_snapshot.json     what it is, and which files belong to it; without it a directory is no snapshot

A state machine loads the rows, and then subscribes from `position + 1` on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.files import ArrowFiles

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "varlog-snapshot"
VERSION: Final = 1
DESCRIPTION: Final = "_snapshot.json"


class SnapshotFile(msgspec.Struct, frozen=True):
    name: str
    bytes: int


class SnapshotTopic(msgspec.Struct, frozen=True):
    """Topics are identified by their number: one that was deleted and recreated has another."""

    cluster: int
    id: int
    name: str


class TopicSnapshot(msgspec.Struct, frozen=True):
    """`position`: every entry from `begin` up to this one is in. `key`, `value`, `delete`: the SQL that was applied to each
    entry ("" for none). `columns`: those of the files, as Spark writes them. `since`: the position of the snapshot that this
    one continued from, 0 if it began with the log."""

    format: str
    version: int
    topic: SnapshotTopic
    begin: int
    position: int
    since: int
    rows: int
    key: str
    value: str
    delete: str
    columns: str
    files: tuple[SnapshotFile, ...]


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot on its file system."""

    path: str
    about: TopicSnapshot

    @property
    def position(self) -> int:
        """The last position of the snapshot: subscribe from the next one on."""
        return self.about.position

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its rows, batch by batch."""
        import pyarrow.parquet as pq

        files = ArrowFiles(self.path)
        for file in self.about.files:
            with files.open(file.name) as opened:
                yield from pq.ParquetFile(opened).iter_batches()


def read_snapshot(path: str) -> StoredSnapshot:
    """The snapshot at a path: a local one, or a URI that pyarrow knows. Refused if it is none, or incomplete."""
    files = ArrowFiles(path)
    if DESCRIPTION not in files.names(""):
        raise PreconditionFailed(
            f"{files.path} is no snapshot: there is no {DESCRIPTION}, which is written last"
        )
    about = decode_topic_snapshot(files.read(DESCRIPTION), f"{files.path}/{DESCRIPTION}")
    check_files(about, {file.name: _size(files, file.name) for file in about.files}, files.path)
    return StoredSnapshot(files.path, about)


def check_files(about: TopicSnapshot, sizes: dict[str, int], path: str) -> None:
    """On a file system that renames by copying, the rename may have been interrupted."""
    for file in about.files:
        if sizes.get(file.name, -1) != file.bytes:
            raise PreconditionFailed(
                f"the snapshot {path} is damaged: {file.name} is missing, or does not have its {file.bytes} bytes"
            )


def encode_topic_snapshot(about: TopicSnapshot) -> bytes:
    """Readable JSON."""
    return msgspec.json.format(msgspec.json.encode(about), indent=2) + b"\n"


def decode_topic_snapshot(content: bytes, place: str) -> TopicSnapshot:
    try:
        kind = msgspec.json.decode(content, type=_Kind)
        if kind.format != FORMAT or kind.version != VERSION:
            raise PreconditionFailed(
                f"{place} is {kind.format} of version {kind.version}, and this varlog reads {FORMAT} of version {VERSION}: use "
                "a newer one"
            )
        return msgspec.json.decode(content, type=TopicSnapshot)
    except msgspec.MsgspecError as error:
        raise PreconditionFailed(f"{place} is no description of a snapshot: {error}") from error


class _Kind(msgspec.Struct, frozen=True):
    """What every version has."""

    format: str
    version: int


def _size(files: ArrowFiles, name: str) -> int:
    if name not in files.names(""):
        return -1
    with files.open(name) as opened:
        size: int = opened.size()
        return size
