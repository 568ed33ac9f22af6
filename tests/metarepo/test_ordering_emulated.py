"""The emulation of benchmarks/ordering: a real repository orders what emulated nodes report, and its check sees what is wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ordering.emulation import Emulation
from benchmarks.ordering.history import OrderBroken, ReceivedRows, check_order
from benchmarks.ordering.load import Load, durable_ends

# Two streams of one topic, two replicas: stream 0 has entries 1 to 5 and stream 1 entries 1 to 4, in three cuts. The second replica
# of stream 1 was slow and got the last two cuts at once; in both orders they follow each other, so it is one row.
GOOD = ReceivedRows(
    replica=np.array([0, 0, 0, 0, 1, 1, 1]),
    stream=np.array([0, 1, 0, 1, 0, 0, 1]),
    llsn=np.array([1, 1, 4, 3, 1, 4, 1]),
    glsn=np.array([1, 6, 4, 8, 1, 4, 6]),
    count=np.array([3, 2, 2, 2, 3, 2, 4]),
)
ENDS, TOPICS = np.array([6, 5]), np.array([1, 1])


def changed(rows: ReceivedRows, field: str, place: int, value: int) -> ReceivedRows:
    column = getattr(rows, field).copy()
    column[place] = value
    return replace(rows, **{field: column})


def test_an_order_that_is_sent_in_other_pieces_is_the_same_order() -> None:
    assert check_order(GOOD, ENDS, TOPICS, 2) == 9


@pytest.mark.parametrize(
    ("rows", "ends", "why"),
    [
        (changed(GOOD, "llsn", 2, 5), ENDS, "an LLSN is left out"),
        (changed(GOOD, "llsn", 2, 3), ENDS, "an LLSN is ordered twice"),
        (changed(GOOD, "llsn", 0, 2), ENDS, "a stream does not begin at 1"),
        (changed(GOOD, "glsn", 5, 8), ENDS, "replicas got different positions"),
        (changed(changed(GOOD, "glsn", 3, 9), "glsn", 6, 7), ENDS, "a GLSN is left out"),
        (changed(GOOD, "stream", 6, 0), ENDS, "a replica got nothing of a stream"),
        (changed(GOOD, "count", 3, 0), ENDS, "an empty row"),
        (GOOD, np.array([6, 6]), "not all that was reported is ordered"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_check_sees_that(
    rows: ReceivedRows, ends: np.ndarray[tuple[int], np.dtype[np.int64]], why: str
) -> None:
    with pytest.raises(OrderBroken):
        check_order(rows, ends, TOPICS, 2)


def test_every_replica_of_a_stream_is_on_a_node_of_its_own_and_no_node_has_too_many() -> None:
    load = Load(streams=100, copies=3, replicas_per_node=16)
    holders = load.holders()
    assert all(len(set(nodes)) == 3 for nodes in holders.tolist())
    assert np.bincount(holders.ravel(), minlength=load.nodes).max() <= 16


def test_the_first_sufficient_report_is_found() -> None:
    load = Load(streams=50, rate=700.0, interval_ms=20.0, replicas_per_node=16)
    rates, phases_s = load.rates(), load.phases_s()
    for node in range(load.nodes):
        for report in range(1, 20):
            ends = durable_ends(rates, load.said_at_s(node, report))
            before = durable_ends(rates, load.said_at_s(node, report - 1))
            found = load.first_report_of(ends, rates, phases_s[np.full(50, node)])
            assert (found[ends > before] == report).all()


@pytest.mark.process
def test_a_real_repository_orders_what_emulated_nodes_report(tmp_path: Path) -> None:
    """Laws 3 and 4 over real sockets and a real store: `run` fails if anything sent is missing, duplicated or different."""
    load = Load(
        streams=300,
        rate=2_000.0,
        interval_ms=20.0,
        replicas_per_node=32,
        topics=3,
        warm_up_s=0.2,
        seconds=0.6,
    )

    async def body() -> int:
        async with asyncio.timeout(200):
            return (await Emulation(load, tmp_path, processes=2).run()).entries

    assert asyncio.run(body()) == int((durable_ends(load.rates(), load.end_s) - 1).sum())
