"""RecipeHistory: what users of recipes asked and got, in real time.

And which state replicas had at which position.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from varlog.recipes.lock.guard import FencedResource
from varlog.verify.history import CallOutcome
from varlog.verify.transaction_history import ListTransaction, RecordedTransaction


@dataclass(slots=True, kw_only=True)
class RecipeCall:
    """One call of one user on one recipe. `started` and `ended` count the events of the run: smaller is earlier in real time.

    `key` is what it is about (a key, a lock), `given` its arguments, `got` its result.
    """

    recipe: str
    client: str
    what: str
    key: str = ""
    given: Any = None
    got: Any = None
    started: int = 0
    ended: int | None = None
    started_s: float = 0.0
    ended_s: float | None = None
    deadline_s: float = float("inf")
    outcome: CallOutcome = CallOutcome.OPEN
    message: str = ""  # the error

    def __str__(self) -> str:
        end = f" ({self.message})" if self.message else ""
        given = "" if self.given is None else f" {self.given}"
        return f"{self.client}: {self.recipe} {self.what} {self.key}{given} -> {self.outcome} {self.got}{end}"

    @property
    def done(self) -> bool:
        return self.outcome is CallOutcome.DONE

    @property
    def possible(self) -> bool:
        """Whether it may have had an effect."""
        return self.outcome is not CallOutcome.REJECTED


class HoldSeen(NamedTuple):
    """At this event `client` considered itself the holder of the lock, or to lead, by this token."""

    event: int
    recipe: str
    key: str
    client: str
    token: int


class LeaderSeen(NamedTuple):
    """At this event `client` saw that `leader` leads the term."""

    event: int
    key: str
    client: str
    term: int
    leader: str


class Passed(NamedTuple):
    """A resource took this token."""

    event: int
    key: str
    client: str
    token: int


class Changed(NamedTuple):
    """One change of a key, as a watch delivered it; None is a delete."""

    key: str
    value: bytes | None
    revision: int


@dataclass(slots=True)
class Watching:
    """One watch of keys with a prefix, from behind a revision on. `whole`: it was given the time to see all until `until`."""

    client: str
    prefix: str
    after: int
    changes: list[Changed] = field(default_factory=list)
    until: int = 0


class RecipeHistory:
    """Everything that checkers of recipes look at."""

    def __init__(self) -> None:
        self.calls: list[RecipeCall] = []
        self.holds: list[HoldSeen] = []
        self.leaders: list[LeaderSeen] = []
        self.passed: list[Passed] = []
        self.fences: dict[str, FencedResource] = {}
        self.watches: list[Watching] = []
        self.lists: dict[str, list[ListTransaction]] = {}  # by isolation level
        self.registers: dict[str, list[RecordedTransaction]] = {}  # by isolation level
        self.revisions: list[tuple[str, int, int | str | None]] = []  # of registers: key, revision, version
        self.disagreements: list[str] = []  # of two replicas at one position
        self.ledger: list[bytes] | None = None  # of the replicated state machine, at the end
        self.changes: list[Changed] | None = None  # of the map, at the end: all there ever were
        self.paused: set[str] = set()  # processes that were paused: they cannot keep their deadlines
        self.calm = False  # nothing was broken on purpose
        self.deadline_slack_s = 0.25
        self._states: dict[tuple[str, int], tuple[str, str]] = {}

    def of(self, recipe: str, *whats: str) -> Iterator[RecipeCall]:
        """The calls of one recipe, of these kinds; of all if none is named."""
        return (call for call in self.calls if call.recipe == recipe and (not whats or call.what in whats))

    def record_state(self, machine: str, position: int, state: bytes, who: str) -> None:
        """A replica that has applied everything up to `position` has this state."""
        digest = hashlib.sha256(state).hexdigest()[:12]
        first, by = self._states.setdefault((machine, position), (digest, who))
        if first != digest:
            self.disagreements.append(
                f"machine {machine} at position {position} is {first} for {by}, and {digest} for {who}"
            )

    @property
    def positions(self) -> int:
        """At how many positions a state was recorded."""
        return len(self._states)

    def digest(self) -> str:
        """Two runs with the same digest were the same run."""
        digest = hashlib.sha256()
        for thing in (
            *self.calls,
            *self.holds,
            *self.leaders,
            *self.passed,
            *self.watches,
            *self.disagreements,
        ):
            digest.update(repr(thing).encode())
        digest.update(repr((self.lists, self.registers, self.ledger, self.changes)).encode())
        return digest.hexdigest()[:16]
