"""O1 without async: a refusal costs the loop nothing.

Each refusal went to the loop's thread and back, and cost more than an append that was served. With hundreds of threads
the loop was busy with refusals, or waited for a processor that refused threads occupied, and served nothing.
"""

from __future__ import annotations

import threading

import pytest

from tests.client.fakes import FakeCluster
from tests.client.test_blocking import connected
from varlog.client.batcher import Batcher
from varlog.client.blocking import Log
from varlog.model.errors import Overloaded, Unavailable
from varlog.model.limits import GATHER_WAITING_BYTES_MAX
from varlog.testing.processes import PATIENCE_S


def batcher_of(log: Log) -> Batcher:
    return log._log._appender._batchers[None]


def test_o1_a_refused_thread_needs_nothing_of_the_loop() -> None:
    """Neither its thread nor its time: here the loop is blocked for as long as the refusal takes."""
    stopped, resume = threading.Event(), threading.Event()

    async def stalled() -> bool:
        stopped.set()
        return resume.wait(PATIENCE_S)

    with connected(FakeCluster()) as log:
        assert log.append(b"first").glsn == 1
        batcher = batcher_of(log)
        still = log._thread.start(stalled())
        stopped.wait()
        try:
            # As if that much waited: a second of it is ahead of each append.
            done = log._thread._loop.create_future()
            batcher._waiting.append((b"x", done, 0.0, 0.0))
            batcher._entry_s = 1.0
            with pytest.raises(Overloaded) as refused:
                log.append(b"no", timeout_s=1.0)
            assert refused.value.waiting == 1 and refused.value.retry_after_s > 0
        finally:
            batcher._waiting.clear()
            batcher._entry_s = 0.0
            resume.set()
        assert still.wait(), "the refusal has waited for the loop"
        assert log.append(b"second").glsn == 2


def test_what_is_refused_in_any_thread_is_what_the_loop_refuses() -> None:
    with connected(FakeCluster()) as log:
        assert log._log.connector.refusal(GATHER_WAITING_BYTES_MAX + 1) is None, (
            "nothing waits, nothing was appended"
        )
        log.append(b"first")
        assert log._log.connector.refusal(GATHER_WAITING_BYTES_MAX + 1) is None, "nothing waits"
    with pytest.raises(Unavailable):
        log.append(b"closed")


def test_a_closed_log_reports_that_it_is_closed_whatever_waits() -> None:
    with connected(FakeCluster()) as log:
        log.append(b"first")
        batcher = batcher_of(log)
    batcher._waiting.append((b"x", None, 0.0, 0.0))  # type: ignore[arg-type]
    batcher._entry_s = 1000.0
    with pytest.raises(Unavailable, match="closed"):
        log.append(b"no")
