"""The `unit` file of a log unit: epoch and trim point (laws 7, 9).

It is replaced as a whole, so a crash leaves the old or the new one. A directory with this file is a log unit (sequenced
ordering), one with `state` a replica.

offset  size  field (little endian)
     0     4  magic "VLU1"
     4     2  format version
     6     2  reserved, zero
     8     8  topic
    16     8  log stream
    24     8  epoch
    32     8  low LLSN: nothing below it exists any more
    40     8  the oldest segment that is not trimmed
    48    12  reserved, zero
    60     4  CRC32C of bytes 0 to 59
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.batch import crc32c
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.errors import CorruptReplica
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.runtime.disk import Disk

UNIT_NAME: Final = "unit"
UNIT_BYTES: Final = 64
_FORMAT_VERSION: Final = 1
FIRST_SEGMENT: Final = 1

_MAGIC: Final = b"VLU1"
_RESERVED: Final = bytes(12)
_UNIT = struct.Struct("<4sHHQQQQQ12s")
_CRC = struct.Struct("<I")


class UnitStateFile(msgspec.Struct, frozen=True):
    """What a log unit must persist besides its pages."""

    topic: TopicID
    log_stream: LogStreamID
    epoch: Epoch = NO_EPOCH
    low: LLSN = FIRST_LLSN
    first_segment: int = FIRST_SEGMENT


def encode_unit(state: UnitStateFile) -> bytes:
    """The file's bytes."""
    content = _UNIT.pack(
        _MAGIC,
        _FORMAT_VERSION,
        0,
        state.topic,
        state.log_stream,
        state.epoch,
        state.low,
        state.first_segment,
        _RESERVED,
    )
    return content + _CRC.pack(crc32c(content))


def decode_unit(content: bytes, path: Path) -> UnitStateFile:
    """The state in `content`; CorruptReplica names `path` if these are not the bytes that were written."""
    if len(content) != UNIT_BYTES:
        raise CorruptReplica(str(path), f"it has {len(content)} bytes, not {UNIT_BYTES}")
    (crc,) = _CRC.unpack_from(content, UNIT_BYTES - _CRC.size)
    if crc != crc32c(content[: -_CRC.size]):
        raise CorruptReplica(str(path), "its checksum is wrong")
    magic, version, flags, topic, log_stream, epoch, low, first_segment, reserved = _UNIT.unpack_from(content)
    if magic != _MAGIC:
        raise CorruptReplica(str(path), "it is not the state of a log unit")
    if version != _FORMAT_VERSION or flags or reserved != _RESERVED:
        raise CorruptReplica(
            str(path), f"format version {version} is not known here (this is version {_FORMAT_VERSION})"
        )
    return UnitStateFile(topic, log_stream, epoch, low, first_segment)


def read_unit(disk: Disk, directory: Path) -> UnitStateFile:
    """The state of the log unit in `directory`."""
    path = directory / UNIT_NAME
    if not disk.exists(path):
        raise CorruptReplica(str(path), "it is missing")
    return decode_unit(disk.read_file(path), path)


def write_unit(disk: Disk, directory: Path, state: UnitStateFile) -> None:
    """Write `state`, durably, in place of the one before."""
    disk.replace_file(directory / UNIT_NAME, encode_unit(state))
