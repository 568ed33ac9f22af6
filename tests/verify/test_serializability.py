"""The cycle checker names every anomaly of hand-made histories, takes serial ones, and knows what each level allows."""

from __future__ import annotations

import random

import pytest

from varlog.verify.serializability import FORBIDDEN, anomalies, violations
from varlog.verify.transaction_history import (
    ListRead,
    ListTransaction,
    RecordedTransaction,
    TransactionHistory,
    history_of_lists,
    read_op,
    write_op,
)


def registers(*transactions: RecordedTransaction, **orders: list[int]) -> TransactionHistory:
    """Versions in the order that is given, a revision each."""
    revisions = [(key, at, version) for key, order in orders.items() for at, version in enumerate(order)]
    return TransactionHistory.of_registers(transactions, revisions)


def kinds(history: TransactionHistory) -> set[str]:
    return {anomaly.kind for anomaly in anomalies(history)}


def lists(*transactions: ListTransaction) -> TransactionHistory:
    return history_of_lists(transactions)


def test_a_serial_history_has_no_anomaly() -> None:
    history = registers(
        RecordedTransaction("T1", [read_op("x", None), write_op("x", 1), write_op("y", 1)], began=1, ended=2),
        RecordedTransaction(
            "T2", [read_op("x", 1), read_op("y", 1), write_op("y", 2), read_op("y", 2)], began=3, ended=4
        ),
        RecordedTransaction("T3", [read_op("y", 2)], began=5, ended=6),
        x=[1],
        y=[1, 2],
    )
    assert anomalies(history) == []


def test_writes_that_cross_are_g0() -> None:
    history = registers(
        RecordedTransaction("T1", [write_op("x", 1), write_op("y", 1)]),
        RecordedTransaction("T2", [write_op("x", 2), write_op("y", 2)]),
        x=[1, 2],
        y=[2, 1],
    )
    assert "G0" in kinds(history)
    anomaly = next(one for one in anomalies(history) if one.kind == "G0")
    assert "T1" in anomaly.sentence and "T2" in anomaly.sentence and "(ww)" in anomaly.sentence


def test_a_read_of_what_was_aborted_is_g1a() -> None:
    history = registers(
        RecordedTransaction("T1", [write_op("x", 1)], committed=False),
        RecordedTransaction("T2", [read_op("x", 1)]),
        x=[],
    )
    assert kinds(history) == {"G1a"}


def test_a_read_of_what_was_written_over_by_its_own_writer_is_g1b() -> None:
    history = registers(
        RecordedTransaction("T1", [write_op("x", 1), write_op("x", 2)]),
        RecordedTransaction("T2", [read_op("x", 1)]),
        x=[2],
    )
    assert kinds(history) == {"G1b"}


def test_two_that_read_each_other_are_g1c() -> None:
    history = registers(
        RecordedTransaction("T1", [write_op("x", 1), read_op("y", 1)]),
        RecordedTransaction("T2", [write_op("y", 1), read_op("x", 1)]),
        x=[1],
        y=[1],
    )
    assert kinds(history) == {"G1c"}


def test_a_lost_update_is_g_single() -> None:
    history = registers(
        RecordedTransaction("T1", [read_op("x", None), write_op("x", 1)]),
        RecordedTransaction("T2", [read_op("x", None), write_op("x", 2)]),
        x=[1, 2],
    )
    assert kinds(history) == {"G-single"}


def test_half_of_what_another_wrote_is_read_skew_and_g_single() -> None:
    history = registers(
        RecordedTransaction("T1", [write_op("x", 1), write_op("y", 1)]),
        RecordedTransaction("T2", [read_op("x", None), read_op("y", 1)]),
        x=[1],
        y=[1],
    )
    assert kinds(history) == {"G-single"}


WRITE_SKEW = (
    RecordedTransaction("T1", [read_op("x", None), read_op("y", None), write_op("x", 1)]),
    RecordedTransaction("T2", [read_op("x", None), read_op("y", None), write_op("y", 1)]),
)


def test_write_skew_is_g2_which_a_snapshot_allows_and_serializable_does_not() -> None:
    history = registers(*WRITE_SKEW, x=[1], y=[1])
    assert kinds(history) == {"G2"}
    assert violations(history, "snapshot") == violations(history, "read_committed") == []
    [anomaly] = violations(history, "serializable")
    assert "(rw)" in anomaly.sentence and "T1[r(x, None), r(y, None), w(x, 1)]" in anomaly.sentence


def test_two_antidependencies_that_are_not_in_a_row_are_forbidden_under_snapshot() -> None:
    """A long fork: two readers see two writes in different orders."""
    history = registers(
        RecordedTransaction("W1", [write_op("x", 1)]),
        RecordedTransaction("W2", [write_op("y", 1)]),
        RecordedTransaction("R1", [read_op("x", 1), read_op("y", None)]),
        RecordedTransaction("R2", [read_op("x", None), read_op("y", 1)]),
        x=[1],
        y=[1],
    )
    assert kinds(history) == {"G-nonadjacent"}
    assert violations(history, "snapshot") and not violations(history, "read_committed")


