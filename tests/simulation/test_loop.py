"""The simulated loop: time that jumps, the same order every run, and a clear error when nothing can continue."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from varlog.testing.sim.core import loop
from varlog.testing.sim.core.loop import CURRENT, Process


def test_hours_pass_in_no_time_and_time_starts_at_zero() -> None:
    async def work() -> tuple[float, float]:
        running = asyncio.get_running_loop()
        before = running.time()
        await asyncio.sleep(7200)
        return before, running.time()

    assert loop.run_simulated(work()) == (0.0, 7200.0)


def test_timers_of_one_moment_fire_in_the_order_they_were_made() -> None:
    async def work() -> list[int]:
        fired: list[int] = []
        for number in range(50):
            asyncio.get_running_loop().call_at(1.0, fired.append, number)
        await asyncio.sleep(2)
        return fired

    assert loop.run_simulated(work()) == list(range(50))


def test_a_timeout_of_asyncio_works_in_virtual_time() -> None:
    async def work() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time()

    assert loop.run_simulated(work()) == 30.0


def test_a_deadlock_is_reported_with_the_names_of_the_tasks() -> None:
    async def work() -> None:
        await asyncio.get_running_loop().create_task(_forever(), name="the-waiter")

    with pytest.raises(loop.SimulationStuck, match=r"nothing is left to happen.*the-waiter"):
        loop.run_simulated(work())


def test_a_run_without_end_is_stopped() -> None:
    async def work() -> None:
        for _ in range(10_000):
            await asyncio.sleep(0)

    with pytest.raises(loop.SimulationStuck, match="no end after"):
        loop.run_simulated(work(), steps_max=1000)


def test_a_callback_that_never_returns_is_stopped_and_named() -> None:
    async def work() -> None:
        with suppress(Exception):  # as a worker does that passes on whatever its job raises
            spin_forever()

    def spin_forever() -> None:
        while True:
            pass

    made = loop.make_loop()
    try:
        with (
            pytest.raises(loop.SimulationStuck, match=r"(?s)no end after.*spin_forever"),
            made.limit_processor_time(0.05),
        ):
            made.run_until_complete(work())
    finally:
        made.close()


def test_a_dead_process_never_runs_again_not_even_its_finally() -> None:
    async def work() -> list[str]:
        seen: list[str] = []

        async def life() -> None:
            try:
                while True:
                    seen.append("alive")
                    asyncio.get_running_loop().call_later(0.5, seen.append, "callback")
                    await asyncio.sleep(1)
            finally:
                seen.append("finally")

        process = Process("sn1")
        task = process.spawn("life", life())
        await asyncio.sleep(1.2)
        process.die()
        await asyncio.sleep(10)
        assert not task.done()
        return list(seen)

    assert loop.run_simulated(work()) == ["alive", "callback", "alive"]


def test_a_paused_process_does_later_what_was_due_and_in_order() -> None:
    """As after SIGSTOP and SIGCONT."""

    async def work() -> list[float]:
        ticks: list[float] = []
        running = asyncio.get_running_loop()
        assert isinstance(running, loop.SimLoop)

        async def tick() -> None:
            for _ in range(4):
                await asyncio.sleep(1)
                ticks.append(running.time())

        process = Process("sn1")
        task = process.spawn("tick", tick())
        await asyncio.sleep(1.5)
        process.held = []
        await asyncio.sleep(3)
        assert ticks == [1.0]
        running.resume(process)
        await task
        return ticks

    assert loop.run_simulated(work()) == [1.0, 4.5, 5.5, 6.5]


def test_tasks_made_by_a_process_belong_to_it() -> None:
    async def work() -> list[str]:
        names: list[str] = []

        async def child() -> None:
            process = CURRENT.get()
            names.append(process.name if process else "nobody")

        async def parent() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(child())

        await Process("sn1").spawn("parent", parent())
        await child()
        return names

    assert loop.run_simulated(work()) == ["sn1#1", "nobody"]


def test_an_error_that_nobody_looks_at_is_kept() -> None:
    complaints: list[str] = []

    async def work() -> None:
        running = asyncio.get_running_loop()
        running.call_soon(_fail)
        await asyncio.sleep(1)
        assert isinstance(running, loop.SimLoop)
        complaints.extend(running.complaints)

    loop.run_simulated(work())
    assert len(complaints) == 1 and "planted" in complaints[0]


SETS = """
import asyncio
from varlog.testing.sim.core import loop

async def work():
    order = []
    async def one(n):
        await asyncio.sleep(1)
        order.append(n)
    tasks = {asyncio.get_running_loop().create_task(one(n)) for n in range(40)}
    done, _ = await asyncio.wait(tasks)
    for task in done:
        task.add_done_callback(lambda t: order.append(t.get_name()))
    await asyncio.sleep(1)
    return order

print(loop.run_simulated(work()))
"""


def test_sets_of_tasks_iterate_alike_whatever_the_hash_seed() -> None:
    """Nothing in a run may depend on addresses or on PYTHONHASHSEED."""
    printed = [
        subprocess.run(
            [sys.executable, "-c", SETS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1] != ""


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()


def _fail() -> None:
    raise ValueError("planted")


def test_what_is_let_go_at_the_end_still_finds_this_loop_and_makes_no_real_one() -> None:
    world, found = loop.make_loop(), list[asyncio.AbstractEventLoop]()

    async def unfinished() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            found.append(asyncio.get_running_loop())

    async def main() -> None:
        task = asyncio.create_task(unfinished())
        await asyncio.sleep(1)
        assert not task.done()

    world.run_until_complete(main())
    world.close()
    assert found == [world]
