"""The task by itself, without Spark around it: attempts at once, in other orders, with other rows; copies that keep positions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

import varlog
from tests.spark.busy_topic import BusyTopic, busy_topic
from varlog.client.writers.idempotent_rules import IndeterminateInput
from varlog.client.writers.positioned import OtherEntry
from varlog.model.errors import Unavailable
from varlog.spark.options import write_options
from varlog.spark.write.exactly_once_rules import Write
from varlog.spark.write.input_rules import InputColumns, InputError
from varlog.spark.write.task import PositionedWriteTask, WriteTask
from varlog.testing.tcp_cluster import WAIT_S, TcpCluster

ROWS = [b"row-%d %s" % (n, b"x" * 500) for n in range(12_000)]
WRITE = Write("w", 1, kept=True)


@pytest.fixture
def topic(cluster: TcpCluster, request: pytest.FixtureRequest) -> Iterator[BusyTopic]:
    name: str = request.node.name
    with busy_topic(cluster.repository.address, name) as found:
        yield found


def batches(rows: list[bytes], size: int = 700) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(rows), size):
        yield pa.RecordBatch.from_pydict({"data": pa.array(rows[begin : begin + size], pa.binary())})


def attempt(topic: BusyTopic, number: int, **options: str) -> WriteTask:
    """With a connection of its own, as in another process."""
    wanted = write_options(topic.options | options)
    return WriteTask(
        replace(wanted, where=replace(wanted.where, timeout_s=60.0 + number)), InputColumns("data")
    )


def test_attempts_at_once_in_the_same_and_in_other_orders_write_each_row_once(
    topic: BusyTopic, seed: int
) -> None:
    shuffled = random.Random(seed).sample(ROWS, len(ROWS))
    orders = [ROWS, ROWS, ROWS[::-1], shuffled]
    with ThreadPoolExecutor(len(orders)) as pool:
        running = [
            pool.submit(attempt(topic, number).run, WRITE, 0, batches(rows))
            for number, rows in enumerate(orders)
        ]
        results = [one.result() for one in running]
    topic.check(Counter(ROWS))
    assert all(one.write == WRITE and one.last > 0 for one in results)


def test_an_attempt_with_other_rows_fails_with_that_reason(topic: BusyTopic) -> None:
    attempt(topic, 0).run(WRITE, 0, batches(ROWS[:4000]))
    with pytest.raises(IndeterminateInput, match="orderBy"):
        attempt(topic, 1).run(WRITE, 0, batches(ROWS[1:4000]))
    topic.check(Counter(ROWS[:4000]))


def test_tasks_of_one_write_go_to_streams_in_turn(topic: BusyTopic) -> None:
    for partition in range(3):
        attempt(topic, 0).run(WRITE, partition, batches(ROWS[partition * 100 : partition * 100 + 100]))
    topic.check(Counter(ROWS[:300]))
    with varlog.connect(topic.address, topic.topic, timeout_s=WAIT_S) as log:
        found = [entry for part in log.subscribe_lists(1, log.tail() + 1) for entry in part]
    of_row = {entry.data: entry.log_stream for entry in found}
    first, second, third = (of_row[ROWS[partition * 100]] for partition in range(3))
    assert first == third != second


# --- positions are kept -----------------------------------------------------------------------------------------------


def placed(address: str, name: str, timeout_s: int = 20) -> PositionedWriteTask:
    options = {"address": address, "topic": name, "positions": "keep", "timeout": str(timeout_s)}
    return PositionedWriteTask(
        write_options(options), InputColumns("data", glsn="glsn", timestamp="timestamp")
    )


def rows_at(first: int, count: int, *, of: bytes = b"entry") -> Iterator[pa.RecordBatch]:
    """Two record batches; three rows each share a time."""
    for begin in range(first, first + count, -(-count // 2)):
        glsns = range(begin, min(begin + -(-count // 2), first + count))
        times = pa.array([glsn // 3 for glsn in glsns], pa.int64()).cast(pa.timestamp("us", "UTC"))
        data = pa.array([of + b" %d" % glsn for glsn in glsns], pa.binary())
        yield pa.RecordBatch.from_pydict(
            {"glsn": pa.array(glsns, pa.int64()), "timestamp": times, "data": data}
        )


def entries(address: str, name: str, first: int) -> list[tuple[int, int, bytes]]:
    with varlog.connect(address, name, timeout_s=WAIT_S) as log:
        return [
            (entry.glsn, entry.time_us, entry.data)
            for part in log.subscribe_lists(first, log.tail() + 1)
            for entry in part
        ]


@pytest.fixture
def copy(cluster: TcpCluster, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A topic with one stream that begins at 101."""
    address, name = cluster.repository.address, str(request.node.name)
    with varlog.admin(address, timeout_s=WAIT_S) as admin:
        admin.create_topic(name, streams=1, first=101)
    return address, name


def test_rows_keep_their_positions_and_times_whichever_task_comes_first(copy: tuple[str, str]) -> None:
    """The second task is there before the first one; both are run again, and find everything."""
    with ThreadPoolExecutor(2) as pool:
        later = pool.submit(placed(*copy, 21).run, WRITE, rows_at(201, 50))
        first = placed(*copy).run(WRITE, rows_at(101, 100))
        assert (first.rows, first.last, later.result().last) == (100, 200, 250)
    again = placed(*copy).run(WRITE, rows_at(101, 150))
    assert (again.rows, again.rows_found) == (0, 150)
    assert entries(*copy, 101) == [(glsn, glsn // 3, b"entry %d" % glsn) for glsn in range(101, 251)]


def test_something_else_at_a_position_is_an_error_that_names_it(copy: tuple[str, str]) -> None:
    placed(*copy).run(WRITE, rows_at(101, 10))
    with pytest.raises(OtherEntry, match="LLSN 1 of log stream"):
        placed(*copy).run(WRITE, rows_at(101, 10, of=b"other"))


def test_positions_that_no_copy_can_have_are_refused(copy: tuple[str, str]) -> None:
    with pytest.raises(InputError, match=r"a row has position 100, and topic .* begins at 101"):
        placed(*copy).run(WRITE, rows_at(100, 5))
    with pytest.raises(InputError, match=r"position 106 is next, and a row has 107.*sortWithinPartitions"):
        placed(*copy).run(WRITE, iter([*rows_at(101, 5), *rows_at(107, 5)]))
    with pytest.raises(
        Unavailable, match=r"position 300 cannot be written: the log ends at \d+, and nothing was appended"
    ):
        placed(*copy, 1).run(WRITE, rows_at(300, 5))
