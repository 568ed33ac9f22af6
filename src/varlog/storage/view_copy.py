"""The copy of the cluster's view that each storage node keeps.

The metadata repository is one process over one store. Batches, commit rows, epochs and trim points are on the nodes; names, replica
sets and projections are in this copy: together they are enough to rebuild the repository (`vmr recover`). Replaced whole.

offset  size  field (little endian)
     0     4  magic "VLV1"
     4     2  format version
     6     2  reserved, zero
     8     4  bytes of the content
    12     4  CRC32C of the content
    16        the content: ViewCopy as MessagePack
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.batch import Buffer, crc32c
from varlog.model.cluster import ClusterView
from varlog.model.errors import CorruptReplica
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.projection import with_present_keys
from varlog.runtime.disk import Disk
from varlog.storage.metadata_files import scrub_file

VIEW_NAME: Final = "view"
# Versions 1 and 2 had other keys: see with_present_keys.
_FORMAT_VERSION: Final = 3

_MAGIC: Final = b"VLV1"
_HEAD = struct.Struct("<4sHHII")


class ViewCopy(msgspec.Struct, frozen=True):
    """What the repository of `term` knew at one revision, as far as the order does not say it. Ids below `next_topic` and
    `next_log_stream` were given out; `unused` and `foreign` as in Members. A field may be added, with a default."""

    term: int
    view: ClusterView
    next_topic: TopicID
    next_log_stream: LogStreamID
    unused: tuple[LogStreamID, ...] = ()
    foreign: tuple[tuple[LogStreamID, LogStreamID], ...] = ()


def encode_view_copy(copy: ViewCopy) -> bytes:
    """The file's bytes."""
    content = msgspec.msgpack.encode(copy)
    return _HEAD.pack(_MAGIC, _FORMAT_VERSION, 0, len(content), crc32c(content)) + content


def decode_view_copy(content: Buffer, path: Path) -> ViewCopy:
    """The copy in `content`; CorruptReplica names `path` if these are not the bytes that were written."""
    if len(content) < _HEAD.size:
        raise CorruptReplica(str(path), f"it has {len(content)} bytes")
    magic, version, flags, size, crc = _HEAD.unpack_from(content)
    body = bytes(content[_HEAD.size :])
    if magic != _MAGIC:
        raise CorruptReplica(str(path), "it is not a copy of the view")
    if not 1 <= version <= _FORMAT_VERSION or flags:
        raise CorruptReplica(
            str(path), f"format version {version} is not known here (this is version {_FORMAT_VERSION})"
        )
    if len(body) != size or crc32c(body) != crc:
        raise CorruptReplica(str(path), "its length or checksum is wrong")
    try:
        if version < _FORMAT_VERSION:
            body = msgspec.msgpack.encode(with_present_keys(msgspec.msgpack.decode(body)))
        return msgspec.msgpack.decode(body, type=ViewCopy)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptReplica(str(path), str(error)) from error


def read_view_copies(disk: Disk, homes: Sequence[Path]) -> list[tuple[ViewCopy, bytes]]:
    """Every intact copy in a node's directories, the newest first. Damaged ones are skipped: there are others."""
    found = []
    for home in homes:
        path = home / VIEW_NAME
        if not disk.exists(path):
            continue
        content = disk.read_file(path)
        try:
            found.append((decode_view_copy(content, path), content))
        except CorruptReplica:
            continue
    return sorted(found, key=lambda one: one[0].view.revision, reverse=True)


def scrub_view_copy(disk: Disk, homes: Sequence[Path], content: bytes) -> str:
    """Rewrite the copies that are not `content`, which was written last; returns which, or ''."""
    return "; ".join(filter(None, (scrub_file(disk, home / VIEW_NAME, content) for home in homes)))


def write_view_copy(disk: Disk, homes: Sequence[Path], content: bytes) -> None:
    """Write a copy to every directory of a node, durably, in place of the one before."""
    for home in homes:
        disk.replace_file(home / VIEW_NAME, content)
