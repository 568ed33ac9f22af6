"""[A2] PipelinedWriter: conditional appends to one log stream, several in flight.

Batches are retried until there is no progress for too long. The condition makes repeating a batch harmless, so every error has one
remedy: pause, find out what the log has if it refused the condition, and send all unanswered batches again, in order.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic

from varlog.client.append_rules import ErrorClass, classify
from varlog.client.retry import Backoff
from varlog.client.routing import Routing
from varlog.client.writers.window import InflightWindow, PipelinedBatch, RequestT
from varlog.model.errors import NotAccepted, OutcomeUnknown, Trimmed, VarlogError
from varlog.model.ids import LogStreamID
from varlog.rpc.messages import AppendReply


class PipelinedWriter(ABC, Generic[RequestT]):
    """For one caller at a time. It fails if there is no progress for `timeout_s`. Once failed, it stays failed."""

    def __init__(self, routing: Routing, log_stream: LogStreamID, timeout_s: float) -> None:
        self._routing = routing
        self._log_stream = log_stream
        self._timeout_s = timeout_s
        self._window: InflightWindow[RequestT] = InflightWindow(routing, log_stream)
        self._patience: Backoff | None = None
        self._failure: VarlogError | None = None

    # --- to be defined per condition -------------------------------------------------------------------------------------

    @abstractmethod
    def _acknowledged(self, outgoing: PipelinedBatch[RequestT], appended: AppendReply | None) -> None:
        """Record that a batch is in the log; `appended` is None if it is trimmed already."""

    @abstractmethod
    def _conflicts(self, error: VarlogError) -> bool:
        """Whether the error says that the log refused a condition: then `_resolve` is called."""

    @abstractmethod
    async def _resolve(self) -> None:
        """Query what the log has, and change the batches in the window accordingly. Nothing is in flight meanwhile. An error may
        interrupt it; it is then called again."""

    @abstractmethod
    def _is_final(self, error: VarlogError) -> bool:
        """Whether an error raised by `_resolve` cannot be corrected by a retry."""

    # --- sending -----------------------------------------------------------------------------------------------------------

    async def _wait_room(self) -> None:
        self._check()
        while self._window.full:
            await self._settle_oldest()

    async def _push(self, outgoing: PipelinedBatch[RequestT]) -> None:
        """Send a batch after all earlier ones."""
        self._window.batches.append(outgoing)
        try:
            await self._window.send(outgoing)
        except VarlogError as error:
            await self._recover(error)

    async def _settle_all(self) -> None:
        self._check()
        while self._window.batches:
            await self._settle_oldest()

    async def _settle_oldest(self) -> None:
        """Wait until the oldest batch is in the log, or an error occurred and everything was sent again."""
        appended: AppendReply | None = None
        try:
            appended = await self._window.wait_oldest()
        except Trimmed:  # it was written, and is trimmed already
            pass
        except VarlogError as error:
            await self._recover(error)
            return
        self._acknowledged(self._window.pop(), appended)
        self._progressed()

    def _progressed(self) -> None:
        self._patience = None

    # --- errors ------------------------------------------------------------------------------------------------------------

    async def _recover(self, error: VarlogError) -> None:
        self._window.reset()
        self._classify(error)
        news, conflict = asyncio.Event(), False
        stop_watching = self._routing.watch(news.set)
        try:
            while True:
                conflict = conflict or self._conflicts(error)
                if isinstance(error, NotAccepted):
                    self._window.shrink()
                await self._pause(news)
                try:
                    if conflict:
                        await self._resolve()
                        conflict = False
                    for outgoing in list(self._window.batches):
                        await self._window.send(outgoing)
                    return
                except VarlogError as another:
                    error = another
                self._window.reset()
                self._classify(error)
        finally:
            stop_watching()

    def _classify(self, error: VarlogError) -> None:
        """Raise an error that is final in itself, or because there was no progress for too long."""
        if self._is_final(error) or classify(error, sent=True) is ErrorClass.REFUSED:
            self._failure = error
        elif self._routing.closed or self._patiently().spent:
            self._failure = self._over(error)
        self._check()

    async def _pause(self, news: asyncio.Event) -> None:
        """Wait for the next try, or until there is a new view."""
        patience = self._patiently()
        self._routing.refresh_soon()
        try:
            async with asyncio.timeout(min(patience.pause_s(), patience.remaining_s)):
                await news.wait()
            patience.restart()
        except TimeoutError:
            pass
        news.clear()

    def _patiently(self) -> Backoff:
        if self._patience is None:
            self._patience = Backoff(self._routing.environment, self._timeout_s)
        return self._patience

    def _over(self, error: VarlogError) -> VarlogError:
        why = (
            "the log was closed"
            if self._routing.closed
            else f"there was no progress for {self._timeout_s:g} s"
        )
        reason = f"{why} ({error}). Write it again from its beginning: it continues where it ended"
        if any(outgoing.sent for outgoing in self._window.batches):
            return OutcomeUnknown(f"batches were sent, and not answered: {reason}")
        return NotAccepted(reason)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
