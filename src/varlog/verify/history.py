"""History: what clients asked and got, in real time, and the final state."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple

from varlog.model.projection import Projection

# Virtual seconds; where time is real it takes more.
DEADLINE_SLACK_S = 0.25
# In the error of a call on a topic whose order is in doubt.
STOPPED = "is STOPPED"


class CallOutcome(StrEnum):
    """What is known of an operation."""

    OPEN = "open"  # its client died, or the run ended, before it was answered
    DONE = "done"
    REJECTED = "rejected"  # an append: certainly not in the log
    UNKNOWN = "unknown"  # an append: may be in the log
    NOT_WRITTEN = "not written"
    TRIMMED = "trimmed"
    FILLED = "filled"  # the position was given up: it holds nothing, forever
    FAILED = "failed"  # could not be answered now


class Seen(NamedTuple):
    """One entry at its position, as a client saw it."""

    glsn: int
    llsn: int
    stream: int
    data: bytes


@dataclass(slots=True, kw_only=True)
class ClientCall:
    """One call of one client. `started` and `ended` count the events of the run: smaller means earlier in real time."""

    topic: str
    client: str
    started: int = 0
    started_s: float = 0.0
    deadline_s: float = float("inf")
    ended: int | None = None
    ended_s: float | None = None
    outcome: CallOutcome = CallOutcome.OPEN
    message: str = ""  # the error
    abandoned: bool = False  # its client died

    def __str__(self) -> str:
        end = "" if self.message == "" else f" ({self.message})"
        return f"{self.client}: {self.what()} -> {self.outcome}{end}"

    def what(self) -> str:
        return type(self).__name__

    def seen(self) -> Iterator[tuple[int, Seen]]:
        """Entries that this operation showed at their positions, each with the event at which it did."""
        return iter(())


@dataclass(slots=True, kw_only=True)
class AppendCall(ClientCall):
    """One entry or a batch. `first` is where its first entry is, once acknowledged."""

    entries: tuple[bytes, ...]
    stream: int | None = None
    first: Seen | None = None

    def what(self) -> str:
        where = "" if self.stream is None else f" to stream {self.stream}"
        at = (
            ""
            if self.first is None
            else f" at {self.first.glsn} (stream {self.first.stream} llsn {self.first.llsn})"
        )
        return f"append {_short(self.entries[0])} x{len(self.entries)}{where}{at}"

    def seen(self) -> Iterator[tuple[int, Seen]]:
        if self.first is not None and self.ended is not None:
            glsn, llsn, stream, _ = self.first
            for index, data in enumerate(self.entries):
                yield self.ended, Seen(glsn + index, llsn + index, stream, data)


@dataclass(slots=True, kw_only=True)
class ReadCall(ClientCall):
    """One position: of the topic (glsn), or of a stream (stream, llsn)."""

    glsn: int = 0
    stream: int = 0
    llsn: int = 0
    got: Seen | None = None

    def what(self) -> str:
        where = f"{self.glsn}" if self.glsn else f"stream {self.stream} llsn {self.llsn}"
        return f"read {where}" + (f" = {_short(self.got.data)}" if self.got else "")

    def seen(self) -> Iterator[tuple[int, Seen]]:
        if self.got is not None and self.ended is not None:
            yield self.ended, self.got


@dataclass(slots=True, kw_only=True)
class SubscribeCall(ClientCall):
    """Entries from `begin` on, up to `end` if there is one; `got` has each with the event at which it came."""

    begin: int
    end: int | None
    got: list[tuple[int, Seen]] = field(default_factory=list)

    def what(self) -> str:
        came = f", {len(self.got)} came" + (f", last {self.got[-1][1].glsn}" if self.got else "")
        return f"subscribe [{self.begin}, {self.end or '...'}){came}"

    def seen(self) -> Iterator[tuple[int, Seen]]:
        return iter(self.got)


@dataclass(slots=True, kw_only=True)
class TrimCall(ClientCall):
    """Everything at or below `glsn` is to go. `beyond_tail`: refused, as nothing is there yet. `binding` is false where a
    living node was out of session with the repository meanwhile: such a node learns of the trim when it is back. `respectful`: to
    be refused where a named reader has not read so far. `forgettable`: it reached no storage node, and the repository's store went
    back in time."""

    glsn: int
    beyond_tail: bool = False
    binding: bool = True
    respectful: bool = False
    forgettable: bool = False

    def what(self) -> str:
        return f"trim {self.glsn}"


@dataclass(slots=True, kw_only=True)
class TailCall(ClientCall):
    """The newest position, asked of the metadata repository."""

    glsn: int | None = None

    def what(self) -> str:
        return f"tail = {self.glsn}"


class StoredPage(NamedTuple):
    """One batch of one log unit, as it is on disk."""

    llsn: int
    entries: int
    junk: bool
    checksum: int  # of all its bytes


class StoredEntry(NamedTuple):
    """One committed entry of one replica, as it is on disk."""

    llsn: int
    glsn: int
    batch: tuple[int, ...]  # the header of its batch: epoch, first LLSN, producer, sequence, time, checksum
    data: bytes


@dataclass(slots=True)
class Ending:
    """A topic after the last fault: read back through a client, and replica by replica from the disks.

    `trims` has, stream by stream and node by node, how far each replica is trimmed on its disk. Of a sequenced topic: `units` has
    the batches of each log unit by stream and node, junk included, and `junk` the positions that a disk has as junk.
    """

    topic: str
    trimmed: int
    tail: int
    entries: list[Seen]
    replicas: dict[int, dict[str, list[StoredEntry]]] = field(default_factory=dict)
    trims: dict[int, dict[str, int]] = field(default_factory=dict)
    units: dict[int, dict[str, list[StoredPage]]] = field(default_factory=dict, repr=False)
    junk: set[int] = field(default_factory=set, repr=False)


@dataclass(slots=True)
class HarmAccount:
    """What became of a topic after harm that replication does not survive.

    `shown` is what the cluster's status reports as wrong, a refusal to start included; '' if it reports that all is well.
    `gone`: why no client finds the topic; '' if it does. `reads` are of the positions that were known before, and were not in the
    last subscription.
    """

    topic: str
    shown: str
    gone: str = ""
    reads: list[ReadCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Window:
    """A topic without the slow host: virtual seconds before it was slow, [begin, end), and meanwhile. `stream`: only that one of
    its streams is without that host (0: all are). `share`: of the topic's appends, where all of its streams are alike."""

    topic: str
    slow: str
    before_begin_s: float
    before_end_s: float
    slow_begin_s: float
    slow_end_s: float
    stream: int = 0
    share: float = 1.0


