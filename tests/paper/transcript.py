"""Transcript: messages between participants and their outcomes, as text.

It is a sequence diagram that can be compared. A line is `CL -> SN1 write e1 ok`: sender, receiver, message, epoch, and the
reply; `×` is none, and a one-way message ends with its name. Every request is recorded, as in the diagrams, with some
exceptions, so that one story has one transcript:

- the request for a newer view (`projection`) is left out where there was none: clients always have one waiting
- so is the hint to other clients that a node does not answer, which changes nothing, unless a diagram has it
- a request that fails in the same way several times in a row is recorded once: "duration to decide if SN1 fails"
- concurrent requests to several receivers (`who`, `seal`) are sorted by name
- periodic requests (`polls`) are recorded the first time, and when they find a problem that they did not find the last time
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Final

from varlog.model.batch import Buffer
from varlog.model.errors import VarlogError
from varlog.model.status import ReplicaState, ReplicaStatus
from varlog.rpc.messages import (
    AddLogStream,
    FetchUnit,
    FillUnit,
    GetNodeStatusReply,
    GetSequencer,
    GetView,
    GetViewReply,
    ListUnit,
    Message,
    NextTokens,
    ProposeProjection,
    ProposeProjectionReply,
    ReadUnit,
    ReplicaStateReply,
    SealUnit,
    StreamReply,
    Suspect,
    SyncReply,
    TrimTopic,
    WriteUnit,
)
from varlog.rpc.transport import Call, CallTimeout, Connection, ConnectionLost, Handler, Server, Transport
from varlog.testing.sim.core.loop import ProcessCrashed

# The words of the diagrams in 003 and 004.
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
OK: Final = "ok"


@dataclass
class Line:
    """One message."""

    who: str
    whom: str
    word: str
    epoch: int
    log_stream: int
    outcome: str = NO_ANSWER
    alone: bool = True  # everything that was requested before was answered
    over: bool = False  # it was answered, or no caller waits for an answer any more
    granted: bool = False  # it was answered, and not by an error

    def text(self, *, streams: bool) -> str:
        where = f" ls{self.log_stream}" if streams and self.log_stream else ""
        epoch = f" e{self.epoch}" if self.epoch > 0 else ""
        return f"{self.who} -> {self.whom} {self.word}{epoch}{where} {self.outcome}".rstrip()


@dataclass
class Transcript:
    """`names`: the diagram's name for the participant at an address. `streams`: whether lines name the log stream.
    `words`: the diagram's names for messages; those without one have our own name."""

    names: dict[str, str] = field(default_factory=dict)
    streams: bool = False
    words: Mapping[type[Message], str] = field(default_factory=lambda: WORDS)
    unrecorded: tuple[type[Message], ...] = (GetView, Suspect)
    at_once: tuple[tuple[str, ...], ...] = (("who", "seal"),)
    polls: frozenset[str] = frozenset()
    lines: list[Line] = field(default_factory=list)
    hooks: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)  # the newest epoch that each knows of
    proposed: dict[str, int] = field(default_factory=dict)  # and the newest that each has proposed itself
    polled: dict[tuple[str, str, str], str] = field(default_factory=dict)  # the newest answer to each poll

    def at(self, begins: str, action: Callable[[], None]) -> None:
        """Do something right before the next request whose line begins like this is sent."""
        self.hooks.append((begins, action))

    def request(self, who: str, address: str, request: Message, *, oneway: bool = False) -> Line:
        """A message from a participant, which is at an address or has a name, to another one at an address."""
        line = Line(
            self.names.get(who, who),
            self.names.get(address, address),
            self._word(request),
            _epoch(request),
            getattr(request, "log_stream", 0),
        )
        if oneway:
            line.outcome, line.over = "", True
        if isinstance(request, ProposeProjection):
            self.proposed[line.who] = line.epoch
        if not (isinstance(request, self.unrecorded) or _is_report(request)):
            line.alone = all(before.outcome != NO_ANSWER for before in self.lines)
            self.lines.append(line)
        for hook in [hook for hook in self.hooks if line.text(streams=self.streams).startswith(hook[0])]:
            self.hooks.remove(hook)
            hook[1]()
        return line

    def answered(self, line: Line, answer: Message) -> None:
        line.outcome, line.over, line.granted = _outcome(answer), True, True
        newest = max(_epochs(answer), default=0)
        if newest > self.known.get(line.who, 0):
            self.known[line.who] = newest
            learnt = isinstance(answer, GetViewReply) and newest != self.proposed.get(line.who)
            if learnt and GetView in self.unrecorded:
                self.lines.append(line)

    def failed(self, line: Line, error: VarlogError) -> None:
        line.outcome, line.over = type(error).__name__, True
        if line.word == WORDS[ProposeProjection]:
            del self.proposed[line.who]

    def take(self, *whos: str) -> list[str]:
        """Everything since the last call, of these (none: of all)."""
        taken, self.lines = [line for line in self.lines if not whos or line.who in whos], []
        shown: list[str] = []
        kept = [line for line in taken if line.word not in self.polls or self._is_news(line)]
        for words, lines in groupby(kept, self._asked_with):
            for line in sorted(lines, key=partial(_by_name, words)) if words else lines:
                text = line.text(streams=self.streams)
                if line.granted or shown[-1:] != [text]:
                    shown.append(text)
        return shown

    def poll_again(self, *words: type[Message]) -> None:
        """From now on these are polls, and the next one of every kind is recorded like a first one."""
        self.polls |= {self.words.get(word, word.__name__) for word in words}
        self.unrecorded = tuple(kind for kind in self.unrecorded if kind not in words)
        self.polled.clear()

    def _asked_with(self, line: Line) -> tuple[str, ...]:
        return next((words for words in self.at_once if line.word in words), ())

    def _is_news(self, line: Line) -> bool:
        poll = line.who, line.whom, line.word
        if not line.over or (before := self.polled.get(poll)) == line.outcome:
            return False
        self.polled[poll] = line.outcome
        return before is None or line.outcome != OK

    def _word(self, request: Message) -> str:
        if isinstance(request, NextTokens) and request.count == 0:
            return "tail"
        return self.words.get(type(request), type(request).__name__)


