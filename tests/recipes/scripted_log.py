"""ScriptedLog: a log in memory whose appends end as a test says: acknowledged, lost, late, or never. For virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum
from typing import cast

from varlog.client.log import Log
from varlog.model.cluster import NamedReader, Topic
from varlog.model.entry import Entry, Position
from varlog.model.errors import (
    JunkPosition,
    NotAccepted,
    OutcomeUnknown,
    ReaderBehind,
    Trimmed,
    Unavailable,
    VarlogError,
)
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import GLSN, LLSN, NO_GLSN

TOPIC = TopicID(1)
STREAM = LogStreamID(1)


class Fate(Enum):
    """What becomes of one append."""

    ACKNOWLEDGED = "acknowledged"
    ANSWER_LOST = "in the log, and OutcomeUnknown at the deadline"
    LOST = "not in the log, and OutcomeUnknown at the deadline"
    LATE = "OutcomeUnknown at the deadline, and in the log when the test says so"
    NOT_ACCEPTED = "not in the log, and NotAccepted at the deadline"


class ScriptedLog:
    """Entries of one topic. `fates`: of the appends to come, in order; then all are acknowledged."""

    def __init__(self, first: int = 1) -> None:
        self.topic = Topic(TOPIC, "scripted", first=GLSN(first))
        self.entries: list[bytes | None] = []  # from position `first` on; None: filled
        self.fates: deque[Fate] = deque()
        self.late: list[bytes] = []
        self.appended: list[tuple[bytes, float]] = []  # each append's data and the time that it was given
        self.positions: dict[str, GLSN] = {}
        self.trims: list[GLSN] = []
        self.tails_asked = 0
        self.down = False  # neither tail() nor subscriptions are answered
        self.held = False  # subscriptions give nothing
        self.failing: VarlogError | None = None  # what subscriptions end with
        self.closed = False
        self._changed = asyncio.Event()
        self._seen_by = [self]  # all who look at the same entries

    @property
    def log(self) -> Log:
        return cast(Log, self)

    # --- For the test -------------------------------------------------------------------------------------------------------

    def put(self, data: bytes | None) -> GLSN:
        """In the log, at the next position. None: a position without an entry."""
        self.entries.append(data)
        self.change()
        return self.newest

    def for_others(self) -> ScriptedLog:
        """The same log as another process sees it, whatever goes wrong here."""
        others = ScriptedLog(self.topic.first)
        others.entries, others.positions, others.trims = self.entries, self.positions, self.trims
        others._seen_by = self._seen_by
        self._seen_by.append(others)
        return others

    def change(self, **what: object) -> None:
        for name, value in what.items():
            setattr(self, name, value)
        for log in self._seen_by:
            changed, log._changed = log._changed, asyncio.Event()
            changed.set()

    @property
    def newest(self) -> GLSN:
        return GLSN(self.topic.first + len(self.entries) - 1)

    # --- As Log ---------------------------------------------------------------------------------------------------------------

    async def append(self, data: bytes, *, timeout_s: float) -> Position:
        self.appended.append((data, timeout_s))
        match self.fates.popleft() if self.fates else Fate.ACKNOWLEDGED:
            case Fate.ACKNOWLEDGED:
                await asyncio.sleep(0)
                return Position(self.put(data), LLSN(1), STREAM)
            case Fate.NOT_ACCEPTED:
                await asyncio.sleep(timeout_s)
                raise NotAccepted("nobody took it")
            case Fate.ANSWER_LOST:
                self.put(data)
            case Fate.LATE:
                self.late.append(data)
            case Fate.LOST:
                pass
        await asyncio.sleep(timeout_s)
        raise OutcomeUnknown("no answer came")

    async def tail(self, *, timeout_s: float = 10.0) -> GLSN:
        self.tails_asked += 1
        await asyncio.sleep(0.001)
        if self.down:
            await asyncio.sleep(timeout_s)
            raise Unavailable("nobody answers")
        return self.newest

    async def trimmed(self) -> GLSN:
        return self.trimmed_now

    async def trim(self, glsn: GLSN, *, respect_readers: bool = False) -> None:
        for name, position in self.positions.items():
            if respect_readers and position < glsn:
                raise ReaderBehind(name, position, glsn)
        self.trims.append(glsn)
        self.change()

    async def set_reader(self, name: str, position: GLSN) -> NamedReader:
        self.positions[name] = max(position, self.positions.get(name, GLSN(0)))
        return NamedReader(TOPIC, name, self.positions[name])

    async def readers(self) -> tuple[NamedReader, ...]:
        return tuple(NamedReader(TOPIC, name, position) for name, position in self.positions.items())

    async def read(self, glsn: GLSN) -> Entry:
        if glsn <= self.trimmed_now:
            raise Trimmed(glsn, self.trimmed_now + 1)
        data = self.entries[glsn - self.topic.first]
        if data is None:
            raise JunkPosition(glsn)
        return Entry(glsn, LLSN(glsn), STREAM, 0, data)

    async def subscribe_lists(self, begin: int, end: int) -> AsyncGenerator[list[Entry], None]:
        first = self.topic.first
        for at, data in enumerate(self.entries[begin - first : end - first], begin):
            if data is not None:
                yield [Entry(GLSN(at), LLSN(at), STREAM, 0, data)]

    @property
    def connector(self) -> ScriptedLog:
        return self

    def follow(self, begin: int) -> ScriptedFollowing:
        return ScriptedFollowing(self, GLSN(begin))

    @property
    def trimmed_now(self) -> GLSN:
        return max(self.trims, default=GLSN(self.topic.first - 1))

    async def wait_change(self) -> None:
        await self._changed.wait()


@dataclass
class ScriptedFollowing:
    """As TailingReader."""

    of: ScriptedLog
    next: GLSN
    expected: GLSN = NO_GLSN

    @property
    def position(self) -> GLSN:
        return GLSN(self.next - 1)

    def expect(self, glsn: GLSN) -> None:
        self.expected = max(self.expected, glsn)

    async def lists(self) -> AsyncGenerator[list[Entry], None]:
        log = self.of
        while True:
            if log.closed or log.down:
                raise Unavailable("the log was closed" if log.closed else "nobody answers")
            if log.failing is not None:
                raise log.failing
            if not log.held and self.next <= log.trimmed_now:
                raise Trimmed(self.next, log.trimmed_now + 1)
            if log.held or self.next > log.newest:
                await log.wait_change()
                continue
            begin, self.next = self.next, GLSN(log.newest + 1)
            first = log.topic.first
            numbered = enumerate(log.entries[begin - first : self.next - first], begin)
            yield [Entry(GLSN(at), LLSN(at), STREAM, 0, data) for at, data in numbered if data is not None]
