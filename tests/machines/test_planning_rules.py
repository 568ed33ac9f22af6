"""How a batch read is cut: every entry in one piece, read_pieces of about equal bytes, as many as the options ask for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from varlog.spark.read.planning_rules import (
    FETCH_BYTES,
    PIECE_BYTES_MAX,
    PIECE_BYTES_MIN,
    MeasuredRange,
    read_pieces,
)

MIB = 1 << 20


@st.composite
def measured_ranges(draw: st.DrawFn, log_stream: int = 1) -> MeasuredRange:
    """A range and points in it, of whatever sizes, also such as cannot be."""
    begin, records = draw(st.integers(1, 10**6)), draw(st.integers(0, 10**6))
    total = draw(st.integers(0, 10**10))
    inside = draw(st.sets(st.integers(begin + 1, begin + records - 1), max_size=20)) if records > 1 else set()
    before = sorted(draw(st.integers(0, total)) for _ in inside)
    points = tuple(zip(sorted(inside), before, strict=True))
    return MeasuredRange("orders", log_stream, begin, begin + records, total, points)


@given(st.lists(measured_ranges(), max_size=4), st.integers(0, 50), st.sampled_from([0, 1, 7, 10_000, 10**7]))
def test_every_entry_is_in_one_piece_and_the_options_are_kept(
    ranges: list[MeasuredRange], partitions_min: int, records_max: int
) -> None:
    ranges = [found for found in ranges if not records_max or found.records / records_max < 5000]
    made = read_pieces(ranges, partitions_min=partitions_min, records_max=records_max)
    left = iter(made)
    for found in ranges:
        at = found.begin
        while at < found.end:
            piece = next(left)
            assert (piece.topic, piece.log_stream, piece.begin) == (found.topic, found.log_stream, at)
            assert piece.end > piece.begin
            at = piece.end
        assert at == max(found.begin, found.end)
    assert next(left, None) is None
    assert len(made) >= min(partitions_min, sum(found.records for found in ranges))
    assert not records_max or all(piece.end - piece.begin <= records_max for piece in made)


@given(st.lists(measured_ranges(), max_size=3))
def test_fetches_of_a_piece_begin_where_it_does_and_lie_inside_it(ranges: list[MeasuredRange]) -> None:
    for piece in read_pieces(ranges):
        begins = [llsn for llsn, _ in piece.cuts]
        assert begins[0] == piece.begin
        assert all(low < high for low, high in pairwise([*begins, piece.end]))
        assert all(size > 0 for _, size in piece.cuts)


def even(total: int, records: int = 100_000, points: int = 256, log_stream: int = 1) -> MeasuredRange:
    """Entries of one size."""
    places = [(1 + records * n // points, total * n // points) for n in range(1, points)]
    return MeasuredRange("orders", log_stream, 1, records + 1, total, tuple(places))


def test_a_small_topic_is_few_tasks_and_a_large_one_tasks_of_a_bounded_size() -> None:
    assert len(read_pieces([even(1 * MIB)])) == 1
    assert len(read_pieces([even(10 * MIB)])) == 2
    assert len(read_pieces([even(100 * MIB)])) == 8
    assert len(read_pieces([even(10_000 * MIB)])) == round(10_000 * MIB / PIECE_BYTES_MAX)
    assert PIECE_BYTES_MIN < PIECE_BYTES_MAX


def test_pieces_have_about_equal_bytes_though_entries_differ_in_size() -> None:
    """A hundred thousand small entries, then a hundred large ones with half of the bytes."""
    points = [(1000 * n, 500_000 * n) for n in range(1, 101)]
    points += [(100_000 + n, 50_000_000 + 500_000 * n) for n in range(1, 100)]
    made = read_pieces(
        [MeasuredRange("orders", 1, 1, 100_101, 100_000_000, tuple(points))], partitions_min=10
    )
    assert len(made) == 10
    sizes = [sum(size for _, size in piece.cuts) for piece in made]
    assert max(sizes) < 1.3 * min(sizes)
    assert [piece.begin for piece in made[1:]] == [points[n][0] for n in range(19, 199, 20)]


def test_more_pieces_are_asked_of_the_streams_that_have_more() -> None:
    made = read_pieces([even(30 * MIB, log_stream=1), even(10 * MIB, log_stream=2)], partitions_min=40)
    assert [sum(piece.log_stream == n for piece in made) for n in (1, 2)] == [30, 10]


def test_concurrent_fetches_are_about_one_fetch_apart() -> None:
    (piece, *_) = read_pieces([even(1000 * MIB, points=1024)])
    sizes = [size for _, size in piece.cuts[:-1]]
    assert all(FETCH_BYTES <= size < 2 * FETCH_BYTES for size in sizes)
    assert sum(size for _, size in piece.cuts) > 50 * MIB
