"""What a process counts of itself: buckets with their ends, and traffic in whole batches."""

from __future__ import annotations

from varlog.model.status import LATENCY_BOUNDS_S, Traffic
from varlog.runtime.metrics import Histogram, TrafficMeter


def test_a_value_is_counted_in_the_first_bucket_that_is_large_enough() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.0, 1.0, 1.5, 5.0, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 1]
    assert histogram.total == 14.5


def test_a_traffic_snapshot_has_what_was_counted() -> None:
    meter = TrafficMeter(lambda: 0.0)
    assert meter.snapshot() == Traffic()
    meter.appended(10, 1_000, 0.002)
    meter.appended(1, 50, 99.0)
    meter.read(7, 700)
    traffic = meter.snapshot()
    assert (traffic.appends, traffic.append_entries, traffic.append_bytes, traffic.append_s) == (
        2,
        11,
        1_050,
        99.002,
    )
    assert (traffic.reads, traffic.read_entries, traffic.read_bytes) == (1, 7, 700)
    assert len(traffic.append_buckets) == len(LATENCY_BOUNDS_S) + 1
    assert traffic.append_buckets[LATENCY_BOUNDS_S.index(0.002)] == traffic.append_buckets[-1] == 1