@dataclass(slots=True)
class IdempotentWrite:
    """Rows that must be in the log once, however many attempts write them. `finished`: one attempt was acknowledged.
    `failure`: why the last one, in a healed cluster, was not."""

    topic: str
    stream: int
    producer: int
    after: int
    rows: tuple[bytes, ...]
    batch_rows: int
    finished: bool = False
    failure: str = ""


class OrderedAt(NamedTuple):
    """Where a repository said that an entry is, in which epoch, and which of them said it first."""

    glsn: int
    epoch: int
    who: str


class ObservedGrant(NamedTuple):
    """Positions that a sequencer gave: [begin, end)."""

    topic: int
    epoch: int
    begin: int
    end: int
    who: str


@dataclass(slots=True)
class SequencedFacts:
    """What an observer received and an inspector saw of sequenced topics while they were in use."""

    names: dict[int, str] = field(default_factory=dict)  # of sequenced topics
    projections: dict[int, dict[int, Projection]] = field(default_factory=dict)  # by topic and epoch
    tokens: list[ObservedGrant] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)  # of two projections
    stale_answers: list[str] = field(default_factory=list)  # by units that were sealed before
    broken_chains: list[str] = field(default_factory=list)  # the tail has what others before it have not
    written_twice: list[str] = field(default_factory=list)  # an address whose value changed


