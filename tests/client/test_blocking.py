"""The API without async: the same answers from any thread, lists instead of entries across threads, a clean end."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.client.fakes import FakeCluster, environment
from varlog.client.blocking import Admin, Log
from varlog.client.connect import connect_admin
from varlog.client.log import Log as AsyncLog
from varlog.client.loop_bridge import start
from varlog.model.entry import Position
from varlog.model.errors import EmptyBatch, NotWritten, Trimmed, Unavailable
from varlog.testing.processes import PATIENCE_S


@contextmanager
def connected(cluster: FakeCluster) -> Iterator[Log]:
    async def make() -> AsyncLog:
        await cluster.start()
        return await cluster.connect()

    with Log(*start(make())) as log:
        yield log


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "varlog"]


def test_every_call_answers_as_its_async_twin() -> None:
    with connected(FakeCluster(nodes=2, streams=2)) as log:
        assert log.append(b"1").glsn == 1
        run = log.append_batch([b"2", b"3"])
        assert [at.glsn for at in run] == [2, 3]
        assert run.last == run[1] == run[-1]
        assert log.read(2).data == b"2"
        assert log.read_stream(run.first.log_stream, run.first.llsn).data == b"2"
        assert log.tail() == 3
        assert [entry.data for entry in log.subscribe(1, 4)] == [b"1", b"2", b"3"]
        assert [entry.data for entries in log.subscribe_lists(2, 4) for entry in entries] == [b"2", b"3"]
        assert [row for batch in log.arrow(1, 4) for row in batch.column("data").to_pylist()] == [
            b"1",
            b"2",
            b"3",
        ]
        log.trim(1)
        assert log.trimmed() == 1
        assert (log.connector.mark().trimmed, log.connector.mark().high_watermark) == (1, 3)
        assert log.topic.name == "orders"
        assert len(log.streams) == len(log.connector.view().streams) == 2


def test_errors_come_through_as_they_are() -> None:
    with connected(FakeCluster()) as log:
        with pytest.raises(EmptyBatch):
            log.append_batch([])
        with pytest.raises(NotWritten):
            log.read(1)
        log.append_batch([b"1", b"2"])
        log.trim(1)
        with pytest.raises(Trimmed):
            next(log.subscribe(1))


def test_appends_of_many_threads_are_all_acknowledged() -> None:
    with connected(FakeCluster()) as log:
        positions: list[Position] = []

        def work() -> None:
            for _ in range(20):
                positions.append(log.append(b"x"))

        workers = [threading.Thread(target=work) for _ in range(5)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(position.glsn for position in positions) == list(range(1, 101))


def test_leaving_a_subscription_half_way_frees_it_and_the_log_stays_usable() -> None:
    with connected(FakeCluster()) as log:
        log.append_batch([b"1", b"2", b"3"])
        for entry in log.subscribe(1):
            if entry.glsn == 2:
                break
        follower = log.subscribe(3)
        assert next(follower).data == b"3"
        log.append(b"4")
        assert next(follower).data == b"4"
        follower.close()
        assert log.append(b"5").glsn == 5


def test_a_closed_log_refuses_calls_and_closing_twice_is_harmless() -> None:
    with connected(FakeCluster()) as log:
        log.append(b"1")
        pending = log.subscribe(1)
        next(pending)
        log.close()
        log.close()
        with pytest.raises(Unavailable, match="closed"):
            log.append(b"2")
        with pytest.raises(Unavailable, match="closed"):
            next(log.subscribe(1))
        pending.close()
    assert threads() == []


def test_a_forgotten_log_closes_itself() -> None:
    cluster = FakeCluster()

    async def make() -> AsyncLog:
        await cluster.start()
        return await cluster.connect()

    log = Log(*start(make()))
    assert log.append(b"1").glsn == 1
    del log
    gc.collect()
    assert threads() == []


def test_a_connection_that_cannot_be_made_leaves_no_thread_behind() -> None:
    with pytest.raises(Unavailable):
        start(FakeCluster().connect(timeout_s=0.02))
    assert threads() == []


def test_administration_without_async() -> None:
    cluster = FakeCluster(nodes=2)

    async def make() -> object:
        await cluster.start()
        return await connect_admin(cluster.transport, environment(), "repository")

    with Admin(*start(make())) as admin:  # type: ignore[arg-type]
        assert [node.node for node in admin.nodes()] == [1, 2]
        assert admin.create_topic("new").name == "new"
        assert [topic.name for topic in admin.topics()] == ["orders", "new"]
        assert admin.topic_mark("orders").high_watermark == 0
        assert len(admin.streams()) == 1


SCRIPT = """
import sys
from tests.client.fakes import FakeCluster
from varlog.client.blocking import Log
from varlog.client.loop_bridge import start
cluster = FakeCluster()
async def make():
    await cluster.start()
    return await cluster.connect()
log = Log(*start(make()))
log.append(b"1")
try:
    for entry in log.subscribe(1):
        print("got", entry.glsn, flush=True)
except KeyboardInterrupt:
    print("interrupted", log.append(b"2").glsn, flush=True)
if sys.argv[1] == "close":
    log.close()
"""


@pytest.mark.process
@pytest.mark.parametrize("end", ["close", "forget"])
def test_ctrl_c_ends_a_waiting_subscription_and_the_exit_is_quiet(end: str) -> None:
    """A log that is never closed ends at exit, without a word and without hanging."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT, end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "got 1\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (out, err, process.returncode) == ("interrupted 2\n", "", 0)
    finally:
        process.kill()
        process.communicate()
