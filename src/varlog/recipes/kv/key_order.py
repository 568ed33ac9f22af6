"""PURE. KeyOrder: the keys of a map in order; KeyRange: a half-open range of keys."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Halved when it is twice this long: inserting moves a few KiB at most, however many keys there are.
BLOCK_KEYS = 512

_LAST_BEFORE_SURROGATES, _FIRST_AFTER_SURROGATES = 0xD7FF, 0xE000
_LAST = 0x10FFFF


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from `begin` on, up to but without `end`; None: all the rest. Keys are in the order of their code points, which is
    that of their UTF-8 bytes."""

    begin: str = ""
    end: str | None = None

    def __contains__(self, key: str) -> bool:
        return key >= self.begin and (self.end is None or key < self.end)

    def __str__(self) -> str:
        return f"[{self.begin!r}, {'the end' if self.end is None else repr(self.end)})"


def prefix_range(prefix: str) -> KeyRange:
    """All keys that begin with `prefix`."""
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at])
        if code < _LAST:
            # No surrogates: they are no characters, and cannot be written down.
            after = _FIRST_AFTER_SURROGATES if code == _LAST_BEFORE_SURROGATES else code + 1
            return KeyRange(prefix, prefix[:at] + chr(after))
    return KeyRange(prefix)


def up_to(begin: str, last: str) -> KeyRange:
    """From `begin` to `last`, both inside."""
    return KeyRange(begin, last + "\0")


class KeyOrder:
    """A set of keys in order, as blocks of them: no block is empty, and all keys of one are before those of the next."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = sorted(keys)
        self._blocks = [ordered[at : at + BLOCK_KEYS] for at in range(0, len(ordered), BLOCK_KEYS)]
        self._firsts = [block[0] for block in self._blocks]

    def add(self, key: str) -> None:
        """`key` is not among them yet."""
        if not self._blocks:
            self._blocks, self._firsts = [[key]], [key]
            return
        at = max(bisect_right(self._firsts, key) - 1, 0)
        block = self._blocks[at]
        insort(block, key)
        self._firsts[at] = block[0]
        if len(block) >= 2 * BLOCK_KEYS:
            later = block[BLOCK_KEYS:]
            del block[BLOCK_KEYS:]
            self._blocks.insert(at + 1, later)
            self._firsts.insert(at + 1, later[0])

    def remove(self, key: str) -> None:
        """`key` is among them."""
        at = bisect_right(self._firsts, key) - 1
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        if block:
            self._firsts[at] = block[0]
        else:
            del self._blocks[at], self._firsts[at]

    def within(self, keys: KeyRange) -> Iterator[str]:
        """Those in the range, in order. Nothing may be added or removed meanwhile."""
        at = max(bisect_right(self._firsts, keys.begin) - 1, 0)
        for block in self._blocks[at : at + 1]:
            yield from _cut(block, bisect_left(block, keys.begin), keys.end)
        for number in range(at + 1, len(self._blocks)):
            if keys.end is not None and self._firsts[number] >= keys.end:
                return
            yield from _cut(self._blocks[number], 0, keys.end)


def _cut(block: list[str], begin: int, end: str | None) -> list[str]:
    return block[begin : len(block) if end is None else bisect_left(block, end, begin)]
