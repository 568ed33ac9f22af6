"""[A2] Stuck: parcels that do not get on. While there are any the view is watched; a call whose epoch is over is not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from varlog.client.append_rules import Step, next_step
from varlog.client.parcel import Parcel
from varlog.client.retry import Backoff
from varlog.client.routing import Routing

# The view is watched so long beyond the last trouble: it seldom comes alone.
LINGER_S = 2.0


class Patience:
    """A wait that another may end: then TimeoutError is raised where it is made. As asyncio.timeout(None), without its coroutines:
    one is made for every batch, and nearly none is ended."""

    __slots__ = ("_cancelling", "_ended", "_task")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._ended = False

    def end(self) -> None:
        """Wait no more."""
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
        # Cancelled by somebody else as well: that goes first.
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class Stuck:
    """The parcels in trouble, each with the patience of its call if one is out. Those *held up* keep others out of their stream."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._loop = asyncio.get_running_loop()
        self._parcels: dict[Parcel, Patience | None] = {}
        self._held_up: dict[Parcel, int] = {}
        self._news = asyncio.Event()
        self._stop_watching: Callable[[], None] | None = None
        self._linger: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many are held up."""
        return len(self._held_up)

    def __contains__(self, log_stream: int) -> bool:
        """Something is held up in this stream."""
        return log_stream in self._held_up.values()

    def watch(self, parcel: Parcel, patience: Patience | None = None) -> None:
        """This one does not get on: it wants to hear of every new view."""
        self._parcels[parcel] = patience
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._stop_watching is None and not self._routing.closed:
            self._stop_watching = self._routing.watch(self._on_news)

    def hold_up(self, parcel: Parcel, patience: Patience | None = None) -> bool:
        """Its call has no answer yet, or ended without one. True: that is new."""
        self.watch(parcel, patience)
        self._give_up_if_over(parcel)
        if parcel in self._held_up or parcel.attempt is None:
            return False
        self._held_up[parcel] = parcel.attempt.log_stream
        return True

    def call_began(self, parcel: Parcel, patience: Patience) -> None:
        if parcel in self._parcels:
            self._parcels[parcel] = patience

    def call_ended(self, parcel: Parcel) -> None:
        if parcel in self._parcels:
            self._parcels[parcel] = None

    def release(self, parcel: Parcel) -> None:
        """It got on, or is over."""
        if parcel not in self._parcels:
            return
        del self._parcels[parcel]
        self._held_up.pop(parcel, None)
        if not self._parcels and self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self._stop)

    async def wait_news(self, backoff: Backoff) -> None:
        """Wait for the next try, or less: until there is a new view."""
        try:
            async with asyncio.timeout(min(backoff.pause_s(), backoff.remaining_s)):
                await self._news.wait()
            backoff.restart()
        except TimeoutError:
            pass

    def _on_news(self) -> None:
        for parcel in self._parcels:
            self._give_up_if_over(parcel)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _give_up_if_over(self, parcel: Parcel) -> None:
        """Do not wait for an answer that a seal has made needless: the replicas know the outcome, or will soon."""
        patience, attempt = self._parcels[parcel], parcel.attempt
        if patience is None or attempt is None:
            return
        step = next_step(attempt, self._routing.view.stream(attempt.log_stream))
        if self._routing.closed or step in (Step.ASK, Step.GONE):
            self._parcels[parcel] = None
            patience.end()

    def _stop(self) -> None:
        self._linger = None
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
