"""The `state` file of a replica: epoch, seal and trim point (laws 6, 9).

It is replaced as a whole, so a crash leaves the old or the new one.

offset  size  field (little endian)
     0     4  magic "VLS1"
     4     2  format version
     6     2  flags (bit 0: the epoch was opened by an unseal; the rest must be zero)
     8     8  topic
    16     8  log stream
    24     8  epoch
    32     8  sealed end: one past the last LLSN ordered before the newest seal
    40     8  newest trimmed GLSN of the topic
    48     8  low LLSN: one past the newest trimmed entry of this stream
    56     4  reserved, zero
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
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN, NO_GLSN
from varlog.runtime.disk import Disk

STATE_NAME: Final = "state"
STATE_BYTES: Final = 64
_FORMAT_VERSION: Final = 1

_MAGIC: Final = b"VLS1"
_OPENED: Final = 1
_STATE = struct.Struct("<4sHHQQQQQQI")
_CRC = struct.Struct("<I")


class ReplicaStateFile(msgspec.Struct, frozen=True):
    """What a replica must persist besides its entries and their order."""

    topic: TopicID
    log_stream: LogStreamID
    epoch: Epoch = NO_EPOCH
    opened: bool = False
    sealed_end: LLSN = FIRST_LLSN
    trimmed: GLSN = NO_GLSN
    low_llsn: LLSN = FIRST_LLSN


def encode_state(state: ReplicaStateFile) -> bytes:
    """The file's bytes."""
    content = _STATE.pack(
        _MAGIC,
        _FORMAT_VERSION,
        _OPENED if state.opened else 0,
        state.topic,
        state.log_stream,
        state.epoch,
        state.sealed_end,
        state.trimmed,
        state.low_llsn,
        0,
    )
    return content + _CRC.pack(crc32c(content))


def decode_state(content: bytes, path: Path) -> ReplicaStateFile:
    """The state in `content`; CorruptReplica names `path` if these are not the bytes that were written."""
    if len(content) != STATE_BYTES:
        raise CorruptReplica(str(path), f"it has {len(content)} bytes, not {STATE_BYTES}")
    (crc,) = _CRC.unpack_from(content, STATE_BYTES - _CRC.size)
    if crc != crc32c(content[: -_CRC.size]):
        raise CorruptReplica(str(path), "its checksum is wrong")
    magic, version, flags, topic, log_stream, epoch, sealed_end, trimmed, low_llsn, reserved = (
        _STATE.unpack_from(content)
    )
    if magic != _MAGIC:
        raise CorruptReplica(str(path), "it is not a state file")
    if version != _FORMAT_VERSION or flags & ~_OPENED or reserved:
        raise CorruptReplica(
            str(path), f"format version {version} is not known here (this is version {_FORMAT_VERSION})"
        )
    return ReplicaStateFile(topic, log_stream, epoch, bool(flags & _OPENED), sealed_end, trimmed, low_llsn)


def read_state(disk: Disk, directory: Path) -> ReplicaStateFile:
    """The state of the replica in `directory`."""
    path = directory / STATE_NAME
    if not disk.exists(path):
        raise CorruptReplica(str(path), "it is missing")
    return decode_state(disk.read_file(path), path)


def write_state(disk: Disk, directory: Path, state: ReplicaStateFile) -> None:
    """Write `state`, durably, in place of the one before."""
    disk.replace_file(directory / STATE_NAME, encode_state(state))
