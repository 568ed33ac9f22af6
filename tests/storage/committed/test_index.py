"""SparseIndex: few points, every batch within two strides of one; its sidecar is believed only for the segment as it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from varlog.model.limits import INDEX_STRIDE_BYTES
from varlog.model.lsn import LLSN
from varlog.storage.committed.index import SparseIndex, decode_index

SIZES = st.lists(st.sampled_from([72, 100, 1000, 4000, 5000, 50_000]), min_size=1, max_size=60)


def filled(sizes: list[int], first: int = 500) -> tuple[SparseIndex, list[tuple[int, int]]]:
    """An index over batches of three entries each, and (LLSN, offset) of every batch."""
    index, llsn, offset, batches = SparseIndex(LLSN(first)), first, 0, []
    for size in sizes:
        index.add(LLSN(llsn), offset, size)
        batches.append((llsn, offset))
        llsn, offset = llsn + 3, offset + size
    return index, batches


@given(SIZES)
def test_a_batch_is_never_far_from_a_point(sizes: list[int]) -> None:
    index, batches = filled(sizes)
    points = [(index.llsn(point), index.offset(point)) for point in range(len(index))]
    assert set(points) <= set(batches) and points[0] == batches[0]
    for (llsn, offset), size in zip(batches, sizes, strict=True):
        point = index.at_or_before(LLSN(llsn + 2))
        assert 0 <= offset - index.offset(point) < 2 * INDEX_STRIDE_BYTES
        if size >= INDEX_STRIDE_BYTES:
            assert (llsn, offset) == points[point]


@given(SIZES, st.integers(490, 700), st.integers(0, 200_000))
def test_the_last_point_within_bounds_is_found(sizes: list[int], llsn_end: int, offset_end: int) -> None:
    index, _ = filled(sizes)
    fitting = [p for p in range(len(index)) if index.llsn(p) <= llsn_end and index.offset(p) <= offset_end]
    assert index.last_within(LLSN(llsn_end), offset_end) == (fitting[-1] if fitting else -1)


@given(SIZES, st.integers(0, 100_000))
def test_a_cut_index_has_the_points_before_the_cut(sizes: list[int], offset_end: int) -> None:
    index, _ = filled(sizes)
    cut = index.below(offset_end)
    assert len(cut) == sum(1 for point in range(len(index)) if index.offset(point) < offset_end)


@given(SIZES, st.data())
def test_a_sidecar_is_read_back_and_any_flipped_byte_is_noticed(
    sizes: list[int], data: st.DataObject
) -> None:
    index, _ = filled(sizes)
    end, size = LLSN(500 + 3 * len(sizes)), sum(sizes)
    content = index.encode(end, size)
    again = decode_index(content, LLSN(500), end, size)
    assert again is not None and again.encode(end, size) == content
    at = data.draw(st.integers(0, len(content) - 1))
    assert (
        decode_index(content[:at] + bytes([content[at] ^ 0x20]) + content[at + 1 :], LLSN(500), end, size)
        is None
    )
    assert decode_index(content[:at], LLSN(500), end, size) is None


def test_a_sidecar_of_the_segment_as_it_was_before_is_not_believed() -> None:
    index, _ = filled([100] * 10)
    content = index.encode(LLSN(530), 1000)
    assert decode_index(content, LLSN(500), LLSN(530), 900) is None
    assert decode_index(content, LLSN(500), LLSN(527), 1000) is None
    assert decode_index(content, LLSN(501), LLSN(530), 1000) is None
