"""How long a repair took, read from what the manager says it did."""

from __future__ import annotations

from benchmarks.faults.kill import reopening_s, sealing_s
from varlog.model.ids import LogStreamID
from varlog.rpc.messages import ManagerEvent

ONE, TWO = LogStreamID(1), LogStreamID(2)
MS = 1000


def test_a_repair_with_a_silent_node_has_two_parts() -> None:
    events = [
        ManagerEvent(100 * MS, "storage node 1 does not answer"),
        ManagerEvent(101 * MS, "seals the stream: storage node 1 does not answer", ONE),
        ManagerEvent(104 * MS, "seals the replicas on node 2 at 10 entries", ONE),
        ManagerEvent(106 * MS, "storage node 1 does not answer; it is replaced if that lasts 30 s", ONE),
        ManagerEvent(900 * MS, "storage node 1 answers again"),
        ManagerEvent(902 * MS, "seals the replicas on node 1 at 10 entries", ONE),
        ManagerEvent(910 * MS, "it runs", TWO),
        ManagerEvent(915 * MS, "it runs", ONE),
    ]
    assert sealing_s(events, 890 * MS) == 0.006
    assert reopening_s(events, 890 * MS) == 0.015


def test_a_node_that_was_back_before_its_heartbeat_counts_from_the_first_step_after_it_was_ready() -> None:
    """Only the other replica told of it: nobody said that the node was silent, nor that it is back."""
    events = [
        ManagerEvent(100 * MS, "seals the stream: the replica on node 2 is sealing", ONE),
        ManagerEvent(103 * MS, "seals the replicas on node 2 at 10 entries", ONE),
        ManagerEvent(500 * MS, "seals the replicas on node 1 at 10 entries", ONE),
        ManagerEvent(512 * MS, "it runs", ONE),
    ]
    assert sealing_s(events, 480 * MS) == 0.003
    assert reopening_s(events, 480 * MS) == 0.012


def test_nothing_done_took_no_time_that_can_be_told() -> None:
    assert (sealing_s([], 0), reopening_s([], 0)) == (None, None)
    silent = [ManagerEvent(100 * MS, "storage node 1 does not answer")]
    assert reopening_s(silent, 200 * MS) is None
