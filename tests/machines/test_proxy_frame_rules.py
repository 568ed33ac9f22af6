"""Laws of frames: they tile the positions, hold every entry once, and a cache of any size gives no wrong one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.entry import Entry
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN
from varlog.proxy.frame_rules import FRAME_BYTES, FRAME_ENTRIES, EntryFrame, FrameCache, frames_of

SIZES = st.sampled_from([0, 1, 100, 1000, FRAME_BYTES // 2, FRAME_BYTES, FRAME_BYTES + 1])


def entries_at(positions: list[int], sizes: list[int]) -> list[Entry]:
    return [
        Entry(GLSN(at), LLSN(at), LogStreamID(1), 0, bytes(size))
        for at, size in zip(positions, sizes, strict=True)
    ]


@st.composite
def placed_entries(draw: st.DrawFn) -> tuple[int, int, list[Entry]]:
    """(begin, end, entries): some positions in between hold no entry."""
    begin = draw(st.integers(1, 1000))
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 5]), max_size=1200 if draw(st.booleans()) else 40))
    positions, at = [], begin - 1
    for gap in gaps:
        at += gap
        positions.append(at)
    sizes = draw(st.lists(SIZES, min_size=min(40, len(gaps)), max_size=min(40, len(gaps))))
    entries = entries_at(positions, (sizes * (1 + len(gaps)))[: len(gaps)])
    return begin, max(begin + 1, at + draw(st.integers(1, 3))), entries


@given(placed_entries())
def test_frames_tile_the_positions_and_hold_every_entry_once(placed: tuple[int, int, list[Entry]]) -> None:
    """R-READ-3: none skipped, none twice."""
    begin, end, entries = placed
    frames = list(frames_of(begin, end, entries))
    assert [frame.begin for frame in frames] == [begin, *(frame.end for frame in frames[:-1])]
    assert frames[-1].end == end
    assert [entry for frame in frames for entry in frame.entries] == entries
    for frame in frames:
        assert all(frame.begin <= entry.glsn < frame.end for entry in frame.entries)
        assert len(frame.entries) <= FRAME_ENTRIES
        assert frame.size <= FRAME_BYTES or len(frame.entries) == 1


@given(placed_entries(), st.integers(1, 5), st.integers(0, 300_000))
def test_a_follower_sees_each_entry_once_through_a_cache_of_any_size(
    placed: tuple[int, int, list[Entry]], step: int, weight_max: int
) -> None:
    """What is not cached is cached again, as a page is read: the requested frame last, so that it stays."""
    begin, end, entries = placed
    cache, position, seen = FrameCache(weight_max), begin, list[Entry]()
    every = list(frames_of(begin, end, entries))
    while position < end:
        taken = cache.frames_at(position)
        if not taken:
            at = next(index for index, frame in enumerate(every) if frame.begin == position)
            for frame in reversed(every[at : at + step]):
                cache.add(frame)
            taken = cache.frames_at(position)
            assert taken, "the frame that was added last is cached"
        seen += [entry for frame in taken for entry in frame.entries]
        position = taken[-1].end
        assert cache.weight <= weight_max or len(cache) == 1
    assert seen == entries
    cache.clear()
    assert (cache.weight, len(cache)) == (0, 0)


@given(placed_entries(), st.data())
def test_a_frame_that_is_cut_has_what_is_before_the_cut(
    placed: tuple[int, int, list[Entry]], data: st.DataObject
) -> None:
    begin, end, entries = placed
    cut = data.draw(st.integers(begin + 1, end + 2))
    part = EntryFrame(begin, end, entries).before(cut)
    assert (part.begin, part.end) == (begin, min(cut, end))
    assert list(part.entries) == [entry for entry in entries if entry.glsn < cut]


def test_a_frame_is_rendered_once_however_many_get_it() -> None:
    asked = []

    def render(entries: object) -> bytes:
        asked.append(entries)
        return b"text"

    frame = EntryFrame(1, 2, entries_at([1], [3]))
    assert [frame.text(render) for _ in range(3)] == [b"text"] * 3
    assert len(asked) == 1


def test_a_frame_without_a_position_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="at least one position"):
        EntryFrame(3, 3, [])
