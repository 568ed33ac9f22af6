"""The bytes of commands, snapshots and stores of the recipes' core.

Made from fixed values. Run it to write missing files:

    python -m tests.golden.recipe_formats

It never changes a file that exists: what was written once is read back forever. A new format version gets new names here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import Sessions
from varlog.recipes.core.counter_machine import CounterMachine, add_command, set_command, swap_command
from varlog.recipes.core.directory_snapshots import encode_file
from varlog.recipes.core.envelope import Envelope, Skip, encode_envelope, encode_skip
from varlog.recipes.core.snapshots import encode_snapshot
from varlog.recipes.core.topic_snapshots import SnapshotChunk, encode_chunk
from varlog.recipes.queue.queue_codec import (
    CodedQueueMachine,
    CompleteItem,
    ExpireClaim,
    PutItems,
    QueueCommand,
    RenewClaim,
    ReturnItem,
    TakeItem,
    encode_queue_command,
)

HERE = Path(__file__).parent

ENVELOPE = Envelope("orders", bytes(range(16)), 40, 7, 5, b"\x00command")
SKIP = Skip("orders", 39)
CHUNK = SnapshotChunk("orders", GLSN(1000), bytes(range(16)), 1, 3, 0xCBF43926, b"second piece")
STATE = b"\xc1 the machine's own"
QUEUE_COMMANDS: list[QueueCommand] = [
    PutItems([b"a", b"", b"\x00\xff"]),
    TakeItem("worker-1", 10_000_000),
    TakeItem("é", 1),
    RenewClaim(GLSN(2), 3),
    ExpireClaim(GLSN(3), GLSN(3)),
    ReturnItem(GLSN(9)),
    CompleteItem(GLSN(2)),
    TakeItem("", 5),
]
COUNTER_COMMANDS = [add_command(5), add_command(-(2**80)), set_command(7), swap_command(7, 8)]


def sessions() -> Sessions:
    """Of three clients, of which the first is forgotten."""
    made = Sessions(2)
    made.admit(GLSN(3), b"a" * 16, 0, 1, 1)
    made.admit(GLSN(4), b"b" * 16, 2, 1, 1)
    made.admit(GLSN(5), b"b" * 16, 2, 3, 2)
    made.admit(GLSN(6), b"c" * 16, 5, 1, 1)
    return made


def queue() -> CodedQueueMachine:
    made = CodedQueueMachine()
    for at, command in enumerate(QUEUE_COMMANDS, 1):
        made.apply(GLSN(at), encode_queue_command(command))
    return made


def counter() -> CounterMachine:
    made = CounterMachine()
    for at, command in enumerate(COUNTER_COMMANDS[:2], 1):
        made.apply(GLSN(at), command)
    return made


def machines() -> bytes:
    """What the small machines write, in hex."""
    story = {
        "counter commands": [command.hex() for command in COUNTER_COMMANDS],
        "counter snapshot": counter().snapshot().hex(),
        "queue commands": [encode_queue_command(command).hex() for command in QUEUE_COMMANDS],
        "queue snapshot": queue().snapshot().hex(),
    }
    return json.dumps(story, indent=1).encode() + b"\n"


FORMATS: dict[str, Callable[[], bytes]] = {
    "recipe_envelope_v1.bin": lambda: encode_envelope(ENVELOPE),
    "recipe_snapshot_v2.bin": lambda: encode_snapshot(
        "orders", GLSN(6), sessions(), STATE, {GLSN(4), GLSN(2)}
    ),
    "recipe_skip_v1.bin": lambda: encode_skip(SKIP),
    "recipe_snapshot_file_v1.bin": lambda: encode_file(STATE),
    "recipe_snapshot_chunk_v1.bin": lambda: encode_chunk(CHUNK),
    "recipe_machines_v1.json": machines,
}

if __name__ == "__main__":
    for name, make in FORMATS.items():
        if not (HERE / name).exists():
            (HERE / name).write_bytes(make())
