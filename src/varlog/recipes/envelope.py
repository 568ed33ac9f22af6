"""Envelope: what a command of a replicated state machine is on the log: whose it is, who sent it, which of his it is.

    C1 'v' 'l' 'c'   magic; C1 begins no msgpack value and no UTF-8 text
    01               version
    […]              msgpack array: machine, client, born, sequence, floor, command

In every version the machine's name comes first, so that whoever reads for another machine can pass over it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

MAGIC: Final = b"\xc1vlc"
VERSION: Final = 1
HEAD: Final = MAGIC + bytes([VERSION])


class Envelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One command. `client` is drawn by whoever opens a replica, at which time everything up to `born` was applied there.
    `sequence` counts the client's commands; all below `floor` are settled: applied, or never to come."""

    machine: str
    client: bytes
    born: int
    sequence: int
    floor: int
    command: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode
_decode_any = msgspec.msgpack.Decoder(list[Any]).decode


def seal(envelope: Envelope) -> bytes:
    """The bytes of an entry."""
    return HEAD + _encode(envelope)


class NewerFormat(Exception):
    """A command of this machine, or of an unknown one, in a version that is not known here."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class Opener:
    """Finds the commands of one machine among the entries of a topic, at the cost of one comparison for each of the others."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        # An array of six, then the name: all commands of this machine begin like this, and no others.
        self._prefix = HEAD + b"\x96" + _encode(machine)

    def open(self, data: bytes) -> Envelope | None:
        """The command in an entry, or None: it is something else. NewerFormat: it cannot be told."""
        if not data.startswith(self._prefix):
            if data.startswith(MAGIC) and not data.startswith(HEAD):
                self._check_newer(data)
            return None
        try:
            return _decode(memoryview(data)[len(HEAD) :])
        except msgspec.DecodeError:
            return None

    def _check_newer(self, data: bytes) -> None:
        """Raise unless it is of another machine."""
        version = data[len(MAGIC)] if len(data) > len(MAGIC) else 0
        try:
            values = _decode_any(memoryview(data)[len(HEAD) :])
        except msgspec.DecodeError:
            values = []
        if version <= VERSION or (values and values[0] != self._machine):
            return
        raise NewerFormat(version)
