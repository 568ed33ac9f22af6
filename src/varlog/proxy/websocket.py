"""WebSocket route: entries of a topic as they arrive, and appends.

Out: {"entries": […]}, {"appended": {…}, "ref": …}, {"problem": {…}, "ref": …}. In: {"append": […], "ref": …}, with "log_stream" and
"timeout" as in a request. Appends of one socket run one after the other, in the order of its messages. It is closed with 1000
when `until` is reached, with 1012 when the proxy stops, and otherwise with 4000 + the status of the problem that ended it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from varlog.client.log import Log
from varlog.model.entry import Entry, Run
from varlog.model.errors import Trimmed, VarlogError
from varlog.model.lsn import LSN_MAX
from varlog.proxy.admission import ProxyAdmission, client_of
from varlog.proxy.append import append_entries
from varlog.proxy.backpressure_sender import BackpressureSender
from varlog.proxy.entry_json import EntryInput, EntryJson, decode_body, entries_json, entry_bytes, to_json
from varlog.proxy.errors import BadBody, BadParameter, SubscriptionOver, TooSlow
from varlog.proxy.feed import Follower, Followers
from varlog.proxy.frame_rules import Render
from varlog.proxy.limits import Deadline, ProxyLimits
from varlog.proxy.meters import ProxyMeters
from varlog.proxy.position_rules import OLDEST, PATTERN
from varlog.proxy.problem import CLOSE_PROBLEM, CLOSE_REASON_BYTES_MAX, answer, problem_of
from varlog.proxy.sse import start_of
from varlog.proxy.wire import Encoding

KIND: Final = "socket"
CLOSE_NORMAL: Final = 1000
router = APIRouter()


class SubscribeParameters(BaseModel):
    """The query of a socket; `from`, `until`, `encoding` and `skip_trimmed` as for server-sent events."""

    begin: str = Field(OLDEST, alias="from", pattern=PATTERN)
    until: int | None = Field(None, ge=1, le=LSN_MAX)
    encoding: Encoding = Encoding.AUTO
    skip_trimmed: bool = False
    follow: bool = True  # False: appends only

    @classmethod
    def of(cls, websocket: WebSocket) -> SubscribeParameters:
        try:
            return cls.model_validate(dict(websocket.query_params))
        except ValidationError as error:
            first = error.errors()[0]
            raise BadParameter(f"query {first['loc'][0]}", str(first["msg"])) from error


@router.websocket("/v1/topics/{topic}/socket")
async def serve_socket(websocket: WebSocket, topic: str) -> None:
    """Follow a topic and append to it."""
    state = websocket.app.state
    limits: ProxyLimits = state.limits
    meters: ProxyMeters = state.meters
    followers: Followers = state.followers
    follower: Follower | None = None
    client = client_of(websocket.scope)
    try:
        asked, deadline = SubscribeParameters.of(websocket), Deadline(limits.timeout_s)
        log = await deadline.log(state.gateway, topic)
        start = start_of(asked.begin)
        if asked.follow:
            follower = await deadline.wait(
                followers.follow(topic, start, KIND, client, skip_trimmed=asked.skip_trimmed)
            )
        release = None if asked.follow else state.admission.subscribe(KIND, client)
    except VarlogError as error:
        # Not a socket yet: refused by an HTTP response like any other request.
        await websocket.send_denial_response(answer(error, limits))
        return
    sender = BackpressureSender(websocket.scope, websocket.send, limits.slow_s)
    appends = SocketAppends(log, topic, client, limits, meters, state.admission, sender)
    try:
        await websocket.accept()
        await _Socket(websocket, sender, follower, asked, appends, limits, meters).serve()
    except WebSocketDisconnect:
        pass  # the client left
    finally:
        appends.close()
        if follower is not None:
            await follower.close()
        if release is not None:
            release()


class _Socket:
    """One socket: sending, receiving and appending run concurrently; the first to end ends all."""

    def __init__(
        self,
        websocket: WebSocket,
        sender: BackpressureSender,
        follower: Follower | None,
        asked: SubscribeParameters,
        appends: SocketAppends,
        limits: ProxyLimits,
        meters: ProxyMeters,
    ) -> None:
        self._websocket = websocket
        self._sender = sender
        self._follower = follower
        self._asked = asked
        self._appends = appends
        self._limits = limits
        self._meters = meters

    async def serve(self) -> None:
        """Until it ends; then send the reason, unless the client left."""
        ended = await self._ended()
        if any(isinstance(error, WebSocketDisconnect) for error in ended):
            return
        if isinstance(ended[0], _Complete):
            await self._close(CLOSE_NORMAL, "everything before `until` was sent")
        elif isinstance(ended[0], TooSlow):
            self._drop(ended[0])
        else:
            await self._send_problem_and_close(ended[0])

    async def _ended(self) -> list[Exception]:
        """What ended it: one of these, or several at once."""
        ended: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(), name="proxy/socket/receive")
                tasks.create_task(self._appends.run(), name="proxy/socket/append")
                if self._follower is not None:
                    tasks.create_task(self._send_entries(self._follower), name="proxy/socket/send")
        except* (WebSocketDisconnect, _Complete, VarlogError) as group:
            ended.extend(group.exceptions)
        return ended

    async def _receive(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code") or 1005)
            text = message.get("text")
            await self._appends.submit(text.encode() if text is not None else message["bytes"])

    async def _send_entries(self, follower: Follower) -> None:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        over_s = asyncio.get_running_loop().time() + self._limits.subscription_s
        render, until = RENDERS[self._asked.encoding], self._asked.until
        while until is None or follower.position < until:
            left_s = over_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise SubscriptionOver(self._limits.subscription_s)
            try:
                frames = await follower.wait_frames(never, min(left_s, self._limits.keep_alive_s), until)
            except Trimmed as trimmed:
                if not self._asked.skip_trimmed:
                    raise
                follower.position = trimmed.oldest
                await self._sender.send_text(problem_text(trimmed))
                continue
            for frame in frames:
                if frame.entries:
                    await self._sender.send_text(frame.text(render))
                    self._meters.read(len(frame.entries), frame.size)
            # A fast consumer shall not keep the others waiting.
            await asyncio.sleep(0)
        raise _Complete

    async def _send_problem_and_close(self, error: Exception) -> None:
        problem = problem_of(error)
        self._count(error)
        try:
            await self._sender.send_text(problem_text(error))
        except TooSlow as slow:
            self._drop(slow)
        else:
            await self._close(CLOSE_PROBLEM + problem.status, problem.detail)

    async def _close(self, code: int, reason: str) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.close(code, _short(reason))

    def _drop(self, slow: Exception) -> None:
        problem = problem_of(slow)
        self._count(slow)
        self._sender.drop(_short(problem.detail).encode(), CLOSE_PROBLEM + problem.status)

    def _count(self, error: Exception) -> None:
        self._meters.dropped(KIND, problem_of(error).name)


class _Complete(Exception):
    """Everything before `until` was sent."""


def _short(reason: str) -> str:
    """As much as fits in a close frame."""
    return reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")


# --- appends ------------------------------------------------------------------------------------------------------------

# Appends of one socket that are queued; the next message is not read before there is room.
WAITING_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class _Admitted:
    frame: AppendFrame
    deadline: Deadline
    release: Callable[[], None]


class SocketAppends:
    """The appends of one socket, one after the other, each answered. Cancelled with the socket: what was sent to the log by
    then may be in it."""

    def __init__(
        self,
        log: Log,
        topic: str,
        client: str,
        limits: ProxyLimits,
        meters: ProxyMeters,
        admission: ProxyAdmission,
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

    async def submit(self, message: bytes) -> None:
        """Queue one message. One that is invalid or refused is answered immediately and changes nothing."""
        try:
            frame = parse_append(message)
        except VarlogError as error:
            await self._sender.send_text(problem_text(error))
            return
        try:
            release = self._admission.begin_append(len(message), self._client)
        except VarlogError as error:
            await self._sender.send_text(problem_text(error, frame.ref))
            return
        timeout_s = min(frame.timeout or self._limits.timeout_s, self._limits.timeout_s_max)
        admitted = _Admitted(frame, Deadline(timeout_s), release)
        try:
            await self._waiting.put(admitted)
        except BaseException:
            release()
            raise

    async def run(self) -> None:
        """Run the queued appends, one after the other, until cancelled."""
        while True:
            admitted = await self._waiting.get()
            try:
                answer = await self._append(admitted)
            finally:
                admitted.release()
            await self._sender.send_text(answer)

    def close(self) -> None:
        """Discard what is still queued."""
        while not self._waiting.empty():
            self._waiting.get_nowait().release()

    async def _append(self, admitted: _Admitted) -> bytes:
        frame = admitted.frame
        try:
            run = await append_entries(
                self._log, frame.entries, frame.log_stream, admitted.deadline, self._meters
            )
        except VarlogError as error:
            return problem_text(error, frame.ref)
        return appended_text(self._topic, run, frame.ref)


# --- messages as JSON ---------------------------------------------------------------------------------------------------

Ref = msgspec.Raw | msgspec.UnsetType


class AppendFrame(msgspec.Struct, forbid_unknown_fields=True):
    """One append. `ref` is any JSON value, and is part of the answer."""

    append: list[EntryInput]
    ref: Ref = msgspec.UNSET
    log_stream: int | None = None
    timeout: float | None = None

    @property
    def entries(self) -> list[bytes]:
        return [entry_bytes(entry) for entry in self.append]


class _AppendedPositions(msgspec.Struct):
    topic: str
    log_stream: int
    glsn: int
    llsn: int
    count: int


class _AppendedFrame(msgspec.Struct):
    appended: _AppendedPositions
    ref: Ref


class _ProblemFrame(msgspec.Struct):
    problem: msgspec.Raw
    ref: Ref


class _EntriesFrame(msgspec.Struct):
    entries: list[EntryJson]


_DECODER = msgspec.json.Decoder(AppendFrame)


def parse_append(message: bytes) -> AppendFrame:
    """A message as an append, or BadBody."""
    frame = decode_body(_DECODER, message)
    if frame.timeout is not None and not 0 < frame.timeout < float("inf"):
        raise BadBody(f"a timeout is above zero, in seconds, not {frame.timeout}")
    return frame


def appended_text(topic: str, run: Run, ref: Ref) -> bytes:
    """The answer to an append: the positions of its entries."""
    first = run.first
    return to_json(
        _AppendedFrame(_AppendedPositions(topic, first.log_stream, first.glsn, first.llsn, run.count), ref)
    )


def problem_text(error: Exception, ref: Ref = msgspec.UNSET) -> bytes:
    """An error of the append with this `ref`, or of the socket."""
    return to_json(_ProblemFrame(msgspec.Raw(problem_of(error).encoded()), ref))


def _entries(encoding: Encoding, entries: Sequence[Entry]) -> bytes:
    return to_json(_EntriesFrame(entries_json(entries, encoding)))


# One function per encoding, created once: frames cache what they rendered by it.
RENDERS: Final[dict[Encoding, Render]] = {encoding: partial(_entries, encoding) for encoding in Encoding}
