"""Workers: jobs run one after the other, in order, off the event loop, and what they raise arrives."""

from __future__ import annotations

import asyncio
import threading

import pytest

from varlog.runtime import worker as workers
from varlog.runtime.worker import Pace, ThreadWorker


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


# --- brief jobs ----------------------------------------------------------------------------------------------------------------


def test_a_brief_job_runs_in_the_loop_before_the_call_returns() -> None:
    async def story() -> tuple[list[object], int]:
        worker, told = ThreadWorker("test"), list[object]()
        worker.call(threading.get_ident, lambda result, error: told.extend([result, error]), brief=True)
        at_once = list(told)
        await worker.close()
        return at_once, threading.get_ident()

    told, here = asyncio.run(story())
    assert told == [here, None]


def test_a_brief_job_overtakes_no_job_of_the_thread() -> None:
    async def story() -> list[str]:
        worker, ran, gate = ThreadWorker("test"), list[str](), threading.Event()

        def first() -> None:
            gate.wait(10)
            ran.append("first")

        one = worker.run(first)
        two = worker.run(lambda: ran.append("second"), brief=True)
        at_once = [worker.at_once]
        gate.set()
        await asyncio.gather(one, two)
        at_once.append(worker.at_once)
        await worker.close()
        assert at_once == [False, True]
        return ran

    assert asyncio.run(story()) == ["first", "second"]


def test_after_a_slow_one_brief_jobs_go_to_the_thread_until_enough_were_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> tuple[list[bool], bool]:
        worker, here = ThreadWorker("test"), list[bool]()
        monkeypatch.setattr(workers, "QUICK_S", -1.0)  # everything is slow
        await worker.run(lambda: None, brief=True)
        monkeypatch.setattr(workers, "QUICK_S", 60.0)  # nothing is
        for _ in range(workers.QUICK_IN_A_ROW):
            here.append(await worker.run(threading.get_ident, brief=True) == threading.get_ident())
        again = await worker.run(threading.get_ident, brief=True) == threading.get_ident()
        await worker.close()
        return here, again

    assert asyncio.run(story()) == ([False] * workers.QUICK_IN_A_ROW, True)


def test_one_slow_job_among_quick_ones_begins_the_count_anew() -> None:
    pace = Pace()
    pace.took(1.0)
    for _ in range(workers.QUICK_IN_A_ROW - 1):
        pace.took(0.0)
    pace.took(1.0)
    for _ in range(workers.QUICK_IN_A_ROW - 1):
        pace.took(0.0)
        assert not pace.quick
    pace.took(0.0)
    assert pace.quick


@pytest.mark.parametrize("brief", [True, False])
def test_what_a_brief_job_raises_reaches_its_waiter(brief: bool) -> None:
    async def story() -> None:
        worker = ThreadWorker("test")
        with pytest.raises(OSError, match="disk full"):
            await worker.run(_fail, brief=brief)
        assert await worker.run(lambda: 7, brief=brief) == 7
        await worker.close()

    asyncio.run(story())
