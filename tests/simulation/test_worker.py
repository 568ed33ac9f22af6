"""The simulated worker: in order, later, and not at all once its process is dead."""

from __future__ import annotations

import asyncio
import random

import pytest

from varlog.testing.sim.core import loop
from varlog.testing.sim.core.host import SimWorker
from varlog.testing.sim.core.loop import Process, ProcessCrashed


def test_jobs_run_in_order_and_take_time() -> None:
    async def work() -> tuple[list[int], list[int], float]:
        worker = SimWorker(Process("sn1"), random.Random(1))
        ran: list[int] = []
        answered: list[int] = []
        for number in range(30):
            done = worker.run(lambda number=number: ran.append(number))  # type: ignore[misc]
            done.add_done_callback(lambda _, number=number: answered.append(number))  # type: ignore[misc]
        await worker.close()
        await asyncio.sleep(0)
        return ran, answered, asyncio.get_running_loop().time()

    ran, answered, took = loop.run_simulated(work())
    assert ran == answered == list(range(30))
    assert took > 0


def test_an_error_reaches_the_waiter_and_the_next_job_runs() -> None:
    async def work() -> str:
        worker = SimWorker(Process("sn1"), random.Random(1))

        def fail() -> None:
            raise OSError("planted")

        failed, fine = worker.run(fail), worker.run(lambda: "fine")
        with pytest.raises(OSError, match="planted"):
            await failed
        return await fine

    assert loop.run_simulated(work()) == "fine"


def test_a_dead_process_has_no_worker() -> None:
    async def work() -> list[str]:
        process = Process("sn1")
        worker = SimWorker(process, random.Random(1))
        ran: list[str] = []
        done = worker.run(lambda: ran.append("after death"))
        process.die()
        await asyncio.sleep(10)
        assert not done.done()
        with pytest.raises(ProcessCrashed):
            await worker.run(lambda: None)
        return ran

    assert loop.run_simulated(work()) == []
