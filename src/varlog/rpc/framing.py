"""Frames out of a byte stream, and back, without I/O: 20-byte header, then the message (MessagePack), then the payload.

    offset  size  field
         0     4  length of everything behind this field
         4     1  protocol version
         5     1  kind: request, reply, one-way
         6     2  number of the message (messages.NUMBERS)
         8     4  request id, chosen by the caller; 0 for a one-way message
        12     4  cluster id; 0 for any
        16     4  length of the message; what is left of the frame is the payload

The version changes only when a peer of the old one would misunderstand a frame; a peer of another version is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from varlog.model.batch import Buffer
from varlog.model.errors import InvalidRequest, VarlogError
from varlog.model.limits import FRAME_BYTES_MAX, FRAME_META_BYTES_MAX
from varlog.runtime.memory import unfilled

HEADER_BYTES: Final = 20
PROTOCOL_VERSION: Final = 1
REQUEST: Final = 1
REPLY: Final = 2
ONEWAY: Final = 3

# The length field counts itself out: the rest of the header is in every frame.
_REST_BYTES: Final = HEADER_BYTES - 4
_HEADER: Final = struct.Struct("<IBBHIII")
_pack = _HEADER.pack
_unpack_from = _HEADER.unpack_from

# (kind, message number, request id, cluster id, meta, payload). `meta` is good during the call only.
TakeFrame = Callable[[int, int, int, int, Buffer, bytearray], None]


class MalformedFrame(VarlogError):
    """Bytes that no peer of ours sends: the stream cannot be followed any further, so the connection ends."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def frame_head(kind: int, number: int, request: int, cluster: int, meta: bytes, payload_bytes: int) -> bytes:
    """Header and message of one frame; the payload follows. Refuses what the other side would not take."""
    meta_bytes = len(meta)
    length = _REST_BYTES + meta_bytes + payload_bytes
    if length > FRAME_BYTES_MAX or meta_bytes > FRAME_META_BYTES_MAX:
        raise InvalidRequest(
            f"a message of {meta_bytes} bytes with a payload of {payload_bytes} is over the limits "
            f"({FRAME_META_BYTES_MAX} and, together, {FRAME_BYTES_MAX}): ask or send less at once"
        )
    return _pack(length, PROTOCOL_VERSION, kind, number, request, cluster, meta_bytes) + meta


class FrameReader:
    """Takes bytes as they come and gives whole frames, in order, to `take`.

    `scratch` is where bytes are received, and may be shared by all connections of a loop: nothing is left in it after
    `received`. A frame that is not whole yet gets its own buffers, so that the rest of it, however large, is received
    in place and copied nowhere.

    While it is paused no frame is given; what was received already waits here, and nothing more may be received.
    """

    __slots__ = ("_filled", "_meta", "_partial", "_paused", "_payload", "_rest", "_scratch", "_take")

    def __init__(self, scratch: memoryview, take: TakeFrame) -> None:
        self._scratch = scratch
        self._take = take
        self._paused = False
        self._rest = b""  # the first bytes of a header that was cut off; while paused, all that came
        self._partial: tuple[int, int, int, int] | None = (
            None  # the header of the frame that is not whole yet
        )
        self._meta = bytearray()
        self._payload = bytearray()
        self._filled = 0  # bytes of meta and payload, together, that are there

    def buffer(self) -> memoryview:
        """Where the next bytes are to be received."""
        if self._partial is not None:
            missing = self._filled - len(self._meta)
            return (
                memoryview(self._meta)[self._filled :] if missing < 0 else memoryview(self._payload)[missing:]
            )
        if self._rest:
            kept = len(self._rest)
            self._scratch[:kept] = self._rest
            return self._scratch[kept:]
        return self._scratch

    def received(self, count: int) -> None:
        """`count` bytes are in the buffer that was asked for. MalformedFrame ends it, after the good frames before."""
        if self._partial is not None:
            self._filled += count
            self._give_if_whole(self._partial)
            return
        scratch = self._scratch
        end = count + len(self._rest)
        at = 0
        while end - at >= HEADER_BYTES and not self._paused:
            length, version, kind, number, request, cluster, meta_bytes = _unpack_from(scratch, at)
            if (
                version != PROTOCOL_VERSION
                or not _REST_BYTES + meta_bytes <= length <= FRAME_BYTES_MAX
                or meta_bytes > FRAME_META_BYTES_MAX
                or not REQUEST <= kind <= ONEWAY
            ):
                raise _malformed(length, version, kind, meta_bytes)
            begin = at + HEADER_BYTES
            at += 4 + length
            if at > end:
                self._rest = b""
                self._begin_partial((kind, number, request, cluster), scratch[begin:end], meta_bytes, length)
                return
            middle = begin + meta_bytes
            self._take(kind, number, request, cluster, scratch[begin:middle], bytearray(scratch[middle:at]))
        self._rest = bytes(scratch[at:end])

    def pause(self) -> None:
        """Give no more frames, not even those that are in the buffer."""
        self._paused = True

    def resume(self) -> None:
        """Give the frames that wait, and go on."""
        self._paused = False
        if self._rest:
            self._scratch[: len(self._rest)] = self._rest
            self.received(0)

    def end(self) -> None:
        """The stream ended. MalformedFrame if it did so inside a frame."""
        if self._partial is not None or self._rest:
            raise MalformedFrame("the stream ended inside a frame")

    def _begin_partial(
        self, header: tuple[int, int, int, int], there: memoryview, meta_bytes: int, length: int
    ) -> None:
        self._partial = header
        self._filled = len(there)
        self._meta = bytearray(meta_bytes)
        self._payload = unfilled(length - _REST_BYTES - meta_bytes)
        meta = there[:meta_bytes]
        payload = there[meta_bytes:]
        self._meta[: len(meta)] = meta
        self._payload[: len(payload)] = payload

    def _give_if_whole(self, header: tuple[int, int, int, int]) -> None:
        meta, payload = self._meta, self._payload
        if self._filled < len(meta) + len(payload):
            return
        self._partial = None
        self._meta = self._payload = bytearray()
        self._take(*header, meta, payload)


def _malformed(length: int, version: int, kind: int, meta_bytes: int) -> MalformedFrame:
    if version != PROTOCOL_VERSION:
        return MalformedFrame(
            f"protocol version {version}, and this is {PROTOCOL_VERSION}: not a varlog process, or one to be upgraded"
        )
    if not REQUEST <= kind <= ONEWAY:
        return MalformedFrame(f"frame kind {kind} is not known here")
    if length > FRAME_BYTES_MAX or meta_bytes > FRAME_META_BYTES_MAX:
        return MalformedFrame(
            f"a frame of {length} bytes with a message of {meta_bytes} is over the limits "
            f"({FRAME_BYTES_MAX} and {FRAME_META_BYTES_MAX})"
        )
    return MalformedFrame(f"a frame of {length} bytes cannot hold a message of {meta_bytes}")
