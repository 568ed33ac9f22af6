"""The pinned frames of protocol version 2, oldest first.

A message that has grown keeps its older frames: they are understood forever. `python -m tests.golden.rpc_frames` adds
frames, and changes none.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.rpc.samples import MESSAGES
from varlog.rpc.codec import encode, number_of
from varlog.rpc.framing import REQUEST, frame_head
from varlog.rpc.messages import NUMBERS, Message

FILE = Path(__file__).with_name("rpc_frames_v2.json")
# Version 1 had no checksum. A process that sends it is refused, with the reason.
FILE_V1 = Path(__file__).with_name("rpc_frames_v1.json")
REQUEST_ID = 0x01020304
CLUSTER = 0x05060708
PAYLOAD = b"payload"


def frame_of(message: Message) -> bytes:
    """The whole frame, as it is sent."""
    meta = encode(message)
    return frame_head(REQUEST, number_of[type(message)], REQUEST_ID, CLUSTER, meta, PAYLOAD) + PAYLOAD


def pinned() -> dict[str, list[str]]:
    """Name of a message -> its frames in hexadecimal digits, the one sent today last."""
    frames: dict[str, list[str]] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    return frames


def add_missing() -> None:
    frames = pinned()
    for message in MESSAGES:
        known = frames.setdefault(type(message).__name__, [])
        if (frame := frame_of(message).hex()) not in known:
            known.append(frame)
    names = [kind.__name__ for kind in NUMBERS.values()]
    FILE.write_text(json.dumps({name: frames[name] for name in names}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    add_missing()
