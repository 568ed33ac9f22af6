"""CancellableWait: a wait that another task ends, distinguished from a cancelled task."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.fakes import run
from varlog.client.committed.stalled_appends import CancellableWait


async def waiting(patience: CancellableWait) -> str:
    try:
        with patience:
            await asyncio.get_running_loop().create_future()
    except TimeoutError:
        await asyncio.sleep(0)  # the task continues, and can wait again
        return "ended"
    return "never"


def test_a_wait_that_is_ended_raises_timeout_and_its_task_continues() -> None:
    async def body() -> None:
        patience = CancellableWait()
        task = asyncio.create_task(waiting(patience))
        await asyncio.sleep(0)
        patience.end()
        patience.end()  # again is harmless
        assert await task == "ended"
        assert not task.cancelling()
        patience.end()  # and so is too late

    run(body())


def test_a_task_that_is_cancelled_as_well_stays_cancelled() -> None:
    async def body() -> None:
        patience = CancellableWait()
        task = asyncio.create_task(waiting(patience))
        await asyncio.sleep(0)
        patience.end()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(body())


def test_a_wait_that_is_over_by_itself_keeps_its_result() -> None:
    async def body() -> None:
        with CancellableWait() as patience:
            await asyncio.sleep(0)
        patience.end()
        await asyncio.sleep(0)

    run(body())
