"""Layout: how changes of a store become operations on a keyspace.

Large values are split, no key is touched twice, batches have a bounded size.

A value over PART_BYTES_MAX is stored in several keys: its own, and continuations `<key>\\0<number>` right after it. No key of the
repository contains a NUL, so a range of keys contains the continuations of exactly the values in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from varlog.metarepo.store.base import DeleteItem, PutItem, StoreChange
from varlog.metarepo.store.keyspace import (
    BYTES_MAX,
    OPERATIONS_MAX,
    DeleteKeys,
    KeyOperation,
    PutKey,
    StoredKey,
)

PART_BYTES_MAX: Final = 512 * 1024
# An upper bound for the bytes of a transaction besides keys and values, per operation.
OPERATION_BYTES: Final = 64

CONTINUED, BEHIND = "\0", "\1"


class Layout:
    """Which values are stored in several keys. The term is the only writer, so its memory is accurate."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._parted: dict[str, None] = {}

    def load(self, found: Iterable[StoredKey]) -> dict[str, bytes]:
        """The items in these keys, which must be in order."""
        items: dict[str, bytes] = {}
        self._parted.clear()
        for one in found:
            key, continued, _ = one.key.removeprefix(self._prefix).partition(CONTINUED)
            if continued:
                items[key] += one.value
                self._parted[self._prefix + key] = None
            else:
                items[key] = one.value
        return items

    def operations(self, changes: Sequence[StoreChange]) -> list[KeyOperation]:
        """The operations for `changes`. They may be executed in any order: no two of them touch the same key."""
        puts: dict[str, bytes] = {}
        ranges: list[tuple[str, str]] = []
        for change in changes:
            if isinstance(change, PutItem):
                key = self._prefix + change.key
                self._forget(puts, ranges, key + CONTINUED, key + BEHIND, needed=key in self._parted)
                for number, part in enumerate(_parts(change.value)):
                    puts[f"{key}{CONTINUED}{number:06d}" if number else key] = part
                if len(change.value) > PART_BYTES_MAX:
                    self._parted[key] = None
                else:
                    self._parted.pop(key, None)
            elif isinstance(change, DeleteItem):
                key = self._prefix + change.key
                self._forget(puts, ranges, key, key + BEHIND)
            elif change.begin < change.end:
                self._forget(puts, ranges, self._prefix + change.begin, self._prefix + change.end)
        return [
            *(DeleteKeys(begin, end) for begin, end in _without(ranges, sorted(puts))),
            *(PutKey(key, value) for key, value in puts.items()),
        ]

    def _forget(
        self,
        puts: dict[str, bytes],
        ranges: list[tuple[str, str]],
        begin: str,
        end: str,
        *,
        needed: bool = True,
    ) -> None:
        for key in [key for key in puts if begin <= key < end]:
            del puts[key]
        for key in [key for key in self._parted if begin <= key < end]:
            del self._parted[key]
        if needed:
            ranges.append((begin, end))


def batches(operations: Sequence[KeyOperation]) -> Iterator[list[KeyOperation]]:
    """The same operations, split into batches that fit into a transaction."""
    batch: list[KeyOperation] = []
    size = 0
    for operation in operations:
        if batch and (len(batch) >= OPERATIONS_MAX or size + _size(operation) > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(operation)
        size += _size(operation)
    if batch:
        yield batch


def encode_redo(operations: Sequence[KeyOperation]) -> list[bytes]:
    """The operations in pieces, each small enough for one key."""
    rows = [
        (one.key, one.value, "") if isinstance(one, PutKey) else (one.begin, b"", one.end)
        for one in operations
    ]
    return _parts(msgspec.msgpack.encode(rows))


def decode_redo(pieces: Iterable[bytes]) -> list[KeyOperation]:
    rows = msgspec.msgpack.decode(b"".join(pieces), type=list[tuple[str, bytes, str]])
    return [DeleteKeys(key, end) if end else PutKey(key, value) for key, value, end in rows]


def _parts(value: bytes) -> list[bytes]:
    return [value[at : at + PART_BYTES_MAX] for at in range(0, len(value), PART_BYTES_MAX)] or [b""]


def _size(operation: KeyOperation) -> int:
    if isinstance(operation, PutKey):
        return OPERATION_BYTES + len(operation.key) + len(operation.value)
    return OPERATION_BYTES + len(operation.begin) + len(operation.end)


def _without(ranges: Iterable[tuple[str, str]], keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The ranges, without `keys`."""
    for begin, end in ranges:
        for key in keys:
            if begin <= key < end:
                if begin < key:
                    yield begin, key
                begin = key + CONTINUED
        if begin < end:
            yield begin, end
