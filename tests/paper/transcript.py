"""Transcript: what clients said to whom, message by message, and what came of it: a sequence diagram as text.

A line is `CL -> SN1 write e1 ok`: who, to whom, what, in which epoch, and the answer; `×` is none. Every request is written down,
as in the diagrams, with four liberties, so that one story has one transcript:

- the question for a newer projection (`projection`) is left out where there was none: clients have one waiting all the time
- so is the hint to other clients that somebody does not answer (R-FAIL-2), which changes nothing
- one that is asked the same in vain several times in a row is told once: "duration to decide if SN1 fails"
- what is asked of many at the same time (`who`, `seal`) is told in the order of their names
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from varlog.model.batch import Buffer
from varlog.model.errors import VarlogError
from varlog.rpc.messages import (
    AddLogStream,
    FetchUnit,
    FillUnit,
    GetSequencer,
    GetView,
    ListUnit,
    Message,
    NextTokens,
    ProjectionIs,
    ProposeProjection,
    ReadUnit,
    SealUnit,
    Suspect,
    TrimTopic,
    ViewIs,
    WriteUnit,
)
from varlog.rpc.transport import CallTimeout, Connection, ConnectionLost, Handler, Server, Transport
from varlog.testing.sim.process import ProcessCrashed

# The words of the diagrams.
WORDS: Final[dict[type[Message], str]] = {
    AddLogStream: "format",
    FetchUnit: "wait",
    FillUnit: "fill",
    GetSequencer: "who",
    GetView: "projection",
    ListUnit: "list",
    NextTokens: "next",
    ProposeProjection: "propose",
    ReadUnit: "read",
    SealUnit: "seal",
    TrimTopic: "trim",
    WriteUnit: "write",
}
NO_ANSWER: Final = "×"
UNTOLD: Final = (GetView, Suspect)
AT_ONCE: Final = frozenset({"who", "seal"})


@dataclass
class Line:
    """One request."""

    who: str
    whom: str
    word: str
    epoch: int
    log_stream: int
    outcome: str = NO_ANSWER
    alone: bool = True  # everything that was asked before was answered

    def told(self, *, streams: bool) -> str:
        where = f" ls{self.log_stream}" if streams and self.log_stream else ""
        epoch = f" e{self.epoch}" if self.epoch else ""
        return f"{self.who} -> {self.whom} {self.word}{epoch}{where} {self.outcome}".rstrip()


@dataclass
class Transcript:
    """`names`: what the diagram calls who is at an address. `streams`: whether lines name the log stream."""

    names: dict[str, str] = field(default_factory=dict)
    streams: bool = False
    lines: list[Line] = field(default_factory=list)
    hooks: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)  # the newest epoch that each has heard of
    proposed: dict[str, int] = field(default_factory=dict)  # and the newest that each has made by himself

    def at(self, begins: str, action: Callable[[], None]) -> None:
        """Do something right before the next request whose line begins like this is sent."""
        self.hooks.append((begins, action))

    def request(self, who: str, address: str, request: Message) -> Line:
        line = Line(
            who,
            self.names.get(address, address),
            _word(request),
            _epoch(request),
            getattr(request, "log_stream", 0),
        )
        if isinstance(request, ProposeProjection):
            self.proposed[who] = line.epoch
        if not isinstance(request, UNTOLD):
            line.alone = all(before.outcome != NO_ANSWER for before in self.lines)
            self.lines.append(line)
        for hook in [hook for hook in self.hooks if line.told(streams=self.streams).startswith(hook[0])]:
            self.hooks.remove(hook)
            hook[1]()
        return line

    def answered(self, line: Line, answer: Message) -> None:
        line.outcome = "ok"
        newest = max(_epochs(answer), default=0)
        if newest > self.known.get(line.who, 0):
            self.known[line.who] = newest
            if isinstance(answer, ViewIs) and newest != self.proposed.get(line.who):
                self.lines.append(line)

    def failed(self, line: Line, error: VarlogError) -> None:
        line.outcome = type(error).__name__
        if line.word == WORDS[ProposeProjection]:
            del self.proposed[line.who]

    def take(self, *whos: str) -> list[str]:
        """Everything since the last time, of these (none: of all)."""
        taken, self.lines = [line for line in self.lines if not whos or line.who in whos], []
        told: list[str] = []
        for at_once, lines in groupby(taken, lambda line: line.word in AT_ONCE):
            for line in sorted(lines, key=_by_name) if at_once else lines:
                text = line.told(streams=self.streams)
                if line.outcome == "ok" or told[-1:] != [text]:
                    told.append(text)
        return told


def _by_name(line: Line) -> tuple[bool, int, str]:
    return line.word != "who", line.log_stream, line.whom


def _epochs(answer: Message) -> list[int]:
    if isinstance(answer, ViewIs):
        return [projection.epoch for projection in answer.view.projections]
    return [answer.projection.epoch] if isinstance(answer, ProjectionIs) else []


def _word(request: Message) -> str:
    if isinstance(request, NextTokens) and request.count == 0:
        return "tail"
    return WORDS.get(type(request), type(request).__name__)


def _epoch(request: Message) -> int:
    if isinstance(request, ProposeProjection):
        return request.projection.epoch
    return getattr(request, "epoch", 0)


class ToldTransport:
    """The network of one client, whose requests are written down."""

    def __init__(self, who: str, transport: Transport, transcript: Transcript) -> None:
        self._who = who
        self._transport = transport
        self.transcript = transcript
        self.watches = True  # False: it hears of no new view unless it asks
        self.slow_s = 0.0  # how long a write is on its way

    async def connect(self, address: str, *, handler: Handler | None = None, timeout_s: float) -> Connection:
        return ToldConnection(self, address, handler)

    async def serve(self, address: str, make_handler: Callable[[Connection], Handler]) -> Server:
        return await self._transport.serve(address, make_handler)

    async def dial(self, address: str, handler: Handler | None, timeout_s: float) -> Connection:
        return await self._transport.connect(address, handler=handler, timeout_s=timeout_s)

    def address_of(self, name: str) -> str:
        return next(address for address, found in self.transcript.names.items() if found == name)

    def line(self, address: str, request: Message) -> Line:
        return self.transcript.request(self._who, address, request)


class ToldConnection:
    """Dialled with its first request, so that one to somebody who is not there is written down as well."""

    def __init__(self, transport: ToldTransport, address: str, handler: Handler | None) -> None:
        self._transport = transport
        self._address = address
        self._handler = handler
        self._inner: Connection | None = None
        self._dialling = asyncio.Lock()
        self._closed = False
        self._on_close: list[Callable[[], None]] = []

    @property
    def peer(self) -> str:
        return self._address

    @property
    def closed(self) -> bool:
        return self._closed

    async def call(
        self, request: Message, payload: Buffer = b"", *, timeout_s: float
    ) -> tuple[Message, bytearray]:
        line = self._transport.line(self._address, request)
        try:
            inner = await self._dialled(timeout_s)
            if isinstance(request, GetView) and request.wait_s and not self._transport.watches:
                await asyncio.sleep(timeout_s)
                raise CallTimeout("it does not watch")
            if self._transport.slow_s and isinstance(request, WriteUnit):
                await asyncio.sleep(self._transport.slow_s)
            answer = await inner.call(request, payload, timeout_s=timeout_s)
        except (ConnectionLost, CallTimeout, asyncio.CancelledError, ProcessCrashed):
            raise
        except VarlogError as error:
            self._transport.transcript.failed(line, error)
            raise
        self._transport.transcript.answered(line, answer[0])
        return answer

    async def _dialled(self, timeout_s: float) -> Connection:
        async with self._dialling:
            if self._inner is None and not self._closed:
                try:
                    self._inner = await self._transport.dial(self._address, self._handler, timeout_s)
                except ConnectionLost:
                    self._end()
                    raise
                self._inner.on_close(self._end)
        if self._inner is None:
            raise ConnectionLost(f"{self._address} is not there", sent=False)
        return self._inner

    def send(self, message: Message, payload: Buffer = b"") -> None:
        if self._inner is None:
            raise ConnectionLost(f"{self._address} was not dialled yet", sent=False)
        self._inner.send(message, payload)

    async def wait_writable(self) -> None:
        if self._inner is not None:
            await self._inner.wait_writable()

    def on_close(self, callback: Callable[[], None]) -> None:
        if self._closed:
            callback()
        else:
            self._on_close.append(callback)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        self._end()

    def _end(self) -> None:
        self._closed = True
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()
