"""The proxy's rates: from two samples of counters that only grow, except where a process restarted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN
from varlog.model.status import LATENCY_BOUNDS_S, Traffic
from varlog.proxy.rate_rules import (
    WINDOW_S,
    RateMeter,
    ReplicaKey,
    TrafficSample,
    latency_percentile,
    merged_buckets,
)

TOPIC, STREAM = TopicID(1), LogStreamID(7)
A, B = NodeID(1), NodeID(2)
BUCKETS = len(LATENCY_BOUNDS_S) + 1


def buckets(**counts: int) -> tuple[int, ...]:
    """`_3=5`: five in the fourth bucket."""
    return tuple(counts.get(f"_{number}", 0) for number in range(BUCKETS))


def look(at_s: float, newest: int = 0, **traffic: Traffic) -> TrafficSample:
    """A log stream whose appends are those of node A."""
    places: dict[ReplicaKey, Traffic] = {
        ({"a": A, "b": B}[name], STREAM): found for name, found in traffic.items()
    }
    return TrafficSample(at_s, {TOPIC: GLSN(newest)}, places, {STREAM: A})


def appended(entries: int, **counts: int) -> Traffic:
    return Traffic(sum(counts.values()), entries, 10 * entries, 0.0, buckets(**counts) if counts else ())


def test_one_sample_gives_no_rate_and_neither_do_two_at_the_same_time() -> None:
    meter = RateMeter()
    assert meter.rates() is None
    meter.add(look(5.0, 10))
    assert meter.rates() is None
    meter.add(look(5.1, 20))
    assert meter.rates() is None


def test_rates_are_of_about_the_last_second() -> None:
    """Neither an average since ever, nor what happened between two looks a moment apart."""
    meter = RateMeter()
    for tick in range(30):
        meter.add(look(tick / 4, 1_000 * tick if tick > 20 else 0))
    rates = meter.rates()
    assert rates is not None and rates.topics[TOPIC] == pytest.approx(4_000.0)


def test_the_first_two_looks_give_a_rate_even_if_less_than_a_second_apart() -> None:
    meter = RateMeter()
    meter.add(look(0.0, 0))
    meter.add(look(0.5, 100))
    rates = meter.rates()
    assert rates is not None and rates.topics[TOPIC] == pytest.approx(200.0)


def test_a_look_from_long_ago_does_not_count() -> None:
    meter = RateMeter()
    meter.add(look(0.0, 0))
    meter.add(look(WINDOW_S + 1, 1_000_000))
    assert meter.rates() is None


def test_copies_of_an_entry_count_once_and_reads_wherever_they_were_answered() -> None:
    meter = RateMeter()
    nothing = Traffic()
    meter.add(look(0.0, 0, a=nothing, b=nothing))
    meter.add(look(2.0, 40, a=appended(40, _5=4), b=Traffic(4, 40, 400, 0.0, buckets(_9=4), 2, 20, 200)))
    rates = meter.rates()
    assert rates is not None
    assert (rates.whole.append_entries_per_s, rates.whole.append_bytes_per_s) == (20.0, 200.0)
    assert (rates.whole.read_entries_per_s, rates.whole.read_bytes_per_s) == (10.0, 100.0)
    assert (rates.nodes[A].append_entries_per_s, rates.nodes[B].append_entries_per_s) == (20.0, 0.0)
    assert rates.nodes[B].read_entries_per_s == 10.0
    assert rates.whole.append_p99_s is not None and rates.whole.append_p99_s <= LATENCY_BOUNDS_S[5]


def test_counters_that_have_fallen_were_reset() -> None:
    """A node that was restarted did what its new counters say, and nothing less than nothing."""
    meter = RateMeter()
    meter.add(look(0.0, 0, a=appended(1_000, _1=10)))
    meter.add(look(1.0, 3, a=appended(3, _1=1)))
    rates = meter.rates()
    assert rates is not None and rates.whole.append_entries_per_s == 3.0


def test_a_topic_or_a_replica_that_is_new_has_no_rate_yet() -> None:
    meter = RateMeter()
    meter.add(TrafficSample(0.0, {}, {}, {}))
    meter.add(look(1.0, 500, a=appended(500, _1=1)))
    rates = meter.rates()
    assert rates is not None and not rates.topics and not rates.nodes
    assert rates.whole.append_entries_per_s == 0.0


@given(st.lists(st.integers(0, 50), min_size=BUCKETS, max_size=BUCKETS), st.floats(0.01, 1.0))
def test_a_percentile_lies_in_the_bucket_that_holds_it(counts: list[int], share: float) -> None:
    found = latency_percentile(counts, share)
    if not sum(counts):
        assert found is None
        return
    assert found is not None
    below = [sum(counts[: number + 1]) for number in range(BUCKETS)]
    number = next(
        number for number in range(BUCKETS) if below[number] >= share * sum(counts) and counts[number]
    )
    low = LATENCY_BOUNDS_S[number - 1] if number else 0.0
    high = LATENCY_BOUNDS_S[min(number, BUCKETS - 2)]
    assert low <= found <= max(low, high)


def test_histograms_are_merged_bucket_by_bucket_and_empty_ones_are_passed_over() -> None:
    assert merged_buckets([(1, 2), (), (3, 4)]) == [4, 6]
    assert merged_buckets([]) == []
