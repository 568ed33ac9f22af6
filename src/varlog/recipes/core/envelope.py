"""Envelope: a command of a replicated state machine as an entry of the log.

    C1 'v' 'l' 'c'   magic; C1 begins no msgpack value and no UTF-8 text
    01               version
    […]              msgpack array: machine, client, born, sequence, floor, command

In every version the machine's name comes first, so that replicas of another machine can skip it. And the entry by which an
operator has a position skipped by all replicas of a machine:

    C1 'v' 'l' 'x'   magic
    01               version
    […]              msgpack array: machine, position

A topic has many writers. What is not certainly a command of this machine is skipped: bytes that are truncated, mangled or of
others stop no replica. Only an intact array of a newer version that names this machine cannot be skipped, because replicas of that
version apply it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from varlog.model.batch import Buffer
from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import WINDOW_COMMANDS_MAX, MalformedCommand, UnknownCommand

MAGIC: Final = b"\xc1vlc"
VERSION: Final = 1
HEAD: Final = MAGIC + bytes([VERSION])
SKIP_MAGIC: Final = b"\xc1vlx"
SKIP_HEAD: Final = SKIP_MAGIC + bytes([1])
FAMILY: Final = b"\xc1vl"  # how both begin
CLIENT_BYTES_MAX: Final = 64
# A version above this never existed: it is noise.
VERSION_MAX: Final = 127


class Envelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One command. `client` is a random id of the process that opened a replica, when everything up to `born` was applied there.
    `sequence` counts the client's commands; all below `floor` are settled: applied, or never to come."""

    machine: str
    client: bytes
    born: int
    sequence: int
    floor: int
    command: bytes

    def possible_at(self, at: GLSN) -> bool:
        """Whether a client can have written it at this position."""
        return (
            0 < len(self.client) <= CLIENT_BYTES_MAX
            and 0 <= self.born < at
            and 0 < self.floor <= self.sequence < self.floor + WINDOW_COMMANDS_MAX
        )


class Skip(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The entry at `position` is no command of `machine`, whatever it looks like."""

    machine: str
    position: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode
_decode_skip = msgspec.msgpack.Decoder(Skip).decode


def encode_envelope(envelope: Envelope) -> bytes:
    """The bytes of an entry."""
    return HEAD + _encode(envelope)


def encode_skip(skip: Skip) -> bytes:
    """The bytes of an entry."""
    return SKIP_HEAD + _encode(skip)


class NewerFormat(Exception):
    """A command of this machine in a version that is not known here."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class Opener:
    """Finds the commands of one machine among the entries of a topic, at the cost of one comparison for each of the others."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        # An array of six, then the name: all commands of this machine begin like this, and no others.
        self._prefix = HEAD + b"\x96" + _encode(machine)

    def open(self, data: bytes) -> Envelope | Skip | None:
        """The command in an entry, or what an operator wants skipped, or None: it is something else. NewerFormat: it is a
        command, and this version cannot read it."""
        if data.startswith(self._prefix):
            try:
                return _decode(memoryview(data)[len(HEAD) :])
            except DECODE_ERRORS:
                return None
        return self._open_other(data) if data.startswith(FAMILY) else None

    def damaged(self, data: bytes) -> bool:
        """Where `open` returned None: whether it begins like a command of this machine."""
        return data.startswith(self._prefix)

    def _open_other(self, data: bytes) -> Skip | None:
        if data.startswith(SKIP_HEAD):
            try:
                skip = _decode_skip(memoryview(data)[len(SKIP_HEAD) :])
            except DECODE_ERRORS:
                return None
            return skip if skip.machine == self._machine else None
        if (newer := newer_command(data)) is not None and newer[0] == self._machine:
            raise NewerFormat(newer[1])
        return None


def command_machine(data: bytes) -> str | None:
    """The machine of a command that this version can read; None: it is none."""
    if not data.startswith(HEAD):
        return None
    try:
        return _decode(memoryview(data)[len(HEAD) :]).machine
    except DECODE_ERRORS:
        return None


def newer_command(data: bytes) -> tuple[str, int] | None:
    """The machine and the version of a command of a newer version; None: it is none."""
    if not data.startswith(MAGIC) or len(data) <= len(HEAD) or not VERSION < data[len(MAGIC)] <= VERSION_MAX:
        return None
    values = list_of(memoryview(data)[len(HEAD) :])
    if not values or not isinstance(values[0], str):
        return None
    return values[0], data[len(MAGIC)]


# --- decoding of entries that any writer can have written: total and repeatable -------------------------------------------------

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
