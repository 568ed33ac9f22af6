"""PURE. QueueMachine: the items of a queue in order, and their claims (R-USE-2).

- An item is ready, or claimed once, or gone for good. A take returns the ready item that was put first.
- A claim ends by `done` (the item is gone), by `release`, or by `expire` (it is ready again, in its old place).
- `expire` counts only if it names the claim's last heartbeat: after one renewal in between it has no effect.
- A claim's token is the position of its `take`: of two claims of one item, the later one has the larger token.

There is no clock in here: see lease_rules.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from varlog.model.lsn import GLSN


@dataclass(frozen=True, slots=True)
class Item:
    """`deliveries`: how often it was claimed up to now."""

    number: int
    body: bytes
    deliveries: int = 0


@dataclass(frozen=True, slots=True)
class Claimed:
    """One claim of an item. `heartbeat` is the position of its last heartbeat, `beat` the number of the newest one."""

    number: int
    token: GLSN
    who: str
    ttl_us: int
    heartbeat: GLSN
    beat: int = 0


class Taken(NamedTuple):
    """What a take returned."""

    item: Item
    token: GLSN


class QueueMachine:
    """One queue. Deterministic: every replica that applied the same commands is the same."""

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        self._ready: list[int] = []  # a heap of numbers
        self._claims: dict[GLSN, Claimed] = {}
        self._next = 1

    # --- Reading --------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """How many could be taken."""
        return len(self._ready)

    @property
    def claimed(self) -> int:
        """How many are claimed."""
        return len(self._claims)

    def claims(self) -> Sequence[Claimed]:
        """In the order in which they were made."""
        return list(self._claims.values())

    def claim(self, token: GLSN) -> Claimed | None:
        return self._claims.get(token)

    # --- Changing -------------------------------------------------------------------------------------------------------

    def put(self, bodies: Iterable[bytes]) -> list[int]:
        """The numbers of the items, which follow each other."""
        numbers = []
        for body in bodies:
            number = self._next
            self._next += 1
            self._items[number] = Item(number, body)
            heapq.heappush(self._ready, number)
            numbers.append(number)
        return numbers

    def take(self, at: GLSN, who: str, ttl_us: int) -> Taken | None:
        """None: nothing is ready."""
        if not self._ready:
            return None
        number = heapq.heappop(self._ready)
        item = self._items[number]
        self._items[number] = item = replace(item, deliveries=item.deliveries + 1)
        self._claims[at] = Claimed(number, at, who, ttl_us, at)
        return Taken(item, at)

    def renew(self, at: GLSN, token: GLSN, beat: int) -> bool:
        """False: the claim has ended."""
        known = self._claims.get(token)
        if known is None:
            return False
        # A late heartbeat counts too: others count from where they saw it. The number never falls: it stands for when it was sent.
        self._claims[token] = replace(known, heartbeat=at, beat=max(known.beat, beat))
        return True

    def done(self, token: GLSN) -> bool:
        """The item is gone for good. False: the claim has ended before, and another claim may have the item."""
        known = self._claims.pop(token, None)
        if known is None:
            return False
        del self._items[known.number]
        return True

    def release(self, token: GLSN) -> bool:
        """The item is ready again. False: the claim has ended before."""
        known = self._claims.pop(token, None)
        if known is None:
            return False
        heapq.heappush(self._ready, known.number)
        return True

    def expire(self, token: GLSN, heartbeat: GLSN) -> bool:
        """As release, if there was no newer heartbeat of it."""
        known = self._claims.get(token)
        return known is not None and known.heartbeat == heartbeat and self.release(token)

    # --- All of it ------------------------------------------------------------------------------------------------------

    @property
    def next(self) -> int:
        """The number of the next item to be put."""
        return self._next

    def items(self) -> Iterator[Item]:
        """All that are not done with, in order."""
        return (self._items[number] for number in sorted(self._items))

    def begin_from(self, next: int, items: Iterable[Item], claims: Iterable[Claimed]) -> None:
        """Be a queue with these."""
        self._next = next
        self._items = {item.number: item for item in items}
        self._claims = {claim.token: claim for claim in claims}
        claimed = {claim.number for claim in self._claims.values()}
        self._ready = [number for number in sorted(self._items) if number not in claimed]
