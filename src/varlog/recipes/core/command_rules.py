"""PURE. Sessions: a command is applied once; malformed and newer ones are not.

A client may append a command again when the outcome of the first append is unknown (law 10). All replicas keep the same sessions,
because they see the same commands in the same order; a snapshot includes them.

Of each client the newest floor is kept, and what was applied above it. Clients are many, so the one that was applied longest ago
is forgotten when there are too many. A command that may be of a forgotten client is refused, and not applied perhaps twice: the
position of the forgotten client's last command is kept (`horizon`), and a client that was born below it and is not known may be
the forgotten one. One born later is certainly new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, Generic, TypeVar

from varlog.model.invariant import invariant
from varlog.model.lsn import GLSN, NO_GLSN

CLIENTS_MAX: Final = 10_000
# How many commands of a client may be between the oldest that is not settled and the newest.
WINDOW_COMMANDS_MAX: Final = 4096


class ApplyDecision(Enum):
    """What is to be done with a command."""

    APPLY = "apply"
    REPEATED = "repeated"
    FORGOTTEN = "forgotten"


class Session:
    """One client: everything below `floor` and in `above` was applied. `last`: the position of its newest command."""

    __slots__ = ("above", "floor", "last")

    def __init__(self, floor: int = 1, above: Iterable[int] = (), last: GLSN = NO_GLSN) -> None:
        self.floor = floor
        self.above = set(above)
        self.last = last

    def has(self, sequence: int) -> bool:
        return sequence < self.floor or sequence in self.above

    def add(self, sequence: int, floor: int, at: GLSN) -> None:
        self.above.add(sequence)
        self.last = at
        if floor > self.floor:
            # Whichever is less work: a client with much in flight moves its floor by a little each time.
            if floor - self.floor < len(self.above):
                self.above.difference_update(range(self.floor, floor))
            else:
                self.above = {applied for applied in self.above if applied >= floor}
            self.floor = floor


class Sessions:
    """Those of one machine. The one that was applied longest ago is the first."""

    def __init__(self, clients_max: int | None = None) -> None:
        self._clients_max = CLIENTS_MAX if clients_max is None else clients_max
        self._sessions: dict[bytes, Session] = {}
        self.horizon: GLSN = NO_GLSN

    def admit(self, at: GLSN, client: bytes, born: int, sequence: int, floor: int) -> ApplyDecision:
        """The command at position `at`: whether it is applied. If so, it is remembered."""
        session = self._sessions.pop(client, None)
        if session is None:
            if born < self.horizon:
                return ApplyDecision.FORGOTTEN
            session = Session()
        self._sessions[client] = session
        if session.has(sequence):
            return ApplyDecision.REPEATED
        session.add(sequence, floor, at)
        if len(self._sessions) > self._clients_max:
            self._forget_oldest()
        return ApplyDecision.APPLY

    def _forget_oldest(self) -> None:
        client = next(iter(self._sessions))
        self.horizon = max(self.horizon, self._sessions.pop(client).last)

    def decide(self, client: bytes, born: int, sequence: int) -> ApplyDecision:
        """What `admit` would return, with nothing changed."""
        session = self._sessions.get(client)
        if session is None:
            return ApplyDecision.FORGOTTEN if born < self.horizon else ApplyDecision.APPLY
        return ApplyDecision.REPEATED if session.has(sequence) else ApplyDecision.APPLY

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[tuple[bytes, int, list[int], GLSN]]:
        """Each client, its floor, what is applied above it in order, and where its newest is; the oldest client first."""
        for client, session in self._sessions.items():
            yield client, session.floor, sorted(session.above), session.last

    def restore(self, horizon: GLSN, sessions: Iterable[tuple[bytes, int, list[int], GLSN]]) -> None:
        """Replace the state by a snapshot's."""
        self.horizon = horizon
        self._sessions = {client: Session(floor, above, last) for client, floor, above, last in sessions}


T = TypeVar("T")


class Issuer(Generic[T]):
    """One client's side: numbers its commands, and knows which of them are settled. T: whatever is kept with an open one.

    Settled is what was seen applied, and what certainly never gets into the log; not what no caller waits for any more.
    """

    def __init__(self, client: bytes, born: GLSN) -> None:
        self.client = client
        self.born = born
        self._next = 1
        self._open: dict[int, T] = {}  # in order: the first one is the floor

    @property
    def floor(self) -> int:
        """Every command below it is settled."""
        return next(iter(self._open), self._next)

    @property
    def full(self) -> bool:
        """An old one has been open for so long that another client must continue: replicas remember all that is above the floor."""
        return self._next - self.floor >= WINDOW_COMMANDS_MAX

    def issue(self, item: T) -> int:
        """The sequence of a new command."""
        invariant(
            not self.full, "a client's open commands are within a window", floor=self.floor, next=self._next
        )
        sequence = self._next
        self._next += 1
        self._open[sequence] = item
        return sequence

    def settle(self, sequence: int) -> T | None:
        """It is settled; what was kept with it, if it was open."""
        return self._open.pop(sequence, None)

    def open(self) -> list[tuple[int, T]]:
        """The open ones, in order."""
        return list(self._open.items())


# Commands that a machine does not apply. It raises one of these before it has changed anything, and for the same bytes always the
# same one: every replica decides alike. The first is skipped by all. The second stops the replica, because one of a newer version
# would apply it and differ.


class MalformedCommand(ValueError):
    """These bytes are no command of this machine in any version: they change nothing."""


class UnknownCommand(ValueError):
    """A well-formed command that this version does not know. `version` is what it says of itself."""

    def __init__(self, version: int | str) -> None:
        super().__init__(version)
        self.version = version
