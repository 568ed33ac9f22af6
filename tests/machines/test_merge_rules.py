"""The merge of streams into one order: any cutting, repeating and interleaving of fetches gives exactly the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.client.merge_rules import Merge, Row
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN

PlacedEntry = tuple[int, int, int]  # (log stream, LLSN, GLSN)


def order_of(owners: list[int]) -> list[PlacedEntry]:
    """The log in which GLSN i+1 belongs to stream owners[i]."""
    ends: dict[int, int] = {}
    placed = []
    for index, owner in enumerate(owners):
        ends[owner] = ends.get(owner, 0) + 1
        placed.append((owner, ends[owner], index + 1))
    return placed


def rows_of(log: list[PlacedEntry], stream: int, begin: int, end: int) -> list[Row]:
    """Rows for LLSNs [begin, end) of a stream, merged where neighbours in both orders."""
    rows: list[Row] = []
    for owner, llsn, glsn in log:
        if owner == stream and begin <= llsn < end:
            if rows and rows[-1][1] + rows[-1][2] == glsn:
                rows[-1] = (rows[-1][0], rows[-1][1], rows[-1][2] + 1)
            else:
                rows.append((LLSN(llsn), GLSN(glsn), 1))
    return rows


def taken_of(merge: Merge) -> list[PlacedEntry]:
    return [
        (merged.log_stream, merged.llsn + i, merged.glsn + i)
        for merged in merge.pop_ready()
        for i in range(merged.length)
    ]


@given(
    owners=st.lists(st.integers(1, 4), min_size=1, max_size=40),
    begin=st.integers(1, 45),
    length=st.none() | st.integers(0, 45),
    choices=st.data(),
)
def test_any_chunking_and_repetition_of_fetches_gives_the_exact_order(
    owners: list[int], begin: int, length: int | None, choices: st.DataObject
) -> None:
    """R-READ-3: no skip and no repeat."""
    log = order_of(owners)
    end = None if length is None else begin + length
    merge = Merge(GLSN(begin), None if end is None else GLSN(end))
    streams = sorted(set(owners))
    for stream in streams:
        merge.add(LogStreamID(stream))
    size = {stream: owners.count(stream) + 1 for stream in streams}
    first = {s: next((p[1] for p in log if p[0] == s and p[2] >= begin), size[s]) for s in streams}
    asked = dict(first)
    taken: list[PlacedEntry] = []
    while any(asked[s] < size[s] for s in streams):
        stream = choices.draw(st.sampled_from([s for s in streams if asked[s] < size[s]]))
        # A fetch may reach back to what came before (a whole batch, a second replica), but leaves no gap.
        back = choices.draw(st.integers(1, asked[stream])) if asked[stream] > first[stream] else asked[stream]
        stop = choices.draw(st.integers(asked[stream] + 1, size[stream]))
        merge.offer(LogStreamID(stream), rows_of(log, stream, back, stop), object())
        asked[stream] = stop
        if choices.draw(st.booleans()):
            taken += taken_of(merge)
    taken += taken_of(merge)
    last = len(log) + 1 if end is None else min(end, len(log) + 1)
    assert taken == log[begin - 1 : max(begin, last) - 1]
    assert merge.next == max(begin, last)


@given(owners=st.lists(st.integers(1, 3), min_size=1, max_size=30), choices=st.data())
def test_a_source_is_held_until_its_last_entry_is_taken(owners: list[int], choices: st.DataObject) -> None:
    """What bounds the memory of a subscription: sources() counts the chunks not taken to their end."""
    log = order_of(owners)
    merge = Merge(GLSN(1))
    cut = {s: choices.draw(st.integers(1, owners.count(s))) for s in sorted(set(owners))}
    for stream, at in cut.items():
        merge.add(LogStreamID(stream))
        merge.offer(LogStreamID(stream), rows_of(log, stream, 1, at + 1), "first")
        merge.offer(LogStreamID(stream), rows_of(log, stream, at + 1, len(log) + 2), "second")
    assert all(merge.sources(LogStreamID(s)) == 1 + (owners.count(s) > at) for s, at in cut.items())
    assert len(taken_of(merge)) == len(log)
    assert all(merge.sources(LogStreamID(s)) == 0 for s in cut)


def _two_streams(begin: int = 1) -> tuple[Merge, LogStreamID, LogStreamID]:
    merge, one, two = Merge(GLSN(begin)), LogStreamID(1), LogStreamID(2)
    merge.add(one)
    merge.add(two)
    return merge, one, two


def test_a_gap_in_a_stream_is_refused_and_changes_nothing() -> None:
    merge, one, _ = _two_streams()
    merge.offer(one, [(LLSN(1), GLSN(1), 2)], "a")
    with pytest.raises(ValueError, match="LLSN 4 arrived, expected 3"):
        merge.offer(one, [(LLSN(4), GLSN(4), 1)], "b")
    assert merge.cursor(one) == (3, 0)
    assert taken_of(merge) == [(1, 1, 1), (1, 2, 2)]


def test_an_order_that_falls_is_refused() -> None:
    """Law 3: the order of a stream's entries is decided once, and grows with their LLSNs."""
    merge, one, _ = _two_streams()
    merge.offer(one, [(LLSN(1), GLSN(5), 2)], "a")
    with pytest.raises(ValueError, match="GLSN 6 arrived, expected 7 or more"):
        merge.offer(one, [(LLSN(3), GLSN(6), 1)], "b")


def test_the_cursor_is_a_glsn_until_the_stream_has_shown_its_first_llsn() -> None:
    merge, one, two = _two_streams(begin=10)
    assert merge.cursor(one) == (0, 10)
    merge.offer(one, [(LLSN(4), GLSN(8), 3)], "reaches back before the begin")
    assert merge.cursor(one) == (7, 0)
    assert taken_of(merge) == [(1, 6, 10)]
    assert merge.cursor(two) == (0, 11)


def test_a_position_that_no_known_stream_can_have_is_elsewhere() -> None:
    """R-READ-3: a stream that was made later is missed only until the known ones say that the next position is
    not theirs."""
    merge, one, two = _two_streams()
    seen = [merge.elsewhere]
    merge.offer(one, [(LLSN(1), GLSN(2), 1)], "a")
    seen += [merge.elsewhere]  # stream 2 may have position 1
    merge.offered_up_to(two, GLSN(2))
    seen += [merge.elsewhere]
    merge.add(LogStreamID(3))
    merge.offer(LogStreamID(3), [(LLSN(1), GLSN(1), 1)], "b")
    seen += [merge.elsewhere]
    assert seen == [False, False, True, False]
    assert taken_of(merge) == [(3, 1, 1), (1, 1, 2)]


def test_nothing_is_elsewhere_at_the_end_of_the_log() -> None:
    merge, one, two = _two_streams()
    merge.offer(one, [(LLSN(1), GLSN(1), 3)], "a")
    assert len(taken_of(merge)) == 3
    merge.offered_up_to(one, GLSN(3))
    merge.offered_up_to(two, GLSN(3))
    assert not merge.elsewhere


def test_a_trimmed_position_that_is_held_is_given_out_first() -> None:
    """Law 9: only a position that is not here any more is said to be trimmed."""
    merge, one, _ = _two_streams()
    merge.offer(one, [(LLSN(1), GLSN(1), 2)], "a")
    merge.trimmed_up_to(GLSN(4))
    before = merge.trimmed_under
    assert len(taken_of(merge)) == 2
    assert (before, merge.trimmed_under) == (False, True)
