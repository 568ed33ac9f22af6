"""[A2] Batcher: packs waiting single appends into the next batch.

Appends wait while a request is in flight. There is no timer: an append that finds nothing in flight leaves with the others of its
loop turn, and under load batches grow by themselves. Per caller there is one future and one tuple in a queue; all other work is
done per batch.

The queue admits only what can be served in time: an append that would be served too late is refused immediately (Overloaded), and
is certainly not in the log. So an overloaded client serves as many appends as it can, instead of serving all of them too late. In
a burst, an append may wait for half of its timeout; while the queue stays non-empty, it is admitted for less than a third of it.
Cancelled appends reveal callers that give up before their deadlines (`asyncio.wait_for` around an append), see CallerPatience.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from varlog.client.append_rules import InflightBatch, spent, unknown
from varlog.client.ordering import AppendTransport
from varlog.model.admission import (
    ENTRY_UNITS,
    RETRY_S_MIN,
    SHARE,
    SLACK,
    STANDING_S,
    STANDING_SHARE,
    Admission,
    CallerPatience,
)
from varlog.model.entry import Position, Run
from varlog.model.errors import NotAccepted, OutcomeUnknown, Overloaded, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.limits import (
    GATHER_BYTES_MAX,
    GATHER_REQUESTS_MAX,
    GATHER_WAITING_BYTES_MAX,
    GATHER_WAITING_ENTRIES_MAX,
)
from varlog.runtime.tasks import Tasks

# Interval between two scans for expired appends, per waiting append.
LOOK_S: Final = 2e-6
# The longest service time that a batch may have because of its size, and at least this multiple of a request's fixed time.
GATHER_S_MAX: Final = 0.1
CUT_FIXED: Final = 8

# One append that waits for its position: its bytes, its caller's future, its deadline, and its timeout.
# A plain tuple: creating an object with named fields takes three times as long, and there is one per entry.
_Waiting = tuple[bytes, asyncio.Future[Position], float, float]


class Batcher:
    """The single appends to one chosen stream, or (None) to any stream."""

    def __init__(
        self,
        sender: AppendTransport,
        tasks: Tasks,
        pack: Callable[[Sequence[bytes]], bytearray],
        log_stream: LogStreamID | None,
    ) -> None:
        self._sender = sender
        self._tasks = tasks
        self._pack = pack
        self._log_stream = log_stream
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._in_flight: dict[InflightBatch, list[_Waiting]] = {}
        self._starting = 0  # batches whose task has not started yet; they count as in flight
        self._dispatching = False
        self._probed = False  # a probe was dispatched: gather nothing until the sender has it
        self._expiry: asyncio.TimerHandle | None = None
        self._expires_at = math.inf
        self._closed = False
        self._admission = Admission()
        self._patience = CallerPatience()
        # The share of its timeout that an append may wait behind others; and since when the queue has not been empty.
        self._share = SHARE
        self._standing_since = math.inf
        # The precomputed estimate, so that an append costs two multiplications: the batches in flight take `_sent_s`, each waiting
        # byte `_byte_s` and each waiting entry `_entry_s`. Recomputed when a batch is sent or answered.
        self._sent_units = 0
        self._sent_s = 0.0
        self._byte_s = 0.0
        self._entry_s = 0.0

    def append(self, data: bytes, timeout_s: float) -> asyncio.Future[Position]:
        """Queue an append and return a future of its position, which wakes its caller directly. Raises Overloaded if it could not
        be served before its deadline, behind the appends that already wait."""
        waiting = self._waiting
        if self._closed:
            raise NotAccepted("the log was closed")
        # With an empty queue an append leaves in this turn and is never refused, so that the estimate is always renewed.
        if waiting and (refusal := self.refusal(len(data), timeout_s)):
            raise refusal
        done: asyncio.Future[Position] = self._loop.create_future()
        deadline = self._loop.time() + timeout_s
        waiting.append((data, done, deadline, timeout_s))
        self._waiting_bytes += len(data)
        if deadline < self._expires_at:
            self._expire_at(deadline)
        if not self._dispatching:
            self.dispatch_soon()
        return done

    def refusal(self, size: int, timeout_s: float) -> Overloaded | None:
        """The error with which an append of `size` bytes is refused now, or None if it is admitted. Changes nothing, so it may be
        called from any thread: its answer may be slightly stale, and only the loop's thread puts appends into the queue."""
        waiting, waiting_bytes, share = len(self._waiting), self._waiting_bytes, self._share
        if not waiting:
            return None
        ahead_s = waiting * self._entry_s + waiting_bytes * self._byte_s + self._sent_s
        if (
            ahead_s > timeout_s * share
            or ahead_s > self._patience.seconds * share
            or waiting >= GATHER_WAITING_ENTRIES_MAX
            or waiting_bytes + size > GATHER_WAITING_BYTES_MAX
        ):
            return self._overloaded(timeout_s)
        return None

    def _overloaded(self, timeout_s: float) -> Overloaded:
        waiting, waiting_s = len(self._waiting), self._waiting_s()
        excess_s = waiting_s + self._sent_s - min(timeout_s, self._patience.seconds) * self._share
        return Overloaded(waiting, waiting / waiting_s if waiting_s else 0.0, max(excess_s, RETRY_S_MIN))

    def _waiting_s(self) -> float:
        return len(self._waiting) * self._entry_s + self._waiting_bytes * self._byte_s

    def _estimate(self) -> None:
        """Recompute the estimate from recent service times and from what is in flight."""
        admission = self._admission
        self._sent_s = admission.estimate_s(len(self._in_flight), self._sent_units)
        self._byte_s = admission.fixed_s / GATHER_BYTES_MAX + admission.unit_s
        self._entry_s = admission.fixed_s / self._sender.gather_entries_max + ENTRY_UNITS * admission.unit_s

    def dispatch_soon(self) -> None:
        """Dispatch in the next turn of the loop, so that every caller woken in this turn can join the batch."""
        if not self._dispatching:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatching = self._probed = False
        while members := self._next():
            self._starting += 1
            _ = self._tasks.spawn("append", self._send(members))

    def _next(self) -> list[_Waiting]:
        """The next batch, or an empty list if none may be sent now."""
        while self._waiting and not (self._closed or self._probed) and self._may_send():
            if members := self._gather():
                return members
        return []

    def _may_send(self) -> bool:
        """Small batches are sent only while few are in flight, so that they grow; a full batch may also go to a further stream.

        A stalled request does not count as long as some stream without a stalled request is available.
        """
        prompt = len(self._in_flight) + self._starting
        if prompt < GATHER_REQUESTS_MAX:
            return True
        streams = 1
        if self._log_stream is None and (streams := self._sender.streams_free()):
            prompt -= self._sender.stalled
        return prompt < GATHER_REQUESTS_MAX * (streams if self._is_full() else 1)

    def _is_full(self) -> bool:
        """Whether as many appends wait as fit into one batch."""
        return (
            self._waiting_bytes >= GATHER_BYTES_MAX or len(self._waiting) >= self._sender.gather_entries_max
        )

    def _gather(self) -> list[_Waiting]:
        """Take the next batch from the queue: all that fit, or a single append if it probes whether a slow stream has recovered."""
        waiting, most = self._waiting, self._sender.gather_entries_max
        if len(waiting) > 1 and self._log_stream is None and self._sender.is_probe_next():
            most, self._probed = 1, True
            self.dispatch_soon()
        if (
            self._waiting_bytes <= GATHER_BYTES_MAX
            and len(waiting) <= most
            and self._waiting_s() <= GATHER_S_MAX
        ):
            gathered = list(waiting)
            waiting.clear()
            self._waiting_bytes = 0
            self._standing_since = math.inf
            self._share = SHARE
        else:
            self._stand()
            gathered, size, units = [], 0, 0
            units_max = self._gather_units_max()
            while waiting and len(gathered) < most:
                length = len(waiting[0][0])
                if gathered and (size + length > GATHER_BYTES_MAX or units > units_max):
                    break
                gathered.append(waiting.popleft())
                size += length
                units += length + ENTRY_UNITS
            self._waiting_bytes -= size
        # The others were cancelled by their callers, or have expired.
        left = [member for member in gathered if not member[1].done()]
        if len(left) < len(gathered):
            self._look_at_cancelled(gathered)
        if self._in_flight:
            left = self._in_time(left)
        return left

    def _stand(self) -> None:
        """Appends are left for the next batch: update how long the queue has not been empty."""
        now = self._loop.time()
        self._standing_since = min(self._standing_since, now)
        if now - self._standing_since > STANDING_S:
            self._share = STANDING_SHARE

    def _look_at_cancelled(self, gathered: list[_Waiting]) -> None:
        """Record callers that gave up before their deadlines, and after how long at most."""
        now = self._loop.time()
        ages = [
            now - deadline + timeout_s
            for _, done, deadline, timeout_s in gathered
            if done.cancelled() and deadline > now
        ]
        self._patience.gave_up(ages, len(gathered), now)

    def _gather_units_max(self) -> float:
        """The largest batch, in units. A batch whose size alone takes longer than GATHER_S_MAX is split: a log that is slow in
        itself gains nothing from larger batches, and what is in flight can no longer be refused. Never below the fixed time of a
        request."""
        admission = self._admission
        if not admission.unit_s:
            return math.inf
        return max(GATHER_S_MAX, CUT_FIXED * admission.fixed_s) / admission.unit_s

    def _in_time(self, gathered: list[_Waiting]) -> list[_Waiting]:
        """Remove the appends that would not be answered in time behind what is in flight: unsent they are certainly rejected, sent
        they end as outcome unknown. Nothing is removed while nothing is in flight: the estimate may be wrong, and only a response
        improves it."""
        now = self._loop.time()
        answered_at, patience_s = now + self._sent_s, self._patience.at(now)
        left = []
        for member in gathered:
            _, done, deadline, timeout_s = member
            if timeout_s > patience_s:
                deadline -= timeout_s - patience_s
                timeout_s = patience_s
            if deadline - SLACK * timeout_s < answered_at:
                _settle(done, self._overloaded(timeout_s))
            else:
                left.append(member)
        return left

    async def _send(self, members: list[_Waiting]) -> None:
        """Send one batch, then the batches that its callers append next: one task per batch would cost two more loop turns."""
        self._starting -= 1
        loop, admission = self._loop, self._admission
        try:
            while members:
                data, _, deadlines, _ = zip(*members, strict=True)
                began = loop.time()
                timeout_s = max(0.0, max(deadlines) - began)
                inflight = InflightBatch(self._pack(data), self._log_stream, timeout_s, self._leave_out)
                units = len(inflight.batch) + ENTRY_UNITS * len(members)
                self._in_flight[inflight] = members
                self._sent_units += units
                self._sent_s = admission.estimate_s(len(self._in_flight), self._sent_units)
                try:
                    first = await self._sender.deliver(inflight)
                    admission.served(units, began, loop.time())
                except VarlogError as error:
                    _settle_all(members, error)
                except BaseException:
                    _settle_all(members, _interrupted(inflight))
                    raise
                else:
                    self._acknowledge(members, first)
                finally:
                    del self._in_flight[inflight]
                    self._sent_units -= units
                    self._estimate()
                members = await self._following()
        except asyncio.CancelledError:
            return  # every caller has its error
        finally:
            if self._waiting:
                self.dispatch_soon()

    async def _following(self) -> list[_Waiting]:
        """The next batch for the same task. A full batch goes immediately; otherwise wait one turn, so that the callers that were
        just answered can join."""
        if self._waiting and self._is_full():
            return self._next()
        if self._dispatching:
            return []
        self._dispatching = True
        try:
            await asyncio.sleep(0)
        finally:
            self._dispatching = False
        members = self._next()
        if self._waiting:
            self.dispatch_soon()
        return members

    def _acknowledge(self, members: list[_Waiting], first: Position) -> None:
        ended = 0
        for (_, done, _, _), position in zip(members, Run(first, len(members)), strict=True):
            if done.done():
                ended += 1
            else:
                done.set_result(position)
        if ended:
            self._look_at_cancelled(members)

    # --- Deadlines: one timer for all, moved only for an earlier deadline ---------------------------------------------

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
        for inflight, members in self._in_flight.items():
            late = [member for member in members if member[2] <= now]
            for _, done, _, timeout_s in late:
                _settle(done, _late(inflight, timeout_s))
            if late and not inflight.sent:
                self._leave_out(inflight)
            due += [deadline for _, done, deadline, _ in members if not done.done()]
        if due:
            # Scanning a long queue takes time: one scan per expiry would leave no time for anything else.
            self._expire_at(max(min(due), now + LOOK_S * (len(self._waiting) + len(due))))

    def _leave_out(self, inflight: InflightBatch) -> None:
        """Called when the batch is certainly not in the log. Members that expired were answered so, and the next try must not
        contain them (law 10); a batch without members is not sent. The smaller batch gets a new sequence number."""
        members = self._in_flight[inflight]
        left = [member for member in members if not member[1].done()]
        if len(left) == len(members):
            return
        members[:] = left
        if left:
            inflight.batch = self._pack([data for data, _, _, _ in left])
        else:
            inflight.dropped = True

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


def _late(inflight: InflightBatch, timeout_s: float) -> VarlogError:
    if inflight.sent:
        return unknown(inflight.last_error, timeout_s)
    return spent(inflight.chosen, inflight.last_error, timeout_s)


def _interrupted(inflight: InflightBatch) -> VarlogError:
    return (
        OutcomeUnknown("the client was closed before the answer came")
        if inflight.sent
        else NotAccepted("the log was closed")
    )
