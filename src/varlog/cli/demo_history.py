"""DemoHistory: records what the demo's clients did; varlog.verify checks it.

The same checkers judge the simulator and the fault tests; the demo groups some of them into the claims that it prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from varlog.model.errors import JunkPosition, OutcomeUnknown, Rejected, VarlogError
from varlog.verify.checkers import (
    AcknowledgedSurvives,
    Dense,
    Immutable,
    OneEntryOnePosition,
    RealTimeOrder,
    RefusedNowhere,
    SubscribersSeePrefixes,
)
from varlog.verify.history import (
    AppendCall,
    CallOutcome,
    Checker,
    Ending,
    History,
    ReadCall,
    Seen,
    SubscribeCall,
)
from varlog.verify.sequenced_checkers import JunkStaysJunk, SubscribersPassOverJunkAlone

if TYPE_CHECKING:
    from varlog.client.log import Log
    from varlog.model.entry import Entry

SURVIVES: Final = (AcknowledgedSurvives(),)
DENSE: Final = (Dense(), JunkStaysJunk())
ONCE: Final = (OneEntryOnePosition(), RefusedNowhere())
UNCHANGED: Final = (Immutable(),)
ORDERED: Final = (RealTimeOrder(),)
FOLLOWED: Final = (SubscribersSeePrefixes(), SubscribersPassOverJunkAlone())


@dataclass(frozen=True, slots=True)
class DemoClaim:
    """One claim about the log, and the violations that were found."""

    claim: str
    violations: list[str]


class DemoHistory:
    """Appends and one subscription of a topic, then everything read back."""

    def __init__(self, topic: str, *, sequenced: bool = False) -> None:
        self.history = History()
        if sequenced:
            self.history.sequenced.add(topic)
        self.acknowledged = self.unknown = self.rejected = 0
        self.longest_wait_s = 0.0
        self._topic = topic
        self._followed = SubscribeCall(
            topic=topic, client="the reader that followed", begin=1, end=None, started=self.history.event()
        )
        self.history.operations.append(self._followed)

    @property
    def followed(self) -> int:
        """How many entries the subscription has received."""
        return len(self._followed.got)

    async def append(self, log: Log, client: str, data: bytes) -> bool:
        """Append one entry and record the outcome; true if it was acknowledged. Nothing is retried here: what is retried, the
        client library retries, and the log must recognise it (R-ORD-7)."""
        operation = AppendCall(
            topic=self._topic, client=client, entries=(data,), started=self.history.event()
        )
        self.history.operations.append(operation)
        begun = monotonic()
        try:
            position = await log.append(data)
        except OutcomeUnknown as error:
            operation.outcome, operation.message = CallOutcome.UNKNOWN, str(error)
            self.unknown += 1
        except Rejected as error:
            operation.outcome, operation.message = CallOutcome.REJECTED, str(error)
            self.rejected += 1
        else:
            operation.outcome = CallOutcome.DONE
            operation.first = Seen(position.glsn, position.llsn, position.log_stream, data)
            self.acknowledged += 1
        operation.ended = self.history.event()
        self.longest_wait_s = max(self.longest_wait_s, monotonic() - begun)
        return operation.outcome is CallOutcome.DONE

    async def follow(self, log: Log) -> None:
        """Subscribe from the beginning, until cancelled."""
        async for entries in log.subscribe_lists(1):
            self.receive([_seen(entry) for entry in entries])

    def receive(self, entries: Sequence[Seen]) -> None:
        event = self.history.event()
        self._followed.got += [(event, seen) for seen in entries]

    async def read_back(self, log: Log) -> list[Entry]:
        """Read all entries, and each position that has none: of a sequenced topic it must be junk (R-SEQ-7)."""
        tail = await log.tail()
        entries: list[Entry] = []
        async for part in log.subscribe_lists(1, tail + 1):
            entries += part
        junk = set()
        for glsn in sorted(set(range(1, tail + 1)).difference(entry.glsn for entry in entries)):
            read = ReadCall(topic=self._topic, client="reader", glsn=glsn, started=self.history.event())
            self.history.operations.append(read)
            try:
                await log.read(glsn)
            except JunkPosition:
                read.outcome = CallOutcome.FILLED
                junk.add(int(glsn))
            except VarlogError as error:
                read.outcome, read.message = CallOutcome.FAILED, str(error)
            read.ended = self.history.event()
        self.finish([_seen(entry) for entry in entries], tail, junk)
        return entries

    def finish(self, entries: list[Seen], tail: int, junk: set[int]) -> None:
        """What is in the log at the end, and what the subscription therefore should have received."""
        self.history.endings.append(Ending(self._topic, 0, tail, entries, junk=junk))
        self._followed.end, self._followed.outcome = tail + 1, CallOutcome.DONE

    @property
    def junk(self) -> int:
        return sum(len(ending.junk) for ending in self.history.endings)

    def violations(self, checkers: Sequence[Checker]) -> list[str]:
        return [violation for checker in checkers for violation in checker.check(self.history)]

    def claims(self) -> list[DemoClaim]:
        """What the demo claims of the log (laws 3, 4, 10; R-ORD-4; R-READ-3)."""
        tail = self.history.endings[-1].tail
        but = f" except {self.junk:,} filled with junk" if self.junk else ""
        texts = {
            f"each of the {self.acknowledged:,} acknowledged entries is at its position": SURVIVES,
            f"positions 1 to {tail:,} have no gap{but}": DENSE,
            "no entry appears twice, and none that was refused appears": ONCE,
            "each position shows the same entry to every client": UNCHANGED,
            "an entry appended after another was acknowledged comes after it": ORDERED,
            "the reader that followed saw the same entries in the same order": FOLLOWED,
        }
        return [DemoClaim(text, self.violations(checkers)) for text, checkers in texts.items()]


def _seen(entry: Entry) -> Seen:
    return Seen(entry.glsn, entry.llsn, entry.log_stream, entry.data)
