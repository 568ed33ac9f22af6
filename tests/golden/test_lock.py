"""The commands and the snapshot of a lock, as version 1 writes them.

What was written once is read forever.
"""

from __future__ import annotations

import json
from pathlib import Path

from varlog.model.lsn import GLSN
from varlog.recipes.lock.lock_machine import (
    Enter,
    Expire,
    Leave,
    LockCommand,
    LockMachine,
    Renew,
    decode_lock_command,
    encode_lock_command,
)

GOLDEN = Path(__file__).with_name("lock_v1.json")
COMMANDS: list[LockCommand] = [
    Enter("00112233445566778899aabbccddeeff", 10_000_000, "worker-1"),
    Enter("ffeeddccbbaa99887766554433221100", 2_500_000, "é"),
    Enter("0123456789abcdef0123456789abcdef", 1, ""),
    Renew("00112233445566778899aabbccddeeff", 3),
    Expire("ffeeddccbbaa99887766554433221100", GLSN(2)),
    Leave("00112233445566778899aabbccddeeff"),
]


def test_the_commands_and_the_snapshot_of_a_lock_are_those_of_version_1() -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))
    assert [encode_lock_command(command).decode() for command in COMMANDS] == golden["commands"]
    assert [decode_lock_command(line.encode()) for line in golden["commands"]] == COMMANDS
    machine = LockMachine()
    for at, line in enumerate(golden["commands"][:5], 1):
        machine.apply(GLSN(at), line.encode())
    assert machine.snapshot().decode() == golden["snapshot"]
    again = LockMachine()
    again.restore(golden["snapshot"].encode())
    assert (list(again), again.token) == (list(machine), machine.token)
    assert (len(again), again.token) == (2, 1)
