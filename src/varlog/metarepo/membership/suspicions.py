"""Suspicions: nodes that clients could not use recently (R-FAIL-2).

They are kept in memory only: nothing durable follows from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from varlog.model.ids import NodeID

# Long enough for the manager to check the node and for other clients to learn of it, short enough to expire without harm.
SUSPECTED_S: Final = 5.0


class Suspicions:
    """The nodes that are suspected now. `on_change` is called when a node becomes suspected, and when it no longer is.

    Bounded by the caller, which passes registered nodes only.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._timers: dict[NodeID, asyncio.TimerHandle] = {}

    @property
    def nodes(self) -> tuple[NodeID, ...]:
        return tuple(sorted(self._timers))

    def suspect(self, node: NodeID) -> None:
        """Suspect a node for a while: a client could not use it."""
        known = self._timers.pop(node, None)
        if known is not None:
            known.cancel()
        self._timers[node] = asyncio.get_running_loop().call_later(SUSPECTED_S, self._forget, node)
        if known is None:
            self._on_change()

    def _forget(self, node: NodeID) -> None:
        del self._timers[node]
        self._on_change()

    def clear(self) -> None:
        """Forget everything, without calling `on_change`."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
