"""The index of pages and the runs of LLSNs, against lists that are searched from end to end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.lsn import LLSN
from varlog.storage.sequenced import page_index
from varlog.storage.sequenced.page_index import LlsnRuns, PageIndex, PageRef
from varlog.storage.sequenced.sidecar import decode_sidecar, encode_pages, encode_sidecar

# (LLSN, count) of pages in the order of their arrival; those that overlap are left out.
ARRIVALS = st.lists(st.tuples(st.integers(1, 120), st.integers(1, 4)), max_size=60)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_index, "BLOCK_PAGES_MAX", 4)


def apart(arrivals: list[tuple[int, int]]) -> list[PageRef]:
    pages: list[PageRef] = []
    for number, (first, count) in enumerate(arrivals):
        if all(first + count <= page.first_llsn or first >= page.end_llsn for page in pages):
            pages.append(
                PageRef(LLSN(first), count, 64 + number, number, number // 7, number, number % 3 == 0)
            )
    return pages


@given(ARRIVALS, st.integers(1, 130))
def test_the_index_finds_what_a_plain_search_finds(arrivals: list[tuple[int, int]], low: int) -> None:
    pages = apart(arrivals)
    index = PageIndex()
    for page in pages:
        index.add(page)
    check(index, sorted(pages, key=lambda page: page.first_llsn))
    index.drop_below(LLSN(low))
    kept = [page for page in pages if page.end_llsn > low]
    check(index, sorted(kept, key=lambda page: page.first_llsn))


def check(index: PageIndex, pages: list[PageRef]) -> None:
    assert len(index) == len(pages) and list(index.walk(LLSN(0))) == pages
    assert index.end == max([0, *(page.end_llsn for page in pages)])
    for llsn in range(1, 130):
        at_or_behind = [page for page in pages if page.end_llsn > llsn]
        holding = at_or_behind[0] if at_or_behind and at_or_behind[0].first_llsn <= llsn else None
        assert index.holding(LLSN(llsn)) == holding
        assert list(index.walk(LLSN(llsn))) == at_or_behind
        for end in (llsn + 1, llsn + 5):
            within = [page for page in at_or_behind if page.first_llsn < end]
            assert index.overlapping(LLSN(llsn), LLSN(end)) == (within[0] if within else None)
            firsts, sizes = index.sizes_between(LLSN(llsn), LLSN(end))
            assert list(zip(firsts.tolist(), sizes.tolist(), strict=True)) == [
                (page.first_llsn, page.size) for page in within
            ]


@given(ARRIVALS, st.integers(1, 130))
def test_runs_know_every_hole(arrivals: list[tuple[int, int]], low: int) -> None:
    runs = LlsnRuns()
    written: set[int] = set()
    for first, count in arrivals:
        runs.add(first, first + count)
        written.update(range(first, first + count))
    for drop in (0, low):
        runs.drop_below(drop)
        for llsn in range(max(1, drop), 130):
            assert runs.gap_from(LLSN(llsn)) == next(gap for gap in range(llsn, 200) if gap not in written)
    assert len(runs) == sum(llsn not in written and llsn - 1 in written for llsn in range(low + 1, 200))


@given(ARRIVALS)
def test_a_sidecar_brings_back_its_pages(arrivals: list[tuple[int, int]]) -> None:
    pages = apart(arrivals)
    rows = decode_sidecar(encode_sidecar(3, 900, encode_pages(pages)), 3, 900)
    assert rows is not None and rows["firsts"].tolist() == [page.first_llsn for page in pages]
    assert rows["offsets"].tolist() == [page.offset for page in pages]


def test_a_sidecar_of_something_else_is_none() -> None:
    content = encode_sidecar(3, 900, encode_pages(apart([(1, 1), (5, 2)])))
    assert decode_sidecar(content, 3, 900) is not None
    assert decode_sidecar(content, 4, 900) is None and decode_sidecar(content, 3, 901) is None
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1
        assert decode_sidecar(bytes(damaged), 3, 900) is None
        assert decode_sidecar(content[:at], 3, 900) is None
