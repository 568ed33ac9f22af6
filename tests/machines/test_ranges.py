"""Ranges of LLSNs: the same numbers as a plain set of them, as long as they are few; more than that, never less, when many."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from varlog.model.lsn import LLSN
from varlog.storagenode.ranges import Ranges


def numbers(ranges: Ranges, low: int = 1) -> set[int]:
    found = ranges.above(LLSN(low))
    for (_, end), (begin, _) in pairwise(found):
        assert end < begin, "in order and apart"
    return {number for begin, end in found for number in range(begin, end)}


def test_ranges_hold_what_a_set_would(seed: int) -> None:
    random = Random(seed)
    ranges, expected = Ranges(), set[int]()
    for _ in range(300):
        begin = random.randint(1, 60)
        end = begin + random.randint(0, 8)
        if random.random() < 0.6:
            ranges.add(LLSN(begin), LLSN(end))
            expected |= set(range(begin, end))
        else:
            ranges.remove(LLSN(begin), LLSN(end))
            expected -= set(range(begin, end))
        assert numbers(ranges) == expected and bool(ranges) == bool(expected)
        assert ranges.covers(LLSN(begin), LLSN(begin + 2)) == ({begin, begin + 1} <= expected)
        assert ranges.touches(LLSN(begin), LLSN(begin + 2)) == bool({begin, begin + 1} & expected)
        assert numbers(ranges, 30) == {number for number in expected if number >= 30}


def test_too_many_ranges_become_fewer_and_forget_nothing(seed: int) -> None:
    random = Random(seed)
    ranges, expected = Ranges(count_max=5), set[int]()
    for _ in range(50):
        begin = random.randint(1, 1000)
        ranges.add(LLSN(begin), LLSN(begin + 2))
        expected |= {begin, begin + 1}
        assert numbers(ranges) >= expected
        assert len(ranges.above(LLSN(1))) <= 5


def test_the_nearest_are_joined() -> None:
    ranges = Ranges(count_max=2)
    for begin in (1, 100, 103):
        ranges.add(LLSN(begin), LLSN(begin + 1))
    assert ranges.above(LLSN(1)) == ((1, 2), (100, 104))


def test_taken_ranges_are_gone() -> None:
    ranges = Ranges()
    ranges.add(LLSN(5), LLSN(7))
    ranges.add(LLSN(1), LLSN(2))
    assert [ranges.pop_first(), ranges.pop_first(), ranges.pop_first()] == [(1, 2), (5, 7), None]
