"""[A3 R3] Dispatcher: message type -> handler of a service; exceptions -> answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from varlog.model.batch import Buffer
from varlog.model.errors import Unavailable
from varlog.rpc.messages import Message
from varlog.rpc.transport import Call, Handler
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

M = TypeVar("M", bound=Message)
Answer = Message | tuple[Message, Buffer]

_log = get_logger("rpc")


class Dispatcher:
    """The handlers of one service. Pass `handle` to Transport.serve or Transport.connect.

    A handler that never waits is registered with `on` and answers its Call itself, now or later. One that waits is a
    coroutine function, registered with `on_async`: it runs as a task of this dispatcher and returns the answer.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._handlers: dict[type[Message], Handler] = {}
        self._tasks = Tasks(owner, self._on_task_failure)
        self._closed = False

    def on(self, kind: type[M], handler: Callable[[Call | None, M, bytearray], None]) -> None:
        """`handler` handles every `kind`, in the order of arrival. What it raises is the answer."""
        self._handlers[kind] = cast(Handler, handler)

    def on_async(self, kind: type[M], handler: Callable[[M, bytearray], Coroutine[Any, Any, Answer]]) -> None:
        """A task runs `handler` for every `kind`; what it returns or raises is the answer."""
        self._on_task(kind, lambda _, message, payload: handler(message, payload))

    def on_call(
        self, kind: type[M], handler: Callable[[Call | None, M], Coroutine[Any, Any, Answer]]
    ) -> None:
        """The same for a handler that needs its caller; it does not answer the call itself."""
        self._on_task(kind, lambda call, message, _: handler(call, message))

    def _on_task(
        self,
        kind: type[M],
        handler: Callable[[Call | None, M, bytearray], Coroutine[Any, Any, Answer]],
    ) -> None:
        def start(call: Call | None, message: Message, payload: bytearray) -> None:
            if self._closed:
                raise Unavailable(f"{self._owner} is stopping")
            work = _carry_out(call, lambda: handler(call, cast(M, message), payload))
            task = self._tasks.spawn(kind.__name__, work)
            if call is not None:
                # Even a task that is cancelled before its first step owes its caller an answer.
                task.add_done_callback(lambda task: self._fail_if_cancelled(call, task))

        self._handlers[kind] = start

    def handle(self, call: Call | None, message: Message, payload: bytearray) -> None:
        """The Handler of this service: the transport answers with what it raises."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise Unavailable(
                f"{type(message).__name__} is not served by {self._owner}: is this the right address?"
            )
        handler(call, message, payload)

    async def close(self) -> None:
        """Cancel the running handlers; their callers get an error."""
        self._closed = True
        await self._tasks.close()

    def _fail_if_cancelled(self, call: Call, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            call.fail(Unavailable(f"{self._owner} is stopping"))

    def _on_task_failure(self, name: str, error: BaseException) -> None:
        _log.error(logfmt("a one-way message failed", task=name), exc_info=error)


async def _carry_out(call: Call | None, work: Callable[[], Coroutine[Any, Any, Answer]]) -> None:
    try:
        answer = await work()
    except Exception as error:
        if call is None:
            raise
        call.fail(error)
        return
    if call is not None:
        if isinstance(answer, tuple):
            call.reply(*answer)
        else:
            call.reply(answer)