class History:
    """Everything the checkers look at."""

    def __init__(self) -> None:
        self.operations: list[ClientCall] = []
        self.endings: list[Ending] = []
        self.accounts: list[HarmAccount] = []
        self.windows: list[Window] = []
        # Streams whose primary was still on a node with a slow disk when the manager had had time enough to move it.
        self.slow_primaries: list[str] = []
        self.beyond = False  # copies were harmed beyond what replication survives
        self.trouble: list[str] = []  # what kept the cluster from healing
        self.calm = False  # nothing was broken on purpose in this run
        self.healed: int | None = None  # the event at which the cluster was well again after the last fault
        # The events at which files of a repository were put back in time or harmed; None where that is not known.
        self.store_harms: list[int] | None = None
        self.adopted: int | None = (
            None  # the event at which an operator had taken the order of every stopped topic
        )
        self.complaints: list[str] = []  # broken invariants, failed callbacks, frozen replicas
        self.not_whole: list[str] = []  # replicas and units that cannot be opened from their disks at the end
        self.said: list[str] = []  # log lines about harm that the cluster cannot repair by itself
        # By how much a call may overrun its deadline: a reply that was in flight.
        self.deadline_slack_s = DEADLINE_SLACK_S
        # What repositories published: where each epoch begins, by stream and epoch; the order of each stream, by LLSN.
        self.seals: dict[int, dict[int, int]] = {}
        self.orders: dict[int, dict[int, OrderedAt]] = {}
        self.contradictions: list[str] = []  # of two such statements
        self.broken_words: list[str] = []  # promises to named readers and writers that were not kept
        self.first = 1  # the position at which the order of every topic begins
        self.tasks: list[IdempotentWrite] = []
        self.copies: dict[str, str] = {}  # a topic that is to be equal to another one, position by position
        self.sequenced: set[str] = set()  # the names of topics whose positions a sequencer gives
        self.sequenced_facts = SequencedFacts()
        self._last_commit = (0, 0)
        self._rows_recorded: set[tuple[int, int, int, int, int]] = set()
        self._events = 0

    def record_seal(self, stream: int, epoch: int, sealed_end: int) -> None:
        """According to a repository this epoch of a stream begins at `sealed_end`; what is below belongs to older ones."""
        first = self.seals.setdefault(stream, {}).setdefault(epoch, sealed_end)
        if first != sealed_end:
            self.contradictions.append(
                f"epoch {epoch} of stream {stream} begins at {first}, and then at {sealed_end}"
            )

    def record_commit(self, term: int, serial: int) -> None:
        """The store that repositories share holds a commit of this term, the newest of all."""
        if (term, serial) < self._last_commit:
            self.contradictions.append(
                f"commit {serial} of term {term} is in the store behind (term, commit) {self._last_commit}"
            )
        self._last_commit = term, serial

    def record_order(self, stream: int, llsn: int, glsn: int, count: int, epoch: int, who: str) -> None:
        """A repository placed `count` entries of a stream, from `llsn` on, at `glsn` and the positions after it."""
        row = stream, llsn, glsn, count, epoch
        if row in self._rows_recorded:
            return
        self._rows_recorded.add(row)
        known = self.orders.setdefault(stream, {})
        for at in range(count):
            first = known.setdefault(llsn + at, OrderedAt(glsn + at, epoch, who))
            if first[:2] != (glsn + at, epoch):
                self.contradictions.append(
                    f"stream {stream} llsn {llsn + at} is at {first.glsn} (epoch {first.epoch}) by {first.who}, "
                    f"at {glsn + at} (epoch {epoch}) by {who}"
                )
                return

    def event(self) -> int:
        """The number of the next event in real time."""
        self._events += 1
        return self._events

    def of(self, topic: str) -> list[ClientCall]:
        return [operation for operation in self.operations if operation.topic == topic]

    def topics(self) -> list[str]:
        return list(dict.fromkeys(operation.topic for operation in self.operations))

    def sightings(self, topic: str) -> Iterator[tuple[int, Seen, str]]:
        """Every entry that a client saw at a position: (event, what, who)."""
        for operation in self.of(topic):
            for event, seen in operation.seen():
                yield event, seen, str(operation)
        for ending in self.endings:
            if ending.topic == topic:
                for seen in ending.entries:
                    yield self._events, seen, "the last read of all"

    def digest(self) -> str:
        """Two runs with the same digest were the same run."""
        digest = hashlib.sha256()
        for thing in (
            *self.operations,
            *self.endings,
            *self.accounts,
            *self.trouble,
            *self.complaints,
            *self.not_whole,
            *self.contradictions,
            *self.broken_words,
            *self.tasks,
        ):
            digest.update(repr(thing).encode())
        return digest.hexdigest()[:16]


class KnownTail:
    """The newest position known to a client before a given event: acknowledged, read, or returned as the tail."""

    def __init__(self, history: History, topic: str) -> None:
        facts: list[tuple[int, int]] = []
        for operation in history.of(topic):
            facts.extend((event, seen.glsn) for event, seen in operation.seen())
            if operation.ended is None:
                continue
            if isinstance(operation, TailCall) and operation.glsn is not None:
                # A sequencer may be lost with positions that it gave and nobody wrote: its successor's tail is smaller.
                if topic not in history.sequenced:
                    facts.append((operation.ended, operation.glsn))
            elif isinstance(operation, ReadCall) and operation.outcome is CallOutcome.FILLED:
                facts.append((operation.ended, operation.glsn))
        facts.sort()
        self._events: list[int] = []
        self._newest: list[int] = []
        newest = 0
        for event, glsn in facts:
            newest = max(newest, glsn)
            self._events.append(event)
            self._newest.append(newest)

    def before(self, event: int) -> int:
        at = bisect_left(self._events, event)
        return self._newest[at - 1] if at else 0


def _short(data: bytes) -> str:
    """The name of an entry: what is before its padding."""
    return data[:24].split(b"|")[0].decode(errors="replace")


# --- checker: the interface of one property of a history ------------------------------------------------------------------------


class Checker(ABC):
    """One property. `law` says where it is written; `check` yields one sentence for each violation. `beyond`: it holds also where
    copies were harmed beyond what replication survives."""

    law: ClassVar[str]
    beyond: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def check(self, history: History) -> Iterator[str]: ...
