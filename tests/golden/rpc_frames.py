"""The pinned frames of protocol version 1. `python -m tests.golden.rpc_frames` adds those of new messages, no more."""

from __future__ import annotations

import json
from pathlib import Path

from tests.rpc.samples import MESSAGES
from varlog.rpc.codec import encode, number_of
from varlog.rpc.framing import REQUEST, frame_head
from varlog.rpc.messages import Message

FILE = Path(__file__).with_name("rpc_frames_v1.json")
REQUEST_ID = 0x01020304
CLUSTER = 0x05060708
PAYLOAD = b"payload"


def frame_of(message: Message) -> bytes:
    """The whole frame, as it is sent."""
    meta = encode(message)
    return frame_head(REQUEST, number_of[type(message)], REQUEST_ID, CLUSTER, meta, len(PAYLOAD)) + PAYLOAD


def pinned() -> dict[str, str]:
    """Name of a message -> its frame in hexadecimal digits."""
    frames: dict[str, str] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    return frames


def add_missing() -> None:
    frames = pinned()
    for message in MESSAGES:
        frames.setdefault(type(message).__name__, frame_of(message).hex())
    FILE.write_text(json.dumps(frames, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    add_missing()
