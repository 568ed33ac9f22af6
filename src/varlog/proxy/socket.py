"""Route of WebSockets: a topic's entries as they come, several a message, and appends on the same connection.

Out: {"entries": […]}, {"appended": {…}, "ref": …}, {"problem": {…}, "ref": …}. In: {"append": […], "ref": …}, with "log_stream" and
"timeout" as in a request. Appends of one socket are made one after the other, in the order of its messages. It is closed with 1000
when `until` is reached, with 1012 when the proxy stops, and else with 4000 + the status of the problem that ended it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from varlog.model.errors import Trimmed, VarlogError
from varlog.model.lsn import LSN_MAX
from varlog.proxy.admission import client_of
from varlog.proxy.backpressure_sender import BackpressureSender
from varlog.proxy.deadline import Deadline
from varlog.proxy.errors import BadParameter, SubscriptionOver, TooSlow
from varlog.proxy.events import start_of
from varlog.proxy.followers import Follower, Followers
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.meters import ProxyMeters
from varlog.proxy.problem import CLOSE_PROBLEM, CLOSE_REASON_BYTES_MAX, answer, problem_of
from varlog.proxy.socket_appends import SocketAppends
from varlog.proxy.socket_text import RENDERS, problem_text
from varlog.proxy.start_rules import OLDEST, PATTERN
from varlog.proxy.wire import Encoding

KIND: Final = "socket"
CLOSE_NORMAL: Final = 1000
router = APIRouter()


class Asked(BaseModel):
    """What the query of a socket says; `from`, `until`, `encoding` and `skip_trimmed` as of server-sent events."""

    begin: str = Field(OLDEST, alias="from", pattern=PATTERN)
    until: int | None = Field(None, ge=1, le=LSN_MAX)
    encoding: Encoding = Encoding.AUTO
    skip_trimmed: bool = False
    follow: bool = True  # without it there are only appends

    @classmethod
    def of(cls, websocket: WebSocket) -> Asked:
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
        asked, deadline = Asked.of(websocket), Deadline(limits.timeout_s)
        log = await deadline.log(state.gateway, topic)
        start = start_of(asked.begin)
        if asked.follow:
            follower = await deadline.wait(
                followers.follow(topic, start, KIND, client, skip_trimmed=asked.skip_trimmed)
            )
        release = None if asked.follow else state.admission.subscribe(KIND, client)
    except VarlogError as error:
        # Not a socket yet: refused by an HTTP answer, as any other request.
        await websocket.send_denial_response(answer(error, limits))
        return
    sender = BackpressureSender(websocket.scope, websocket.send, limits.slow_s)
    appends = SocketAppends(log, topic, client, limits, meters, state.admission, sender)
    try:
        await websocket.accept()
        await _Socket(websocket, sender, follower, asked, appends, limits, meters).serve()
    except WebSocketDisconnect:
        pass  # it left: nobody is there to be told anything
    finally:
        appends.close()
        if follower is not None:
            await follower.close()
        if release is not None:
            release()


class _Socket:
    """One socket: what is sent, what is received, and what is appended, side by side; the first to end ends all."""

    def __init__(
        self,
        websocket: WebSocket,
        sender: BackpressureSender,
        follower: Follower | None,
        asked: Asked,
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
        """Until it ends; then say why, unless nobody is there any more."""
        ended = await self._ended()
        if any(isinstance(error, WebSocketDisconnect) for error in ended):
            return
        if isinstance(ended[0], _Complete):
            await self._close(CLOSE_NORMAL, "everything before `until` was sent")
        elif isinstance(ended[0], TooSlow):
            self._drop(ended[0])
        else:
            await self._tell_and_close(ended[0])

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
            given = message.get("text")
            await self._appends.take(given.encode() if given is not None else message["bytes"])

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
            # A consumer that takes everything at once shall not keep the others waiting.
            await asyncio.sleep(0)
        raise _Complete

    async def _tell_and_close(self, error: Exception) -> None:
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
    """Everything that was asked for was sent."""


def _short(reason: str) -> str:
    """A close frame has little room."""
    return reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")
