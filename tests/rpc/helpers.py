"""What tests of the RPC share: running a coroutine under a deadline, and waiting for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

DEADLINE_S = 60.0


def run(body: Coroutine[Any, Any, None], *, runner: Callable[[Any], None] = asyncio.run) -> None:
    """Run `body` to its end, under a deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await body

    runner(bounded())


async def wait_until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; the deadline of the test bounds it."""
    while not condition():
        await asyncio.sleep(0.001)
