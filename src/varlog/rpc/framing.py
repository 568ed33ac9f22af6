"""Frames: bytes to frames and back, without I/O.

A header of 24 bytes, then the message (MessagePack), then the payload.

    offset  size  field
         0     4  length of everything behind this field
         4     1  protocol version
         5     1  kind: request, reply, one-way, hello
         6     2  number of the message (messages.NUMBERS)
         8     4  request id, chosen by the caller; 0 for a one-way message
        12     4  cluster id; 0 for any
        16     4  length of the message; what is left of the frame is the payload
        20     4  CRC32C of the 20 bytes before, of the message, and of the first 64 bytes of the payload

A payload is a run of batches, and the body of each carries the checksum that its client computed. The header of a batch
is signed only where it is placed, at the primary: on the way there only the frame protects its producer and sequence.
So the checksum of a frame covers the payload's first batch header, and no body twice.

A dialling end sends a hello before anything else, without a reply: it makes the peer known, and until then frames are small.

The version changes only when a peer of the old one would misunderstand a frame; a peer of another version is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from crc32c import crc32c as crc32c_of

from varlog.model.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from varlog.model.batch import Buffer
from varlog.model.errors import InvalidRequest, VarlogError
from varlog.model.limits import FRAME_BYTES_MAX, FRAME_META_BYTES_MAX
from varlog.runtime.process import unfilled

HEADER_BYTES: Final = 24
PROTOCOL_VERSION: Final = 2
REQUEST: Final = 1
REPLY: Final = 2
ONEWAY: Final = 3
HELLO: Final = 4

# The first memory of a frame that is not whole yet, and how many times as much as what has arrived it may on_frame: a
# header alone, which costs its sender nothing, must not make us allocate what it claims. What is received at once is 64
# KiB or more of a large frame, so a payload of a MiB gets its place at once and is copied nowhere; above 64 KiB no page
# is touched before it is filled.
FIRST_BYTES: Final = 4 * 1024
GROWTH: Final = 16

# The length field does not count itself: the rest of the header is in every frame.
_REST_BYTES: Final = HEADER_BYTES - 4
_SIGNED_BYTES: Final = HEADER_BYTES - 4
_HEADER: Final = struct.Struct("<IBBHIIII")
_SIGNED: Final = struct.Struct("<IBBHIII")
_CRC: Final = struct.Struct("<I")
_pack = _SIGNED.pack
_pack_crc = _CRC.pack
_unpack_from = _HEADER.unpack_from

# (kind, message number, request id, cluster id, meta, payload). `meta` is good during the call only.
TakeFrame = Callable[[int, int, int, int, Buffer, bytearray], None]
# The bytes that a frame holds which is not whole yet; 0: there is no such frame any more.
HeldChanged = Callable[[int], None]


class MalformedFrame(VarlogError):
    """Bytes that no peer of ours sends: the stream cannot be parsed any further, so the connection ends."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class CorruptFrame(MalformedFrame):
    """A frame whose checksum is wrong: it was changed in transit, and nothing in it is trusted, not even its length."""


def frame_head(
    kind: int, number: int, request: int, cluster: int, meta: bytes, payload: Buffer = b""
) -> bytes:
    """Header and message of one frame; the payload follows. Refuses what the other side would not accept."""
    meta_bytes = len(meta)
    payload_bytes = len(payload)
    length = _REST_BYTES + meta_bytes + payload_bytes
    if length > FRAME_BYTES_MAX or meta_bytes > FRAME_META_BYTES_MAX:
        raise InvalidRequest(
            f"a message of {meta_bytes} bytes with a payload of {payload_bytes} is over the limits "
            f"({FRAME_META_BYTES_MAX} and, together, {FRAME_BYTES_MAX}): ask or send less at once"
        )
    head = _pack(length, PROTOCOL_VERSION, kind, number, request, cluster, meta_bytes)
    crc = crc32c_of(head + meta)
    if payload_bytes:
        crc = crc32c_of(payload[:BATCH_HEADER_BYTES], crc)
    return head + _pack_crc(crc) + meta


