"""Frames: whatever the pieces in which bytes arrive, the frames are the same; what is no frame is one clear error."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from varlog.model.errors import InvalidRequest
from varlog.model.limits import FRAME_BYTES_MAX, FRAME_META_BYTES_MAX
from varlog.rpc.framing import (
    HEADER_BYTES,
    HELLO,
    ONEWAY,
    PROTOCOL_VERSION,
    REPLY,
    REQUEST,
    FrameReader,
    MalformedFrame,
    frame_head,
)

Frame = tuple[int, int, int, int, bytes, bytes]

U32 = st.integers(0, 2**32 - 1)
FRAMES = st.lists(
    st.tuples(
        st.sampled_from([REQUEST, REPLY, ONEWAY, HELLO]),
        st.integers(0, 2**16 - 1),
        U32,
        U32,
        st.binary(max_size=40),
        st.binary(max_size=90),
    ),
    max_size=8,
)


class Taker:
    """Reads a byte stream with a small scratch buffer, so that every path is taken by small frames."""

    def __init__(self, scratch_bytes: int = 64) -> None:
        self.frames: list[Frame] = []
        self.pause_after = -1  # pauses after this number of frames
        self.paused = False
        self.reader = FrameReader(memoryview(bytearray(scratch_bytes)), self._take)

    def _take(
        self,
        kind: int,
        number: int,
        request: int,
        cluster: int,
        meta: bytes | bytearray | memoryview,
        payload: bytearray,
    ) -> None:
        assert type(payload) is bytearray
        self.frames.append((kind, number, request, cluster, bytes(meta), bytes(payload)))
        if len(self.frames) == self.pause_after:
            self.paused = True
            self.reader.pause()

    def resume(self) -> None:
        self.paused = False
        self.reader.resume()

    def feed(self, data: bytes, pieces: Sequence[int] = ()) -> None:
        at = 0
        sizes = iter(pieces)
        while at < len(data):
            buffer = self.reader.buffer()
            assert len(buffer) > 0
            piece = data[at : at + min(len(buffer), next(sizes, len(buffer)))]
            buffer[: len(piece)] = piece
            self.reader.received(len(piece))
            at += len(piece)


def encoded(frames: Sequence[Frame]) -> bytes:
    return b"".join(
        frame_head(kind, number, request, cluster, meta, payload) + payload
        for kind, number, request, cluster, meta, payload in frames
    )


@given(FRAMES, st.lists(st.integers(1, 70), max_size=200), st.integers(HEADER_BYTES, 300))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(
    frames: list[Frame], pieces: list[int], scratch_bytes: int
) -> None:
    taker = Taker(scratch_bytes)
    taker.feed(encoded(frames), pieces)
    assert taker.frames == frames
    taker.reader.end()


@given(FRAMES, st.integers(1, 50))
def test_two_connections_share_a_scratch_buffer_without_harm(frames: list[Frame], piece: int) -> None:
    scratch = memoryview(bytearray(64))
    takers = [Taker(), Taker()]
    for taker in takers:
        taker.reader = FrameReader(scratch, taker._take)
    data = encoded(frames)
    sent = [0, 0]
    while min(sent) < len(data):
        for which, taker in enumerate(takers):
            part = data[sent[which] : sent[which] + min(piece + which, len(taker.reader.buffer()))]
            taker.feed(part, [len(part)])
            sent[which] += len(part)
    assert takers[0].frames == takers[1].frames == frames


@given(FRAMES, st.binary(max_size=200), st.lists(st.integers(1, 70), max_size=50))
def test_any_bytes_are_frames_or_malformed_and_nothing_else(
    frames: list[Frame], rubbish: bytes, pieces: list[int]
) -> None:
    taker = Taker()
    with contextlib.suppress(MalformedFrame):
        taker.feed(encoded(frames) + rubbish, pieces)
    assert taker.frames[: len(frames)] == frames


@given(FRAMES.filter(bool), st.data())
def test_a_stream_that_ends_inside_a_frame_is_reported(frames: list[Frame], data: st.DataObject) -> None:
    whole = encoded(frames)
    last = len(encoded(frames[-1:]))
    cut = data.draw(st.integers(1, last - 1))
    taker = Taker()
    taker.feed(whole[:-cut])
    assert taker.frames == frames[:-1]
    with pytest.raises(MalformedFrame, match="inside a frame"):
        taker.reader.end()


@given(FRAMES, st.integers(0, 8), st.integers(HEADER_BYTES, 300))
def test_while_paused_no_frame_is_given_and_none_is_lost(
    frames: list[Frame], pause_after: int, scratch_bytes: int
) -> None:
    taker = Taker(scratch_bytes)
    taker.pause_after = pause_after
    data = encoded(frames)
    at = 0
    while at < len(data) and not taker.paused:
        piece = data[at : at + len(taker.reader.buffer())]
        taker.feed(piece)
        at += len(piece)
    assert taker.frames == frames[:pause_after] or not taker.paused
    while taker.paused:
        taker.resume()
    taker.feed(data[at:])
    assert taker.frames == frames


HEADER = struct.Struct("<IBBHIIII")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ((20, PROTOCOL_VERSION + 1, REQUEST, 1, 1, 0, 0, 0), "protocol version 3"),
        ((16, 1, REQUEST, 1, 1, 0, 0, 0), "protocol version 1"),
        ((20, PROTOCOL_VERSION, 0, 1, 1, 0, 0, 0), "kind 0"),
        ((20, PROTOCOL_VERSION, HELLO + 1, 1, 1, 0, 0, 0), "kind 5"),
        ((19, PROTOCOL_VERSION, REQUEST, 1, 1, 0, 0, 0), "cannot hold"),
        ((0, PROTOCOL_VERSION, REQUEST, 1, 1, 0, 0, 0), "cannot hold"),
        ((24, PROTOCOL_VERSION, REQUEST, 1, 1, 0, 5, 0), "cannot hold"),
        ((FRAME_BYTES_MAX + 1, PROTOCOL_VERSION, REQUEST, 1, 1, 0, 0, 0), "over the limits"),
        (
            (FRAME_BYTES_MAX, PROTOCOL_VERSION, REQUEST, 1, 1, 0, FRAME_META_BYTES_MAX + 1, 0),
            "over the limits",
        ),
        (HEADER.unpack(b"GET / HTTP/1.1\r\nHost: ab"), "not a varlog process"),
    ],
)
def test_a_malformed_header_is_refused_immediately(header: tuple[int, ...], message: str) -> None:
    taker = Taker()
    with pytest.raises(MalformedFrame, match=message):
        taker.feed(HEADER.pack(*header))
    assert taker.frames == []


@example(FRAME_META_BYTES_MAX + 1, 0)
@example(0, FRAME_BYTES_MAX)
@example(1, FRAME_BYTES_MAX - 20)
@given(st.integers(FRAME_META_BYTES_MAX + 1, FRAME_META_BYTES_MAX + 9), st.integers(0, 9))
def test_a_frame_over_the_limits_is_not_made(meta_bytes: int, payload_bytes: int) -> None:
    with pytest.raises(InvalidRequest, match="over the limits"):
        frame_head(REQUEST, 1, 1, 0, bytes(meta_bytes), bytes(payload_bytes))


def test_the_largest_frame_goes_through() -> None:
    payload = bytes(FRAME_BYTES_MAX - 20 - FRAME_META_BYTES_MAX)
    frame = (REQUEST, 1, 1, 0, bytes(FRAME_META_BYTES_MAX), payload)
    taker = Taker(4096)
    taker.feed(encoded([frame]))
    assert taker.frames == [frame]
