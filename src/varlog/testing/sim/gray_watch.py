"""Gray watch: one node is slow, and topics that have nothing on it must keep their throughput.

Appenders of a fixed pace write to two topics. After a while one node that holds replicas of one topic alone is made slow: its disk,
its process or its links. What each topic had in a window before and in one meanwhile is compared by `GrayStaysLocal`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from varlog.model.cluster import ClusterView
from varlog.testing.history import History, Window
from varlog.testing.sim.harm_menu import HarmMenu
from varlog.testing.sim.host import Host
from varlog.testing.workload import Client

# Virtual seconds: until the streams run, the length of a window, from the beginning of the slowness to the second window, between
# two appends of one appender.
WARM_S, WINDOW_S, SETTLED_S, PACE_S = 1.5, 8.0, 0.5, 0.25
# Appenders of each client.
APPENDERS = 6
WAYS = ("disk", "process", "link")
SLOWER = (10.0, 30.0, 100.0)


class GrayWatch:
    """`view` is what the leading repository knows."""

    def __init__(
        self,
        rng: random.Random,
        nodes: Sequence[Host],
        view: Callable[[], ClusterView | None],
        history: History,
    ) -> None:
        self._rng = rng
        self._nodes = {f"sn{number}": host for number, host in enumerate(nodes, 1)}
        self._view = view
        self._history = history

    async def append(self, client: Client, stopping: Callable[[], bool]) -> None:
        """One append after the other, at a fixed pace: what chance does to the pace would hide what the slow node does."""
        while not stopping():
            _ = await client.append()
            await asyncio.sleep(PACE_S)

    async def work(self, harms: HarmMenu) -> None:
        """Make one node slow, and write down the windows of the topics without it."""
        await asyncio.sleep(WARM_S + WINDOW_S)
        loop, view = asyncio.get_running_loop(), self._view()
        found = self._pick(view) if view is not None else None
        if found is None:
            return
        host, others = found
        now = loop.time()
        harms.slow_down(host, self._rng.choice(WAYS), self._rng.choice(SLOWER), SETTLED_S + WINDOW_S)
        await asyncio.sleep(SETTLED_S + WINDOW_S)
        begin = now + SETTLED_S
        self._history.windows += [
            Window(topic, host.name, now - WINDOW_S, now, begin, begin + WINDOW_S) for topic in others
        ]

    def _pick(self, view: ClusterView) -> tuple[Host, list[str]] | None:
        """A node with a part of the topics, and the names of those that have nothing on it."""
        names = {topic.topic: topic.name for topic in view.topics}
        found: list[tuple[Host, list[str]]] = []
        for name, host in self._nodes.items():
            mine = {one.topic for one in view.streams if name in {f"sn{node}" for node in one.replicas}}
            others = [names[topic] for topic in names if topic not in mine]
            if mine and others and host.up:
                found.append((host, others))
        return self._rng.choice(found) if found else None
