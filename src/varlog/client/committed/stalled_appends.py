"""[A2] StalledAppends: batches that make no progress.

While there are any, the view is watched, and a call whose epoch has ended is not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from varlog.client.append_rules import InflightBatch, ResolveStep, resolve_step
from varlog.client.retry import Backoff
from varlog.client.routing import Routing

# How long the view is watched after the last stall: failures tend to come in groups.
LINGER_S = 2.0


class CancellableWait:
    """A wait that another task may end, which raises TimeoutError in the waiting task. Like asyncio.timeout(None), but without its
    coroutines: one is created per batch, and hardly any is ended."""

    __slots__ = ("_cancelling", "_ended", "_task")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._ended = False

    def end(self) -> None:
        """End the wait."""
        if self._task is not None and not self._ended:
            self._ended = True
            self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._cancelling = self._task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if not self._ended or task is None:
            return
        # If the caller cancelled the task as well, that cancellation takes precedence.
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class StalledAppends:
    """The stalled batches, each with the wait of its call if one is in flight. Those *marked* as stalled divert other batches."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._loop = asyncio.get_running_loop()
        self._inflights: dict[InflightBatch, CancellableWait | None] = {}
        self._stalled: dict[InflightBatch, int] = {}
        self._news = asyncio.Event()
        self._stop_watching: Callable[[], None] | None = None
        self._linger: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many batches are marked as stalled."""
        return len(self._stalled)

    def __contains__(self, log_stream: int) -> bool:
        """Whether a batch in this stream is marked as stalled."""
        return log_stream in self._stalled.values()

    def watch(self, inflight: InflightBatch, patience: CancellableWait | None = None) -> None:
        """Watch a batch that makes no progress: it is checked at every new view."""
        self._inflights[inflight] = patience
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._stop_watching is None and not self._routing.closed:
            self._stop_watching = self._routing.watch(self._on_news)

    def mark_stalled(self, inflight: InflightBatch, patience: CancellableWait | None = None) -> bool:
        """Mark a batch whose call has no answer yet, or ended without one. Returns True if it was not marked before."""
        self.watch(inflight, patience)
        self._give_up_if_over(inflight)
        if inflight in self._stalled or inflight.attempt is None:
            return False
        self._stalled[inflight] = inflight.attempt.log_stream
        return True

    def call_began(self, inflight: InflightBatch, patience: CancellableWait) -> None:
        if inflight in self._inflights:
            self._inflights[inflight] = patience

    def call_ended(self, inflight: InflightBatch) -> None:
        if inflight in self._inflights:
            self._inflights[inflight] = None

    def release(self, inflight: InflightBatch) -> None:
        """Stop watching a batch that made progress or has ended."""
        if inflight not in self._inflights:
            return
        del self._inflights[inflight]
        self._stalled.pop(inflight, None)
        if not self._inflights and self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self._stop)

    async def wait_news(self, backoff: Backoff) -> None:
        """Wait for the next try, or until there is a new view."""
        try:
            async with asyncio.timeout(min(backoff.pause_s(), backoff.remaining_s)):
                await self._news.wait()
            backoff.restart()
        except TimeoutError:
            pass

    def _on_news(self) -> None:
        for inflight in self._inflights:
            self._give_up_if_over(inflight)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _give_up_if_over(self, inflight: InflightBatch) -> None:
        """Stop waiting for an answer that a seal has made unnecessary: the replicas know the outcome, or will soon."""
        patience, attempt = self._inflights[inflight], inflight.attempt
        if patience is None or attempt is None:
            return
        step = resolve_step(attempt, self._routing.view.stream(attempt.log_stream))
        if self._routing.closed or step in (ResolveStep.ASK, ResolveStep.GONE):
            self._inflights[inflight] = None
            patience.end()

    def _stop(self) -> None:
        self._linger = None
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
