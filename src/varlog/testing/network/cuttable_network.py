"""CuttableNetwork: a network in which one direction of a pair can be cut."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Protocol

# Where all the clients of a cluster are.
CLIENTS = "clients"
# Where all others are: the test itself, and the client that reads back at the end.
OUTSIDE = "outside"


class CuttableNetwork(Protocol):
    """Places are named as the processes that are in them."""

    def cut(self, source: str, target: str) -> None:
        """What `source` sends to `target` does not arrive from now on; the other direction works."""

    def cut_both(self, one: str, other: str) -> None: ...

    def heal(self) -> None:
        """Everybody reaches everybody again."""


def server_places(nodes: int) -> list[str]:
    """Where the servers of a cluster with this number of storage nodes are, in the order of its ports; the sequencer comes last."""
    return ["vmr", "vmc", *(f"vsn-{number}" for number in range(1, nodes + 1)), "vseq"]


def places(nodes: int) -> list[str]:
    """The places that a cluster with this number of storage nodes and its clients need."""
    return [*server_places(nodes), CLIENTS]


# CutWays: which ways between two places are cut, and what becomes there of what is sent.


class Loss(Enum):
    """What a cut does to connections. A kernel that is never acknowledged gives up at some time between the first and the last."""

    # Kept, and delivered after the heal, however late: requests of another time arrive.
    HELD = "held"
    # Gone. Nobody learns it before the heal, which breaks the connection: a stream with a gap is none.
    SWALLOWED = "swallowed"
    # What is open is broken at once, for both; what is opened meanwhile hangs until the heal.
    BROKEN = "broken"


class CutWays:
    """From a place to a place, in one event loop. A way that was never cut is open."""

    def __init__(self) -> None:
        self._cut: dict[tuple[str, str], Loss] = {}
        self._healed = asyncio.Event()

    def cut(self, source: str, target: str, loss: Loss) -> None:
        self._cut[source, target] = loss

    def heal(self) -> None:
        """All of them; waiting tasks continue."""
        self._cut.clear()
        self._healed.set()
        self._healed = asyncio.Event()

    def swallows(self, source: str, target: str) -> bool:
        return self._cut.get((source, target)) is Loss.SWALLOWED

    async def wait_open(self, source: str, target: str) -> None:
        while (source, target) in self._cut:
            await self._healed.wait()
