"""SocketAppends: the appends of one WebSocket: one after the other, each answered; a bounded number waits, the next is not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from varlog.client.log import Log
from varlog.model.errors import VarlogError
from varlog.proxy.admission import Admission
from varlog.proxy.appending import append_entries
from varlog.proxy.backpressure_sender import BackpressureSender
from varlog.proxy.deadline import Deadline
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.meters import ProxyMeters
from varlog.proxy.socket_text import AppendFrame, append_given, appended_text, problem_text

# Appends of one socket that wait for their turn.
WAITING_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class _Admitted:
    given: AppendFrame
    deadline: Deadline
    release: Callable[[], None]


class SocketAppends:
    """Messages in, answers out. Cancelled with the socket: what was sent to the log by then may be in it."""

    def __init__(
        self,
        log: Log,
        topic: str,
        client: str,
        limits: ProxyLimits,
        meters: ProxyMeters,
        admission: Admission,
        sender: BackpressureSender,
    ) -> None:
        self._log = log
        self._topic = topic
        self._client = client
        self._limits = limits
        self._meters = meters
        self._admission = admission
        self._sender = sender
        self._waiting: asyncio.Queue[_Admitted] = asyncio.Queue(WAITING_MAX)

    async def take(self, message: bytes) -> None:
        """One message. One that cannot be read, or is too much for now, is answered at once and changes nothing."""
        try:
            given = append_given(message)
        except VarlogError as error:
            await self._sender.send_text(problem_text(error))
            return
        try:
            release = self._admission.begin_append(len(message), self._client)
        except VarlogError as error:
            await self._sender.send_text(problem_text(error, given.ref))
            return
        timeout_s = min(given.timeout or self._limits.timeout_s, self._limits.timeout_s_max)
        admitted = _Admitted(given, Deadline(timeout_s), release)
        try:
            await self._waiting.put(admitted)
        except BaseException:
            release()
            raise

    async def run(self) -> None:
        """Make them, one after the other, for ever."""
        while True:
            admitted = await self._waiting.get()
            try:
                answer = await self._made(admitted)
            finally:
                admitted.release()
            await self._sender.send_text(answer)

    def close(self) -> None:
        """What still waits is not made."""
        while not self._waiting.empty():
            self._waiting.get_nowait().release()

    async def _made(self, admitted: _Admitted) -> bytes:
        given = admitted.given
        try:
            run = await append_entries(
                self._log, given.entries, given.log_stream, admitted.deadline, self._meters
            )
        except VarlogError as error:
            return problem_text(error, given.ref)
        return appended_text(self._topic, run, given.ref)
