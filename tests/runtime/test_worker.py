"""Workers: jobs run one after the other, in order, off the event loop, and what they raise arrives."""

from __future__ import annotations

import asyncio
import threading

import pytest

from varlog.runtime.worker import ThreadWorker


def test_jobs_run_in_the_order_they_were_given_and_off_the_loop() -> None:
    async def story() -> tuple[list[int], bool]:
        worker, ran = ThreadWorker("test"), list[int]()
        for number in range(500):
            done = worker.run(lambda number=number: ran.append(number))  # type: ignore[misc]
            if number % 7 == 0:
                await done
        here = await worker.run(threading.get_ident) == threading.get_ident()
        await worker.close()
        return ran, here

    assert asyncio.run(story()) == (list(range(500)), False)


def test_what_a_job_raises_reaches_its_waiter_and_the_next_job_runs() -> None:
    async def story() -> None:
        worker = ThreadWorker("test")
        for _ in range(100):
            with pytest.raises(OSError, match="disk full"):
                await worker.run(_fail)
            assert await worker.run(lambda: 7) == 7
        await worker.close()

    asyncio.run(story())


def _fail() -> None:
    raise OSError("disk full")
