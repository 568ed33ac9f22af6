"""How long a repair took, read from what the manager says it did."""

from __future__ import annotations

from benchmarks.faults.kill import reopening_s, sealing_s
from varlog.model.events import Event, EventKind
from varlog.model.ids import LogStreamID

ONE, TWO = LogStreamID(1), LogStreamID(2)
MS = 1000


def test_a_repair_with_a_silent_node_has_two_parts() -> None:
    events = [
        Event(EventKind.NODE_UNREACHABLE, 100 * MS),
        Event(EventKind.SEAL_STREAM, 101 * MS, ONE),
        Event(EventKind.SEAL_REPLICAS, 104 * MS, ONE),
        Event(EventKind.SEAL_REPLICAS, 106 * MS, ONE, failure="no answer"),
        Event(EventKind.NODE_RETURNED, 900 * MS),
        Event(EventKind.SEAL_REPLICAS, 902 * MS, ONE),
        Event(EventKind.RUNNING, 910 * MS, TWO),
        Event(EventKind.RUNNING, 915 * MS, ONE),
    ]
    assert sealing_s(events, 890 * MS) == 0.006
    assert reopening_s(events, 890 * MS) == 0.015


def test_a_node_that_was_back_before_its_heartbeat_counts_from_the_first_step_after_it_was_ready() -> None:
    """Only the other replica reported it: no event says that the node was silent, nor that it is back."""
    events = [
        Event(EventKind.SEAL_STREAM, 100 * MS, ONE),
        Event(EventKind.SEAL_REPLICAS, 103 * MS, ONE),
        Event(EventKind.SEAL_REPLICAS, 500 * MS, ONE),
        Event(EventKind.RUNNING, 512 * MS, ONE),
    ]
    assert sealing_s(events, 480 * MS) == 0.003
    assert reopening_s(events, 480 * MS) == 0.012


def test_a_repair_without_steps_has_no_times() -> None:
    assert (sealing_s([], 0), reopening_s([], 0)) == (None, None)
    silent = [Event(EventKind.NODE_UNREACHABLE, 100 * MS)]
    assert reopening_s(silent, 200 * MS) is None
