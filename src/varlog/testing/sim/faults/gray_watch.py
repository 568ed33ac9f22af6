"""GrayWatch: one node is slow, and topics without it keep their throughput.

Appenders of a fixed pace write to two topics. After a while one node that holds replicas of one topic alone is made slow: its disk,
its process or its links. What each topic had in a window before and in one meanwhile is compared by `GrayStaysLocal`. Or there is
one topic of two streams, and the node has a part of one of them alone: the other one can take all appends, but for those that were
in flight when the node became slow. So the second window begins when these are over.

A disk that is much slower stays so until the manager must have given its streams another primary.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from varlog.model.cluster import ClusterView
from varlog.testing.sim.core.host import Host
from varlog.testing.sim.faults.harm_actions import HarmActions
from varlog.testing.workload import Client
from varlog.verify.history import History, Window

# Virtual seconds: until the streams run, the length of a window, from the beginning of the slowness to the second window, between
# two appends of one appender.
WARM_S, WINDOW_S, SETTLED_S, PACE_S = 1.5, 8.0, 0.5, 0.25
# The same within one topic: what was in flight to the slow stream is answered, or its time is over.
IN_FLIGHT_OVER_S = 3.5
# How much slower a disk must be to lose its primaries for certain, and from the second window's end until it has lost them: it must
# have been slow for ten seconds, and then a seal and two more steps are needed.
LOSES, LOST_S = 100.0, 11.0
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

    async def work(self, harms: HarmActions) -> None:
        """Make one node slow, and write down the windows of the topics or streams without it."""
        await asyncio.sleep(WARM_S + WINDOW_S)
        loop, view = asyncio.get_running_loop(), self._view()
        found = self._pick(view) if view is not None else None
        if view is None or found is None:
            return
        host, others = found
        now, how, slower = loop.time(), self._rng.choice(WAYS), self._rng.choice(SLOWER)
        # A stream beside others gets so few appends while it is slow that its node may not be known to be slow.
        within = any(stream for _, stream in others)
        loses = how == "disk" and slower >= LOSES and not within
        settled_s = IN_FLIGHT_OVER_S if within else SETTLED_S
        harms.slow_down(host, how, slower, settled_s + WINDOW_S + (LOST_S if loses else 0.0))
        await asyncio.sleep(settled_s + WINDOW_S)
        begin, share = now + settled_s, 1 / len(view.streams) if within else 1.0
        self._history.windows += [
            Window(topic, host.name, now - WINDOW_S, now, begin, begin + WINDOW_S, stream, share)
            for topic, stream in others
        ]
        if loses:
            await asyncio.sleep(LOST_S)
            self._note_primaries(host)

    def _note_primaries(self, host: Host) -> None:
        view, slow_s = self._view(), SETTLED_S + WINDOW_S + LOST_S
        if view is not None and not self._history.sequenced:
            self._history.slow_primaries += [
                f"stream {stream.log_stream} has its primary on {host.name}, whose disk has been slow for {slow_s:g} s"
                for stream in view.streams
                if self._nodes[f"sn{stream.primary}"] is host
            ]

    def _pick(self, view: ClusterView) -> tuple[Host, list[tuple[str, int]]] | None:
        """A node with a part of the topics, and the names of those that have nothing on it; or streams of the only one."""
        names = {topic.topic: topic.name for topic in view.topics}
        found: list[tuple[Host, list[tuple[str, int]]]] = []
        for name, host in self._nodes.items():
            here = [one for one in view.streams if name in {f"sn{node}" for node in one.replicas}]
            mine = {one.topic for one in here}
            others = [(names[topic], 0) for topic in names if topic not in mine]
            if len(names) == 1:
                others = [(names[one.topic], one.log_stream) for one in view.streams if one not in here]
            if mine and others and host.up:
                found.append((host, others))
        return self._rng.choice(found) if found else None
