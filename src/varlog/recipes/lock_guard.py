"""LockGuard: a lock that was granted to us, from then until it is released or lost.

It holds as long as our own clock says so, which is over before anybody else can have the lock (lease_rules.py). What a process
does with it after it stood still (a pause, a swapped-out page) only a fencing token can stop: see fenced.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from varlog.model.errors import VarlogError
from varlog.model.lsn import GLSN
from varlog.recipes.errors import LockLost
from varlog.recipes.lock_request import LockRequest
from varlog.runtime.logs import get_logger, logfmt

# The loop's time stands still while the machine sleeps, our clock does not: it is looked at this often at least.
LOOK_S: Final = 1.0

_log = get_logger("recipes")


class LockGuard:
    """`token` is the position of the grant in the log: larger than that of every grant before. `lost` is set if it is over without
    having been released. `ended` is called once, when it is over either way, and leaves the line."""

    def __init__(
        self, what: str, lock_request: LockRequest, token: GLSN, ended: Callable[[], asyncio.Task[bool]]
    ) -> None:
        self.what = what
        self.token = token
        self.lost = asyncio.Event()
        self._lock_request = lock_request
        self._ended = ended
        self._over = False
        self._guard: asyncio.Timeout | None = None

    def __repr__(self) -> str:
        state = "held" if self.held else "lost" if self.lost.is_set() else "released"
        return f"<{type(self).__name__} of {self.what}, token {self.token}, {state}>"

    @property
    def held(self) -> bool:
        """Whether we hold it at this moment, by our own clock. Once False, it stays so."""
        return self.left_s > 0

    @property
    def left_s(self) -> float:
        """For how long we hold it even if nothing more can be renewed."""
        left_us = 0 if self._over else self._lock_request.left_us
        if not self._over and not left_us:
            self.lose()
        return left_us / 1e6

    def check(self) -> None:
        """LockLost unless we hold it now: ask before each step that needs it."""
        if not self.held:
            raise LockLost(self.what, self.token)

    async def release(self) -> bool:
        """Let go of it: we believe in it no more as soon as this is called. Tells whether the next one can have it at once. If not
        (it was lost before, or the log does not answer), others have to wait until our time to live is over."""
        if not self.held:
            return False
        self._over = True
        # It goes on if we are cancelled: nobody is to wait for a lock that nobody holds.
        return await asyncio.shield(self._ended())

    # --- For who keeps it -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Until it is over: lost as soon as our clock says so, or the log."""
        try:
            while (left_s := self.left_s) > 0:
                with suppress(TimeoutError):  # its signs may have been renewed meanwhile
                    await self._lock_request.wait_removed(min(left_s, LOOK_S))
                    break
        except VarlogError as error:
            _log.warning(logfmt("cannot be kept", what=self.what, why=error))
        self.lose()

    def lose(self) -> None:
        """It is over, or something of ours is broken: better lost than held wrongly."""
        if self._over:
            return
        self._over = True
        _log.warning(logfmt("lost", what=self.what, token=self.token))
        self.lost.set()
        self._end_guarded()
        _ = self._ended()

    def cancel_when_lost(self, guard: asyncio.Timeout | None) -> None:
        """End what is done under `guard` as soon as this is lost."""
        self._guard = guard
        if self.lost.is_set():
            self._end_guarded()

    def _end_guarded(self) -> None:
        if self._guard is not None:
            self._guard.reschedule(asyncio.get_running_loop().time())
