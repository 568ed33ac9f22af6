"""CodedKvMachine: a key/value store's commands and snapshots as bytes.

Both stay readable. A command has a number; one with another number, or with one more field, is of a newer version, and a replica
that continued without it would be another store from there on: so it stops (UnknownCommand). What is no command in any version
changes nothing (MalformedCommand).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from varlog.model.batch import Buffer
from varlog.model.errors import InvalidRequest, PreconditionFailed
from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import MalformedCommand
from varlog.recipes.core.envelope import DECODE_ERRORS, refusal_of
from varlog.recipes.kv.key_order import KeyRange
from varlog.recipes.kv.kv_machine import Change, KvMachine, Retention
from varlog.recipes.kv.transaction_rules import Clash, Footprint, Isolation

SNAPSHOT_VERSION = 1


class Put(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False, tag=1):
    key: str
    value: bytes


class Delete(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False, tag=2):
    key: str


class CompareAndSet(
    msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False, tag=3
):
    key: str
    value: bytes | None
    expected: GLSN


class Commit(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, tag=4):
    isolation: Isolation
    snapshot: GLSN
    reads: list[str]
    ranges: list[tuple[str, str | None]]
    writes: dict[str, bytes | None]


class Retain(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False, tag=5):
    changes: int
    bytes: int


KvCommand = Put | Delete | CompareAndSet | Commit | Retain
# The number of each, and how many fields it has.
TAGS = {1: 2, 2: 1, 3: 3, 4: 5, 5: 2}


class KvSnapshot(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`keys`: each key with its versions (revision, value), oldest first, in the order of the keys."""

    version: int
    retention: tuple[int, int]
    horizon: GLSN
    revision: GLSN
    keys: list[tuple[str, list[tuple[GLSN, bytes | None]]]]


_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(KvCommand)
_snapshot_decoder = msgspec.msgpack.Decoder(KvSnapshot)

encode_kv_command: Callable[[KvCommand], bytes] = _encoder.encode


def checked_key(key: str) -> str:
    """A key as all replicas can read it: what is wrong is refused before it is in the log, where no replica could skip it."""
    if not isinstance(key, str):
        raise InvalidRequest(f"a key is a str, not {type(key).__name__}")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the key {key!r} cannot be written as UTF-8: {error.reason}") from error
    return key


def checked_range(keys: KeyRange) -> KeyRange:
    """A range as all replicas can read it."""
    checked_key(keys.begin)
    if keys.end is not None:
        checked_key(keys.end)
    return keys


def checked_value(value: Buffer) -> bytes:
    """A value as all replicas can read it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidRequest(f"a value is bytes, not {type(value).__name__}: encode it first")


def encode_commit(footprint: Footprint) -> bytes:
    """The command by which a transaction is committed; its keys and values are checked. What its level of isolation does not check
    is left out."""
    serializable = footprint.isolation is Isolation.SERIALIZABLE
    return _encoder.encode(
        Commit(
            footprint.isolation,
            footprint.snapshot,
            sorted(footprint.reads) if serializable else [],
            [(keys.begin, keys.end) for keys in footprint.ranges] if serializable else [],
            dict(footprint.writes),
        )
    )


class CodedKvMachine(KvMachine):
    """A KvMachine as a StateMachine: commands, their results and snapshots as bytes."""

    def apply(self, at: GLSN, command: bytes) -> GLSN | Clash | None:
        """The revision of what was written; why not, of a commit; None of what changed nothing."""
        try:
            decoded = _command_decoder.decode(command)
        except DECODE_ERRORS:
            raise refusal_of(command, TAGS) from None
        if isinstance(decoded, Retain) and (decoded.changes < 0 or decoded.bytes < 0):
            raise MalformedCommand("a history of less than nothing")
        return _APPLY[type(decoded)](self, at, decoded)

    def snapshot(self) -> bytes:
        keys = [
            (held[0].key, [(change.revision, change.value) for change in held]) for held in self.versions()
        ]
        return _encoder.encode(
            KvSnapshot(
                SNAPSHOT_VERSION,
                (self.retention.changes, self.retention.bytes),
                self.horizon,
                self.revision,
                keys,
            )
        )

    def restore(self, snapshot: bytes) -> None:
        taken = decode_kv_snapshot(snapshot)
        self.begin_from(
            Retention(*taken.retention),
            taken.horizon,
            taken.revision,
            ([Change(key, value, revision) for revision, value in held] for key, held in taken.keys),
        )


def decode_kv_snapshot(snapshot: bytes) -> KvSnapshot:
    """Refused if it is of another version, or none."""
    try:
        taken = _snapshot_decoder.decode(snapshot)
    except msgspec.DecodeError as error:
        raise PreconditionFailed(
            f"this is no snapshot of a key/value store that can be read here: {error}"
        ) from error
    if taken.version != SNAPSHOT_VERSION:
        raise PreconditionFailed(
            f"a snapshot of version {taken.version} of a key/value store, and this varlog reads version "
            f"{SNAPSHOT_VERSION}: use the varlog that wrote it, or a newer one"
        )
    return taken


def _commit(machine: KvMachine, at: GLSN, command: Commit) -> GLSN | Clash:
    ranges = [KeyRange(begin, end) for begin, end in command.ranges]
    return machine.commit(
        at, Footprint(command.isolation, command.snapshot, command.reads, ranges, command.writes)
    )


def _retain(machine: KvMachine, at: GLSN, command: Retain) -> None:
    machine.retain(Retention(command.changes, command.bytes))


_APPLY: dict[type, Callable[[KvMachine, GLSN, Any], GLSN | Clash | None]] = {
    Put: lambda machine, at, put: machine.put(at, put.key, put.value),
    Delete: lambda machine, at, delete: machine.delete(at, delete.key),
    CompareAndSet: lambda machine, at, swap: machine.compare_and_set(at, swap.key, swap.value, swap.expected),
    Commit: _commit,
    Retain: _retain,
}
