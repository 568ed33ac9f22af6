"""The `cluster` file of a replica or log unit: the UUID of its cluster.

A directory can be copied or mounted elsewhere, and a repository can lose its metadata and begin with the same ids: what belongs to
another cluster is not this one's to remove, to report or to write to. Written before the replica exists, and never changed.

offset  size  field (little endian)
     0     4  magic "VLC1"
     4     2  format version
     6     2  reserved, zero
     8    16  the cluster's UUID
    24     4  reserved, zero
    28     4  CRC32C of bytes 0 to 27
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from varlog.model.batch import crc32c
from varlog.model.errors import CorruptReplica
from varlog.model.ids import NO_UUID, ClusterUUID
from varlog.runtime.disk import Disk

CLUSTER_NAME: Final = "cluster"
CLUSTER_BYTES: Final = 32
_FORMAT_VERSION: Final = 1

_MAGIC: Final = b"VLC1"
_CLUSTER = struct.Struct("<4sHH16sI")
_CRC = struct.Struct("<I")


def encode_cluster(uuid: ClusterUUID) -> bytes:
    """The file's bytes."""
    content = _CLUSTER.pack(_MAGIC, _FORMAT_VERSION, 0, bytes.fromhex(uuid.replace("-", "")), 0)
    return content + _CRC.pack(crc32c(content))


def decode_cluster(content: bytes, path: Path) -> ClusterUUID:
    """The UUID in `content`; CorruptReplica names `path` if these are not the bytes that were written."""
    if len(content) != CLUSTER_BYTES:
        raise CorruptReplica(str(path), f"it has {len(content)} bytes, not {CLUSTER_BYTES}")
    (crc,) = _CRC.unpack_from(content, CLUSTER_BYTES - _CRC.size)
    if crc != crc32c(content[: -_CRC.size]):
        raise CorruptReplica(str(path), "its checksum is wrong")
    magic, version, flags, uuid, reserved = _CLUSTER.unpack_from(content)
    if magic != _MAGIC:
        raise CorruptReplica(str(path), "it is not the cluster of a replica")
    if version != _FORMAT_VERSION or flags or reserved:
        raise CorruptReplica(
            str(path), f"format version {version} is not known here (this is version {_FORMAT_VERSION})"
        )
    digits = uuid.hex()
    return ClusterUUID("-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))


def read_cluster(disk: Disk, directory: Path) -> ClusterUUID:
    """The cluster of the replica in `directory`; NO_UUID if it belongs to none yet."""
    path = directory / CLUSTER_NAME
    return decode_cluster(disk.read_file(path), path) if disk.exists(path) else NO_UUID


def write_cluster(disk: Disk, directory: Path, uuid: ClusterUUID) -> None:
    """Bind the replica in `directory`, durably."""
    if uuid:
        disk.replace_file(directory / CLUSTER_NAME, encode_cluster(uuid))
