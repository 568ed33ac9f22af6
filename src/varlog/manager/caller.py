"""Caller: the client that asked the manager for a change, and whether it still waits for the answer.

A request waits in line, for a look at the cluster or for nodes to come up. What begins after its caller gave up would surprise it:
a stream that it made elsewhere meanwhile would be there twice, one that it no longer wants sealed would be sealed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from varlog.model.errors import PreconditionFailed
from varlog.rpc import messages
from varlog.rpc.dispatch import Answer, Dispatcher
from varlog.rpc.transport import Call


class Caller:
    """Made when the request arrives: its time counts from then."""

    def __init__(self, call: Call | None, within_ms: int) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + within_ms / 1000 if within_ms else math.inf

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._until - self._loop.time())

    def check(self) -> None:
        """To be called right before the first change; what has begun is finished. PreconditionFailed: nobody waits for it any
        more."""
        if self.remaining_s <= 0:
            raise PreconditionFailed("it was not begun: its caller's time was over before its turn came")
        if self._call is not None and self._call.connection.closed:
            raise PreconditionFailed(
                "it was not begun: its caller's connection had ended before its turn came"
            )


R = TypeVar(
    "R",
    messages.AddStream,
    messages.CreateTopic,
    messages.DeleteTopic,
    messages.AdminReplaceReplica,
    messages.AdminSealStream,
    messages.AdminSyncReplica,
    messages.AdminUnsealStream,
    messages.RemoveNode,
)


def on_request(
    dispatcher: Dispatcher, kind: type[R], handler: Callable[[R, Caller], Coroutine[Any, Any, Answer]]
) -> None:
    """A task runs `handler` for every `kind`; it checks the caller before its first change."""
    dispatcher.on_call(kind, lambda call, request: handler(request, Caller(call, request.within_ms)))
