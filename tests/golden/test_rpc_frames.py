"""A frame of every message is pinned.

What a released version sends is understood, and sent the same, forever.
"""

from __future__ import annotations

import json

import pytest

from tests.golden.rpc_frames import CLUSTER, FILE_V1, PAYLOAD, REQUEST_ID, frame_of, pinned
from tests.rpc.samples import MESSAGES
from varlog.model.batch import Buffer
from varlog.rpc.codec import decode
from varlog.rpc.framing import REQUEST, FrameReader, MalformedFrame
from varlog.rpc.messages import NUMBERS, Message

BY_NAME = {type(message).__name__: message for message in MESSAGES}


def test_every_message_is_pinned() -> None:
    """If one is missing: `.venv/bin/python -m tests.golden.rpc_frames` adds it."""
    assert list(pinned()) == [kind.__name__ for kind in NUMBERS.values()]


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_message_is_sent_as_pinned(name: str) -> None:
    assert frame_of(BY_NAME[name]).hex() == pinned()[name][-1]


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_pinned_frame_is_understood(name: str) -> None:
    """Frames of earlier releases lack later fields, which then have their defaults."""
    *older, newest = [_taken(bytes.fromhex(frame)) for frame in pinned()[name]]
    assert newest == (REQUEST, REQUEST_ID, CLUSTER, BY_NAME[name], PAYLOAD)
    for kind, request, cluster, message, payload in older:
        assert (kind, request, cluster, payload) == (REQUEST, REQUEST_ID, CLUSTER, PAYLOAD)
        assert type(message) is type(BY_NAME[name])


def _taken(frame: bytes) -> tuple[int, int, int, Message, bytes]:
    taken: list[tuple[int, int, int, Message, bytes]] = []

    def take(kind: int, number: int, request: int, cluster: int, meta: Buffer, payload: bytearray) -> None:
        taken.append((kind, request, cluster, decode(number, meta), bytes(payload)))

    reader = FrameReader(memoryview(bytearray(frame)), take)
    reader.received(len(frame))
    (only,) = taken
    return only


def test_frames_of_version_1_are_refused_by_their_version() -> None:
    frames = [
        bytes.fromhex(frame) for known in json.loads(FILE_V1.read_text("utf-8")).values() for frame in known
    ]
    assert len(frames) > 100
    for frame in frames:
        with pytest.raises(MalformedFrame, match="protocol version 1, and this is 2"):
            _taken(frame)