def _is_report(request: Message) -> bool:
    """A client reports which of its batches have ended. Nothing waits for that, and the diagrams do not have it
    (decision 23)."""
    return (
        isinstance(request, NextTokens) and request.count == 0 and bool(request.written or request.given_up)
    )


def _by_name(words: tuple[str, ...], line: Line) -> tuple[int, int, str]:
    return words.index(line.word), line.log_stream, line.whom


def _outcome(answer: Message) -> str:
    """What the diagrams show of a reply: the state, and the position of the last entry of the log stream."""
    match answer:
        case ReplicaStateReply():
            return f"{answer.state.name} {answer.committed_end - 1}"
        case StreamReply():
            return f"{answer.stream.state.name} {answer.stream.sealed_end - 1}"
        case SyncReply():
            return answer.sync.state.name
        case GetNodeStatusReply() if any(map(_sealed_itself, answer.status.replicas)):
            return ReplicaState.SEALING.name
        case _:
            return OK


def _sealed_itself(replica: ReplicaStatus) -> bool:
    return replica.state is ReplicaState.SEALING and replica.opened


def _epochs(answer: Message) -> list[int]:
    if isinstance(answer, GetViewReply):
        view = answer.view
        return [found.epoch for found in view.projections] or [found.epoch for found in view.streams]
    return [answer.projection.epoch] if isinstance(answer, ProposeProjectionReply) else []


def _epoch(request: Message) -> int:
    if isinstance(request, ProposeProjection):
        return request.projection.epoch
    return getattr(request, "epoch", 0)


class RecordedTransport:
    """The network of one participant, at an address or with a name: its messages, and those that come unsolicited, are
    recorded. `late`: a connection is assumed until the first request over it, so that one to a process that does not
    run is recorded as well."""

    def __init__(self, who: str, transport: Transport, transcript: Transcript, *, late: bool = True) -> None:
        self._who = who
        self._late = late
        self._transport = transport
        self.transcript = transcript
        self.watches = True  # False: it learns of no new view unless it asks
        self.slow_s = 0.0  # how long a write is in flight

    @property
    def corrupt_frames(self) -> int:
        return self._transport.corrupt_frames

    async def connect(self, address: str, *, handler: Handler | None = None, timeout_s: float) -> Connection:
        connection = RecordedConnection(self, address, self._receiving(address, handler))
        if not self._late:
            await connection.dial(timeout_s)
        return connection

    async def serve(self, address: str, make_handler: Callable[[Connection], Handler]) -> Server:
        return await self._transport.serve(address, make_handler)

    async def dial(self, address: str, handler: Handler | None, timeout_s: float) -> Connection:
        return await self._transport.connect(address, handler=handler, timeout_s=timeout_s)

    def address_of(self, name: str) -> str:
        return next(address for address, found in self.transcript.names.items() if found == name)

    def line(self, address: str, request: Message, *, oneway: bool = False) -> Line:
        return self.transcript.request(self._who, address, request, oneway=oneway)

    def _receiving(self, address: str, handler: Handler | None) -> Handler | None:
        if handler is None:
            return None

        def receive(call: Call | None, message: Message, payload: bytearray) -> None:
            self.transcript.request(address, self._who, message, oneway=True)
            handler(call, message, payload)

        return receive


class RecordedConnection:
    """A connection of a participant, dialled at the latest with its first request."""

    def __init__(self, transport: RecordedTransport, address: str, handler: Handler | None) -> None:
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
            inner = await self.dial(timeout_s)
            if isinstance(request, GetView) and request.wait_s and not self._transport.watches:
                await asyncio.sleep(timeout_s)
                raise CallTimeout("it does not watch")
            if self._transport.slow_s and isinstance(request, WriteUnit):
                await asyncio.sleep(self._transport.slow_s)
            answer = await inner.call(request, payload, timeout_s=timeout_s)
        except (ConnectionLost, CallTimeout, asyncio.CancelledError, ProcessCrashed):
            line.over = True
            raise
        except VarlogError as error:
            self._transport.transcript.failed(line, error)
            raise
        self._transport.transcript.answered(line, answer[0])
        return answer

    async def dial(self, timeout_s: float) -> Connection:
        async with self._dialling:
            if self._inner is None and not self._closed:
                try:
                    self._inner = await self._transport.dial(self._address, self._handler, timeout_s)
                except ConnectionLost:
                    self._end()
                    raise
                self._inner.on_close(self._end)
        if self._inner is None:
            raise ConnectionLost(f"{self._address} does not run", sent=False)
        return self._inner

    def send(self, message: Message, payload: Buffer = b"") -> None:
        if self._inner is None:
            raise ConnectionLost(f"{self._address} was not dialled yet", sent=False)
        self._transport.line(self._address, message, oneway=True)
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
