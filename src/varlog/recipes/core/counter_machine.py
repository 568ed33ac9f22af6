"""PURE. CounterMachine: one number; commands and snapshots as bytes.

Both are JSON arrays with their version first. A command of a newer version cannot be skipped: replicas that know it would
differ from then on, so apply() raises UnknownCommand, which stops the replica. What is no command in any version changes nothing.
"""

from __future__ import annotations

import json
from typing import Any, Final

from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import MalformedCommand, UnknownCommand

VERSION: Final = 1
# About 3,900 digits: more cannot be written as JSON and read back everywhere.
BITS_MAX: Final = 13_000
ADD: Final = "add"
SET: Final = "set"
SWAP: Final = "swap"


def add_command(amount: int) -> bytes:
    return _encode(ADD, amount)


def set_command(value: int) -> bytes:
    return _encode(SET, value)


def swap_command(expected: int, value: int) -> bytes:
    """Set it to `value` if it is `expected`."""
    return _encode(SWAP, expected, value)


class CounterMachine:
    """`value` is the sum of what was added since it was set last."""

    def __init__(self) -> None:
        self.value = 0

    def apply(self, at: GLSN, command: bytes) -> int | None:
        """The new value; None: it was not the expected one, and is as it was."""
        match _decode_command(command):
            case ["add", int(amount)]:
                value = self.value + amount
            case ["set", int(value)]:
                pass
            case ["swap", int(expected), int(value)]:
                if self.value != expected:
                    return None
            case other:
                raise MalformedCommand(f"{str(other)[:100]!r} at position {at} is no command of a counter")
        if value.bit_length() > BITS_MAX:
            raise MalformedCommand(f"a counter has at most {BITS_MAX} bits")
        self.value = int(value)
        return self.value

    def snapshot(self) -> bytes:
        return _encode(self.value)

    def restore(self, snapshot: bytes) -> None:
        [self.value] = _decode(snapshot)


def _encode(*fields: str | int) -> bytes:
    return json.dumps([VERSION, *fields], separators=(",", ":")).encode()


def _decode_command(command: bytes) -> list[Any]:
    try:
        found = json.loads(command)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or type(found[0]) is not int or found[0] < VERSION:
        raise MalformedCommand("this is no command of a counter")
    if found[0] > VERSION:
        raise UnknownCommand(found[0])
    return found[1:]


def _decode(data: bytes) -> list[Any]:
    fields: list[Any]
    version, *fields = json.loads(data)
    if version != VERSION:
        raise ValueError(
            f"this counter has format {version}, this varlog knows {VERSION}: use the version that wrote it"
        )
    return fields
