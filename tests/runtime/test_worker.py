"""Workers: jobs run one after the other, in order, and what they raise arrives; a quick one stays out of the loop's way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from varlog.runtime.worker import QuickWorker, ThreadWorker

WORKERS = pytest.mark.parametrize("make", [ThreadWorker, QuickWorker])
Make = Callable[[str], ThreadWorker | QuickWorker]


class SlowQuickWorker(QuickWorker):
    """One for which every job is slow."""

    QUICK_S = 0.0  # type: ignore[misc]


class FastQuickWorker(QuickWorker):
    """One for which every job is quick."""

    QUICK_S = 1000.0  # type: ignore[misc]

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._typical_s = 0.0


@WORKERS
def test_jobs_run_in_the_order_they_were_given(make: Make) -> None:
    async def story() -> list[int]:
        worker, ran = make("test"), list[int]()
        for number in range(500):
            done = worker.run(lambda number=number: ran.append(number))  # type: ignore[misc]
            if number % 7 == 0:
                await done
        await worker.close()
        return ran

    assert asyncio.run(story()) == list(range(500))


@WORKERS
def test_what_a_job_raises_reaches_its_waiter_and_the_next_job_runs(make: Make) -> None:
    async def story() -> None:
        worker = make("test")
        for _ in range(100):
            with pytest.raises(OSError, match="disk full"):
                await worker.run(_fail)
            assert await worker.run(lambda: 7) == 7
        await worker.close()

    asyncio.run(story())


def test_slow_jobs_leave_the_event_loop_and_quick_ones_do_not() -> None:
    async def places(worker: QuickWorker) -> set[bool]:
        here = threading.get_ident()
        found = {await worker.run(threading.get_ident) == here for _ in range(50)}
        await worker.close()
        return found

    assert asyncio.run(places(SlowQuickWorker("slow"))) == {False}
    assert asyncio.run(places(FastQuickWorker("fast"))) == {True}


def test_a_job_waits_for_those_that_are_still_in_the_thread() -> None:
    """Order before speed: a quick worker does nothing in place while an earlier job of its is under way."""

    async def story() -> list[str]:
        worker, ran, gate = FastQuickWorker("test"), list[str](), threading.Event()
        worker._typical_s = 2000.0

        def wait_then_run() -> None:
            gate.wait(60)
            ran.append("first")

        first = worker.run(wait_then_run)
        worker._typical_s = 0.0
        second = worker.run(lambda: ran.append("second"))
        assert ran == []
        gate.set()
        await asyncio.gather(first, second)
        await worker.close()
        return ran

    assert asyncio.run(story()) == ["first", "second"]


def _fail() -> None:
    raise OSError("disk full")
