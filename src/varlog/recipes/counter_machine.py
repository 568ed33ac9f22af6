"""PURE. CounterMachine: one number; commands and snapshots as bytes.

Both are JSON arrays with their version first. A command of another version is no command that can be passed over: replicas that
understand it would differ from then on, so apply() raises, which stops the replica.
"""

from __future__ import annotations

import json
from typing import Any, Final

from varlog.model.lsn import GLSN

VERSION: Final = 1
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
        match _decode(command):
            case ["add", int(amount)]:
                self.value += amount
            case ["set", int(value)]:
                self.value = value
            case ["swap", int(expected), int(value)]:
                if self.value != expected:
                    return None
                self.value = value
            case other:
                raise ValueError(f"{other!r} at position {at} is no command of a counter")
        return self.value

    def snapshot(self) -> bytes:
        return _encode(self.value)

    def restore(self, snapshot: bytes) -> None:
        [self.value] = _decode(snapshot)


def _encode(*fields: str | int) -> bytes:
    return json.dumps([VERSION, *fields], separators=(",", ":")).encode()


def _decode(data: bytes) -> list[Any]:
    fields: list[Any]
    version, *fields = json.loads(data)
    if version != VERSION:
        raise ValueError(
            f"this counter has format {version}, this varlog knows {VERSION}: use the version that wrote it"
        )
    return fields
