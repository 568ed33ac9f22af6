"""PURE. EntryFrame, FrameCache: entries rendered once for all followers.

Frames tile the positions: each begins where the one before it ends, also over positions that hold no entry. So a reader that has
one frame finds the next one under the position where it ended, or it is not cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from varlog.model.entry import Entry

# The bounds of a frame, unless a single entry is larger: a consumer has to read this much at a time.
FRAME_BYTES: Final = 64 * 1024
FRAME_ENTRIES: Final = 512
# The memory of an entry beside its bytes, and how often its bytes are in memory: as read, and rendered in one or two ways.
ENTRY_WEIGHT: Final = 200
COPIES: Final = 3

Render = Callable[[Sequence[Entry]], bytes]


class EntryFrame:
    """The entries at positions [begin, end). There may be none: positions can be junk."""

    __slots__ = ("_texts", "begin", "end", "entries", "size", "weight")

    def __init__(self, begin: int, end: int, entries: Sequence[Entry]) -> None:
        if not begin < end:
            raise ValueError(f"a frame has at least one position, not [{begin}, {end})")
        self.begin = begin
        self.end = end
        self.entries = entries
        self.size = sum(len(entry.data) for entry in entries)
        self.weight = COPIES * self.size + ENTRY_WEIGHT * (1 + len(entries))
        self._texts: dict[Render, bytes] = {}

    def text(self, render: Render) -> bytes:
        """The entries as `render` renders them, once for all followers."""
        text = self._texts.get(render)
        if text is None:
            text = self._texts[render] = render(self.entries)
        return text

    def before(self, position: int) -> EntryFrame:
        """The part of it before `position`, which is behind its begin."""
        if self.end <= position:
            return self
        return EntryFrame(self.begin, position, [entry for entry in self.entries if entry.glsn < position])


def frames_of(begin: int, end: int, entries: Sequence[Entry]) -> Iterator[EntryFrame]:
    """Entries at positions [begin, end) in frames of bounded size."""
    first, size = 0, 0
    for index, entry in enumerate(entries):
        size += len(entry.data)
        if index > first and (size > FRAME_BYTES or index - first >= FRAME_ENTRIES):
            yield EntryFrame(begin, entry.glsn, entries[first:index])
            begin, first, size = entry.glsn, index, len(entry.data)
    if begin < end:
        yield EntryFrame(begin, end, entries[first:])


class FrameCache:
    """The most recently used frames, up to a weight. What is not cached is read again, so a small cache loses nothing."""

    def __init__(self, weight_max: int) -> None:
        self.weight = 0
        self._weight_max = weight_max
        self._frames: OrderedDict[int, EntryFrame] = OrderedDict()

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: EntryFrame) -> None:
        """Cache a frame, in place of another one with the same begin; the least recently used ones are evicted."""
        if (before := self._frames.pop(frame.begin, None)) is not None:
            self.weight -= before.weight
        self._frames[frame.begin] = frame
        self.weight += frame.weight
        while self.weight > self._weight_max and len(self._frames) > 1:
            _, gone = self._frames.popitem(last=False)
            self.weight -= gone.weight

    def frames_at(self, position: int, bytes_max: int = FRAME_BYTES) -> list[EntryFrame]:
        """The frame that begins at a position and those behind it, up to `bytes_max`. Empty: it is not cached."""
        found: list[EntryFrame] = []
        weight = 0
        while (frame := self._frames.get(position)) is not None:
            weight += frame.weight
            if found and weight > COPIES * bytes_max:
                break
            self._frames.move_to_end(position)
            found.append(frame)
            position = frame.end
        return found

    def clear(self) -> None:
        """Forget every frame."""
        self._frames.clear()
        self.weight = 0
