"""Decoding of entries that any writer can have written: total and repeatable."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from varlog.model.batch import Buffer
from varlog.recipes.core.command_rules import MalformedCommand, UnknownCommand

# What the decoder raises for bytes that are nothing: nested too deeply, numbers out of range, no UTF-8.
DECODE_ERRORS: Final = (msgspec.DecodeError, RecursionError, ValueError, OverflowError)

_decode_list = msgspec.msgpack.Decoder(list[Any]).decode


def list_of(data: Buffer) -> list[Any] | None:
    """The msgpack array that these bytes are, all of them; None: they are something else."""
    try:
        return _decode_list(data)
    except DECODE_ERRORS:
        return None


def refusal_of(command: bytes, tags: dict[int, int]) -> MalformedCommand | UnknownCommand:
    """Why an array with its number first could not be decoded. `tags`: the numbers that are known, with their count of fields."""
    fields = list_of(command)
    if fields and type(fields[0]) is int and fields[0] > 0:
        known = tags.get(fields[0])
        if known is None:
            return UnknownCommand(f"number {fields[0]}")
        if len(fields) - 1 > known:
            return UnknownCommand(f"number {fields[0]} with {len(fields) - 1} fields")
    return MalformedCommand("it has no command's fields")
