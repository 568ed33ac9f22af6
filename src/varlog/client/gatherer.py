"""[A2] Gatherer: packs the single appends that wait while a request is under way into the next batch.

No timer: an append that finds nothing under way leaves with the others of its loop turn; under load batches grow by themselves.
A caller costs one future and one line in a queue; everything else is done per batch.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from varlog.client.append_rules import spent, unknown
from varlog.client.ordering import Carrier
from varlog.client.parcel import Parcel
from varlog.model.entry import Position, Run
from varlog.model.errors import NotAccepted, OutcomeUnknown, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.limits import (
    GATHER_BYTES_MAX,
    GATHER_REQUESTS_MAX,
    GATHER_WAITING_BYTES_MAX,
    GATHER_WAITING_ENTRIES_MAX,
)
from varlog.runtime.tasks import Tasks

# One append that waits for its position: its bytes, who is told, its deadline, and how long after its start that is. A plain tuple:
# an object with names takes three times as long to make, and there is one for every entry.
_Waiting = tuple[bytes, asyncio.Future[Position], float, float]


class Gatherer:
    """The single appends to one chosen stream, or (None) to whichever stream is next."""

    def __init__(
        self,
        courier: Carrier,
        tasks: Tasks,
        pack: Callable[[Sequence[bytes]], bytearray],
        log_stream: LogStreamID | None,
    ) -> None:
        self._courier = courier
        self._tasks = tasks
        self._pack = pack
        self._log_stream = log_stream
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._under_way: dict[Parcel, list[_Waiting]] = {}
        self._dispatching = False
        self._expiry: asyncio.TimerHandle | None = None
        self._expires_at = math.inf
        self._closed = False

    def append(self, data: bytes, timeout_s: float) -> Awaitable[Position]:
        """The position, to be waited for: a future, which wakes its caller and nobody in between, unless there is no room."""
        if (
            self._waiting_bytes + len(data) > GATHER_WAITING_BYTES_MAX
            or len(self._waiting) >= GATHER_WAITING_ENTRIES_MAX
            or self._closed
        ):
            return self._append_later(data, timeout_s)
        return self._put(data, self._loop.time() + timeout_s, timeout_s)

    async def _append_later(self, data: bytes, timeout_s: float) -> Position:
        deadline = self._loop.time() + timeout_s
        while (
            self._waiting_bytes + len(data) > GATHER_WAITING_BYTES_MAX
            or len(self._waiting) >= GATHER_WAITING_ENTRIES_MAX
        ):
            await self._wait_room(deadline, timeout_s)
        if self._closed:
            raise NotAccepted("the log was closed")
        return await self._put(data, deadline, timeout_s)

    def _put(self, data: bytes, deadline: float, timeout_s: float) -> asyncio.Future[Position]:
        done: asyncio.Future[Position] = self._loop.create_future()
        self._waiting.append((data, done, deadline, timeout_s))
        self._waiting_bytes += len(data)
        if deadline < self._expires_at:
            self._expire_at(deadline)
        if not self._dispatching:
            self.dispatch_soon()
        return done

    def dispatch_soon(self) -> None:
        """In the next turn of the loop, so that everyone who was woken in this one can come along."""
        if not self._dispatching:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatching = False
        while self._waiting and not self._closed and self._may_send():
            if members := self._gather():
                _ = self._tasks.spawn("append", self._send(members))
        while self._room and self._waiting_bytes < GATHER_WAITING_BYTES_MAX // 2:
            if not (waiter := self._room.popleft()).done():
                waiter.set_result(None)

    def _may_send(self) -> bool:
        """Small batches go while few are under way, so that they grow; a full one may also go to a further stream.

        A request that is stuck does not count, as long as there is a stream with nothing stuck to send to.
        """
        streams = 1 if self._log_stream is not None else self._courier.streams_free()
        prompt = len(self._under_way)
        if self._log_stream is None and streams:
            prompt -= self._courier.stuck
        if prompt < GATHER_REQUESTS_MAX:
            return True
        full = (
            self._waiting_bytes >= GATHER_BYTES_MAX or len(self._waiting) >= self._courier.gather_entries_max
        )
        return full and prompt < GATHER_REQUESTS_MAX * streams

    def _gather(self) -> list[_Waiting]:
        """The next batch: all who wait, as long as they fit."""
        most = self._courier.gather_entries_max
        if self._waiting_bytes <= GATHER_BYTES_MAX and len(self._waiting) <= most:
            gathered = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
        else:
            gathered, size = [], 0
            while self._waiting and len(gathered) < most:
                length = len(self._waiting[0][0])
                if gathered and size + length > GATHER_BYTES_MAX:
                    break
                gathered.append(self._waiting.popleft())
                size += length
            self._waiting_bytes -= size
        return [
            member for member in gathered if not member[1].done()
        ]  # or its caller gave up, or its time is over

    async def _send(self, members: list[_Waiting]) -> None:
        data, _, deadlines, _ = zip(*members, strict=True)
        timeout_s = max(0.0, max(deadlines) - self._loop.time())
        parcel = Parcel(self._pack(data), self._log_stream, timeout_s, self._leave_out)
        self._under_way[parcel] = members
        try:
            first = await self._courier.deliver(parcel)
        except VarlogError as error:
            _settle_all(members, error)
        except BaseException as error:
            _settle_all(members, _interrupted(parcel))
            if not isinstance(error, asyncio.CancelledError):
                raise
        else:
            for (_, done, _, _), position in zip(members, Run(first, len(members)), strict=True):
                if not done.done():
                    done.set_result(position)
        finally:
            del self._under_way[parcel]
            self.dispatch_soon()

    # --- Deadlines: one timer for all, moved only when somebody is due earlier ----------------------------------------------

    def _expire_at(self, deadline: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires_at = deadline
        self._expiry = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._expiry, self._expires_at = None, math.inf
        now = self._loop.time()
        due = []
        for _, done, deadline, timeout_s in self._waiting:
            if deadline <= now:
                _settle(done, spent(self._log_stream, None, timeout_s))
            elif not done.done():
                due.append(deadline)
        for parcel, members in self._under_way.items():
            late = [member for member in members if member[2] <= now]
            for _, done, _, timeout_s in late:
                _settle(done, _late(parcel, timeout_s))
            if late and not parcel.sent:
                self._leave_out(parcel)
            due += [deadline for _, done, deadline, _ in members if not done.done()]
        if due:
            self._expire_at(min(due))

    def _leave_out(self, parcel: Parcel) -> None:
        """The batch is certainly not in the log, and those whose time is over were told so: the next try must go without them
        (law 10), or not at all. Another batch has another sequence."""
        members = self._under_way[parcel]
        left = [member for member in members if not member[1].done()]
        if len(left) == len(members):
            return
        members[:] = left
        if left:
            parcel.batch = self._pack([data for data, _, _, _ in left])
        else:
            parcel.dropped = True

    async def _wait_room(self, deadline: float, timeout_s: float) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._room.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError as error:
            raise NotAccepted(f"too many appends wait already, for {timeout_s:g} s") from error

    def close(self) -> None:
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        _settle_all(self._waiting, NotAccepted("the log was closed"))
        self._waiting.clear()
        self._waiting_bytes = 0
        self._dispatch()


def _settle(done: asyncio.Future[Position], error: VarlogError) -> None:
    if not done.done():
        done.set_exception(error)


def _settle_all(members: Iterable[_Waiting], error: VarlogError) -> None:
    for _, done, _, _ in members:
        _settle(done, type(error)(*error.args))  # one each: a traceback belongs to one caller


def _late(parcel: Parcel, timeout_s: float) -> VarlogError:
    if parcel.sent:
        return unknown(parcel.last_error, timeout_s)
    return spent(parcel.chosen, parcel.last_error, timeout_s)


def _interrupted(parcel: Parcel) -> VarlogError:
    return (
        OutcomeUnknown("the client was closed before the answer came")
        if parcel.sent
        else NotAccepted("the log was closed")
    )
