"""Workers: jobs run one after the other, in order, off the event loop, and what they raise arrives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from varlog.runtime import worker as workers
from varlog.runtime.worker import LatencyGate, ThreadWorker, Worker
from varlog.runtime.worker_pool import WorkerPool

Make = Callable[[], tuple[Worker, Callable[[], Awaitable[None]]]]


def _alone() -> tuple[Worker, Callable[[], Awaitable[None]]]:
    worker = ThreadWorker("test")
    return worker, worker.close


def _pooled() -> tuple[Worker, Callable[[], Awaitable[None]]]:
    pool = WorkerPool("test", 3)
    workers = [pool.worker(str(number)) for number in range(5)]
    return workers[0], pool.close


@pytest.mark.parametrize("make", [_alone, _pooled])
def test_jobs_run_in_the_order_they_were_given_and_off_the_loop(make: Make) -> None:
    async def story() -> tuple[list[int], bool]:
        (worker, close), ran = make(), list[int]()
        for number in range(500):
            done = worker.run(lambda number=number: ran.append(number))  # type: ignore[misc]
            if number % 7 == 0:
                await done
        here = await worker.run(threading.get_ident) == threading.get_ident()
        await close()
        return ran, here

    assert asyncio.run(story()) == (list(range(500)), False)


@pytest.mark.parametrize("make", [_alone, _pooled])
def test_what_a_job_raises_reaches_its_waiter_and_the_next_job_runs(make: Make) -> None:
    async def story() -> None:
        worker, close = make()
        for _ in range(100):
            with pytest.raises(OSError, match="disk full"):
                await worker.run(_fail)
            assert await worker.run(lambda: 7) == 7
        await close()

    asyncio.run(story())


def test_many_workers_share_few_threads_and_each_keeps_its_order() -> None:
    async def story() -> int:
        pool, ran, completed = WorkerPool("test", 3), dict[int, list[int]](), dict[int, list[int]]()
        workers = [pool.worker(str(number)) for number in range(50)]
        threads = set[int]()

        def job(number: int, step: int) -> None:
            threads.add(threading.get_ident())
            ran.setdefault(number, []).append(step)

        for step in range(40):
            for number, worker in enumerate(workers):
                done = partial(_note, completed, number, step)
                worker.call(partial(job, number, step), done)
        for worker in workers:
            await worker.close()
        await pool.close()
        assert ran == completed == {number: list(range(40)) for number in range(50)}
        return len(threads)

    assert asyncio.run(story()) <= 3


def _note(completed: dict[int, list[int]], number: int, step: int, result: object, error: object) -> None:
    completed.setdefault(number, []).append(step)


def test_one_worker_that_hangs_holds_up_no_other_while_threads_are_left() -> None:
    async def story() -> None:
        pool, gate = WorkerPool("test", 2), threading.Event()
        slow, quick = pool.worker("slow"), pool.worker("quick")
        hanging = slow.run(gate.wait)
        later = slow.run(lambda: "later")
        for number in range(100):
            assert await quick.run(lambda number=number: number) == number  # type: ignore[misc]
        assert not later.done()
        gate.set()
        assert await hanging
        assert await later == "later"
        await pool.close()

    asyncio.run(story())


def test_a_pool_that_is_closed_leaves_no_thread() -> None:
    async def story() -> None:
        pool = WorkerPool("leaves none", 4)
        workers = [pool.worker(str(number)) for number in range(6)]
        assert sum(thread.name.startswith("leaves none") for thread in threading.enumerate()) == 4
        for worker in workers:
            await worker.close()
        await pool.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("leaves none")]

    asyncio.run(story())


def test_a_callback_that_fails_is_reported_and_the_others_are_called() -> None:
    async def story() -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: reported.append(context["exception"])
        )
        pool = WorkerPool("test", 1)
        first, second = pool.worker("first"), pool.worker("second")
        first.call(lambda: None, lambda result, error: _fail())
        assert await second.run(lambda: 7) == 7
        assert [type(error) for error in reported] == [OSError]
        await pool.close()

    asyncio.run(story())


def _fail() -> None:
    raise OSError("disk full")


# --- inline jobs ----------------------------------------------------------------------------------------------------------------


def test_an_inline_job_runs_in_the_loop_before_the_call_returns() -> None:
    async def story() -> tuple[list[object], int]:
        worker, returned = ThreadWorker("test"), list[object]()
        worker.call(threading.get_ident, lambda result, error: returned.extend([result, error]), inline=True)
        at_once = list(returned)
        await worker.close()
        return at_once, threading.get_ident()

    returned, here = asyncio.run(story())
    assert returned == [here, None]


def test_an_inline_job_overtakes_no_job_of_the_thread() -> None:
    async def story() -> list[str]:
        worker, ran, gate = ThreadWorker("test"), list[str](), threading.Event()

        def first() -> None:
            gate.wait(10)
            ran.append("first")

        one = worker.run(first)
        two = worker.run(lambda: ran.append("second"), inline=True)
        at_once = [worker.can_run_inline]
        gate.set()
        await asyncio.gather(one, two)
        at_once.append(worker.can_run_inline)
        await worker.close()
        assert at_once == [False, True]
        return ran

    assert asyncio.run(story()) == ["first", "second"]


def test_after_a_slow_one_inline_jobs_go_to_the_thread_until_enough_were_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> tuple[list[bool], bool]:
        worker, here = ThreadWorker("test"), list[bool]()
        monkeypatch.setattr(workers, "QUICK_S", -1.0)  # everything is slow
        await worker.run(lambda: None, inline=True)
        monkeypatch.setattr(workers, "QUICK_S", 60.0)  # nothing is
        for _ in range(workers.QUICK_IN_A_ROW):
            here.append(await worker.run(threading.get_ident, inline=True) == threading.get_ident())
        again = await worker.run(threading.get_ident, inline=True) == threading.get_ident()
        await worker.close()
        return here, again

    assert asyncio.run(story()) == ([False] * workers.QUICK_IN_A_ROW, True)


def test_one_slow_job_among_quick_ones_resets_the_count() -> None:
    pace = LatencyGate()
    pace.took(1.0)
    for _ in range(workers.QUICK_IN_A_ROW - 1):
        pace.took(0.0)
    pace.took(1.0)
    for _ in range(workers.QUICK_IN_A_ROW - 1):
        pace.took(0.0)
        assert not pace.quick
    pace.took(0.0)
    assert pace.quick


@pytest.mark.parametrize("inline", [True, False])
def test_what_an_inline_job_raises_reaches_its_waiter(inline: bool) -> None:
    async def story() -> None:
        worker = ThreadWorker("test")
        with pytest.raises(OSError, match="disk full"):
            await worker.run(_fail, inline=inline)
        assert await worker.run(lambda: 7, inline=inline) == 7
        await worker.close()

    asyncio.run(story())