def test_a_stale_read_after_the_end_of_a_write_is_found_by_real_time_alone() -> None:
    history = registers(
        RecordedTransaction("T1", [write_op("x", 1)], began=1, ended=2),
        RecordedTransaction("T2", [read_op("x", None)], began=3, ended=4),
        x=[1],
    )
    assert kinds(history) == {"G-single-realtime"}
    assert violations(history, "snapshot") and not violations(history, "read_committed")


def test_a_write_whose_outcome_is_unknown_counts_only_if_it_was_read() -> None:
    torn = [write_op("x", 1), write_op("y", 1)]
    unseen = registers(
        RecordedTransaction("T1", torn, committed=None), RecordedTransaction("T2", [read_op("x", None)])
    )
    assert anomalies(unseen) == []
    seen = registers(
        RecordedTransaction("T1", torn, committed=None),
        RecordedTransaction("T2", [read_op("x", 1), read_op("y", None)]),
        x=[1],
        y=[1],
    )
    assert kinds(seen) == {"G-single"}


def test_reads_that_change_miss_own_writes_or_were_never_written_are_reported() -> None:
    history = registers(
        RecordedTransaction("T1", [write_op("x", 1)]),
        RecordedTransaction("T2", [read_op("x", None), read_op("x", 1)]),
        RecordedTransaction("T3", [write_op("y", 1), read_op("y", None)]),
        RecordedTransaction("T4", [read_op("z", 9)]),
        x=[1],
        y=[1],
    )
    assert {"unrepeatable", "internal", "garbage-read"} <= kinds(history)


def test_a_revision_that_is_two_versions_is_reported() -> None:
    history = TransactionHistory.of_registers((), [("x", 1, 1), ("x", 1, 2), ("y", 1, 1), ("y", 2, 1)])
    assert [kind for kind, _ in history.wrong] == ["incompatible-order"] * 2


def test_lists_show_their_own_order() -> None:
    history = lists(
        ListTransaction("T1", [ListRead("x", ()), ("x", 1)], began=1, ended=2),
        ListTransaction("T2", [ListRead("x", (1,)), ("x", 2), ListRead("x", (1, 2))], began=3, ended=4),
        ListTransaction("T3", [ListRead("x", (1, 2))], began=5, ended=6),
    )
    assert anomalies(history) == []
    assert history.orders == {"x": [1, 2]}


def test_a_list_that_loses_an_append_or_has_one_twice_or_two_orders_is_reported() -> None:
    lost = lists(
        ListTransaction("T1", [("x", 1)], began=1, ended=2),
        ListTransaction("T2", [ListRead("x", ())], began=3, ended=4),
    )
    assert "lost-append" in kinds(lost)
    twice = lists(ListTransaction("T1", [("x", 1)]), ListTransaction("T2", [ListRead("x", (1, 1))]))
    assert "duplicate" in kinds(twice)
    fork = lists(
        ListTransaction("T1", [("x", 1)]),
        ListTransaction("T2", [("x", 2)]),
        ListTransaction("T3", [ListRead("x", (1, 2))]),
        ListTransaction("T4", [ListRead("x", (2,))]),
    )
    assert "incompatible-order" in kinds(fork)
    blind = lists(ListTransaction("T1", [("x", 1), ListRead("x", ())]))
    assert "internal" in kinds(blind)


def test_write_skew_of_lists_is_g2() -> None:
    history = lists(
        ListTransaction("T1", [ListRead("x", ()), ListRead("y", ()), ("x", 1)]),
        ListTransaction("T2", [ListRead("x", ()), ListRead("y", ()), ("y", 2)]),
        ListTransaction("T3", [ListRead("x", (1,)), ListRead("y", (2,))]),
    )
    assert kinds(history) == {"G2"}


def test_each_level_forbids_all_that_a_weaker_one_does() -> None:
    assert FORBIDDEN["read_committed"] < FORBIDDEN["snapshot"] < FORBIDDEN["serializable"]


@pytest.mark.parametrize("case", range(40))
def test_a_serial_run_is_clean_and_one_stale_read_is_found(case: int) -> None:
    """A serial run of random transactions has no anomaly; one of its reads made older has one at least."""
    rng = random.Random(case)
    state: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    transactions: list[RecordedTransaction] = []
    for number in range(30):
        ops = []
        for key in rng.sample(sorted(state), rng.randint(1, 3)):
            ops.append(read_op(key, state[key][-1] if state[key] else None))
            if rng.random() < 0.5:
                state[key].append(number)
                ops.append(write_op(key, number))
        transactions.append(RecordedTransaction(f"T{number}", ops, began=2 * number, ended=2 * number + 1))
    assert anomalies(registers(*transactions, **state)) == []
    late = [
        (one, at)
        for one in transactions
        for at, op in enumerate(one.ops)
        if not op.writes and op.version is not None
    ]
    one, at = rng.choice(late)
    key, version = one.ops[at].key, one.ops[at].version
    before = state[key].index(int(version or 0)) - 1
    one.ops[at] = read_op(key, state[key][before] if before >= 0 else None)
    assert violations(registers(*transactions, **state), "serializable")