class FrameReader:
    """Parses bytes as they arrive and calls `on_frame` with whole frames, in order.

    `scratch` is where bytes are received, and may be shared by all connections of a loop: nothing is left in it after
    `received`. A frame that is not whole yet gets its own buffers, so that the rest of it, however large, is received
    in place. They grow with what has arrived, up to the length of the frame; `held_changed` is called with their size.

    While it is paused no frame is delivered; what was received already waits here, and nothing more may be received.
    """

    __slots__ = (
        "_checked",
        "_crc",
        "_filled",
        "_head_crc",
        "_held_changed",
        "_meta",
        "_meta_bytes",
        "_on_frame",
        "_partial",
        "_paused",
        "_payload",
        "_payload_bytes",
        "_rest",
        "_scratch",
        "frame_bytes_max",
    )

    def __init__(
        self,
        scratch: memoryview,
        on_frame: TakeFrame,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        held_changed: HeldChanged = lambda held_bytes: None,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max  # may be raised at any time, also by `on_frame`
        self._scratch = scratch
        self._on_frame = on_frame
        self._held_changed = held_changed
        self._paused = False
        self._rest = b""  # the first bytes of a header that was cut off; while paused, all that came
        # Of the frame that is not whole yet: its header, None if there is none,
        self._partial: tuple[int, int, int, int] | None = None
        self._meta_bytes = self._payload_bytes = 0  # how much it will be, as its header claims,
        self._filled = 0  # how much of both, together, has arrived,
        self._meta = bytearray()  # and where that is: at most GROWTH times as large as what has arrived.
        self._payload = bytearray()
        self._crc = self._head_crc = 0  # the checksum that it must have, and that of its header alone
        self._checked = False  # whether it has it: known before the payload is whole

    @property
    def held_bytes(self) -> int:
        """The memory that a frame holds which is not whole yet."""
        return len(self._meta) + len(self._payload) if self._partial is not None else 0

    def buffer(self) -> memoryview:
        """Where the next bytes are to be received."""
        if self._partial is not None:
            missing = self._filled - self._meta_bytes
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
            self._settle_partial(self._partial)
            return
        scratch = self._scratch
        end = count + len(self._rest)
        at = 0
        while end - at >= HEADER_BYTES and not self._paused:
            length, version, kind, number, request, cluster, meta_bytes, crc = _unpack_from(scratch, at)
            if (
                version != PROTOCOL_VERSION
                or not _REST_BYTES + meta_bytes <= length <= self.frame_bytes_max
                or meta_bytes > FRAME_META_BYTES_MAX
                or not REQUEST <= kind <= HELLO
            ):
                raise _malformed(length, version, kind, meta_bytes, self.frame_bytes_max)
            head_crc = crc32c_of(scratch[at : at + _SIGNED_BYTES])
            begin = at + HEADER_BYTES
            at += 4 + length
            if at > end:
                self._rest = b""
                self._crc, self._head_crc = crc, head_crc
                self._meta_bytes, self._payload_bytes = meta_bytes, length - _REST_BYTES - meta_bytes
                self._begin_partial((kind, number, request, cluster), scratch[begin:end])
                return
            middle = begin + meta_bytes
            meta = scratch[begin:middle]
            if middle == at:
                covered, payload = meta, bytearray()
            else:
                covered = scratch[begin : min(at, middle + BATCH_HEADER_BYTES)]
                payload = bytearray(scratch[middle:at])
            if crc32c_of(covered, head_crc) != crc:
                raise _corrupt()
            self._on_frame(kind, number, request, cluster, meta, payload)
        self._rest = bytes(scratch[at:end])

    def pause(self) -> None:
        """Deliver no more frames, not even those that are in the buffer."""
        self._paused = True

    def resume(self) -> None:
        """Deliver the frames that wait, and continue."""
        self._paused = False
        if self._rest:
            self._scratch[: len(self._rest)] = self._rest
            self.received(0)

    def end(self) -> None:
        """The stream ended. MalformedFrame if it did so inside a frame."""
        if self._partial is not None or self._rest:
            raise MalformedFrame("the stream ended inside a frame")

    def drop(self) -> None:
        """Forget a frame that is not whole yet: nothing more will be received."""
        self._rest = b""
        if self._partial is not None:
            self._partial = None
            self._meta = self._payload = bytearray()
            self._held_changed(0)

    def _begin_partial(self, header: tuple[int, int, int, int], there: memoryview) -> None:
        self._partial = header
        self._checked = False
        self._filled = len(there)
        meta, payload = there[: self._meta_bytes], there[self._meta_bytes :]
        self._meta = _grown(meta, self._meta_bytes)
        self._payload = _grown(payload, self._payload_bytes) if payload else bytearray()
        self._settle_partial(header)

    def _settle_partial(self, header: tuple[int, int, int, int]) -> None:
        """Check it as soon as all that its checksum covers has arrived; deliver it if it is whole, else make room for more."""
        filled, meta_bytes, payload_bytes = self._filled, self._meta_bytes, self._payload_bytes
        if not self._checked and filled >= meta_bytes + min(payload_bytes, BATCH_HEADER_BYTES):
            crc = crc32c_of(self._meta, self._head_crc)
            if (
                crc32c_of(memoryview(self._payload)[: min(payload_bytes, BATCH_HEADER_BYTES)], crc)
                != self._crc
            ):
                raise _corrupt()
            self._checked = True
        if filled == meta_bytes + payload_bytes:
            meta, payload = self._meta, self._payload
            self._partial = None
            self._meta = self._payload = bytearray()
            self._held_changed(0)
            self._on_frame(*header, meta, payload)
            return
        if filled < meta_bytes:
            if filled == len(self._meta):
                self._meta = _grown(self._meta, meta_bytes)
        elif filled - meta_bytes == len(self._payload):
            self._payload = _grown(self._payload, payload_bytes)
        self._held_changed(len(self._meta) + len(self._payload))


def _grown(there: Buffer, wanted_bytes: int) -> bytearray:
    """`there`, with room for more behind it: all that is wanted, but not much more than what has arrived."""
    room = unfilled(min(wanted_bytes, max(FIRST_BYTES, GROWTH * len(there))))
    memoryview(room)[: len(there)] = there
    return room


def _corrupt() -> CorruptFrame:
    return CorruptFrame("its checksum is wrong: it was changed on its way here")


def _malformed(length: int, version: int, kind: int, meta_bytes: int, frame_bytes_max: int) -> MalformedFrame:
    if version != PROTOCOL_VERSION:
        return MalformedFrame(
            f"protocol version {version}, and this is {PROTOCOL_VERSION}: not a varlog process, or one to be upgraded"
        )
    if not REQUEST <= kind <= HELLO:
        return MalformedFrame(f"frame kind {kind} is not known here")
    if length > FRAME_BYTES_MAX or meta_bytes > FRAME_META_BYTES_MAX:
        return MalformedFrame(
            f"a frame of {length} bytes with a message of {meta_bytes} is over the limits "
            f"({FRAME_BYTES_MAX} and {FRAME_META_BYTES_MAX})"
        )
    if length > frame_bytes_max:
        return MalformedFrame(
            f"a frame of {length} bytes from a peer that is not known yet, and {frame_bytes_max} are allowed until it has "
            "said hello for this cluster"
        )
    return MalformedFrame(f"a frame of {length} bytes cannot hold a message of {meta_bytes}")
