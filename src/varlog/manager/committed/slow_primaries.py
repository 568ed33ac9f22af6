"""PURE. SlowPrimaries: which streams get another primary due to a slow disk.

A node loses its primaries when it has been slow, compared with the others, without a break for `slow_after_s`, and another replica
of the stream is on a node that is not slow. Too few finished writes are no break: that is how a hanging write looks. The move
costs a seal, so it is made at most once per stream and PAUSE_S: whatever the disks do, a stream does not flap. Nothing moves back:
which of two healthy nodes has a primary makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from varlog.model.cluster import LogStream, StreamState
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.traffic import slow_nodes

# How long a move stays wanted: a seal, new replicas and an unseal take less.
WANTED_S: Final = 15.0
# Between two moves of one stream.
PAUSE_S: Final = 120.0


class SlowPrimaries:
    """Times are passed in, and only grow. In memory: another manager starts without them, and moves `slow_after_s` later."""

    def __init__(self, slow_after_s: float) -> None:
        self._slow_after_s = slow_after_s
        # Since when nodes have been slow, without a break, and when they were last seen to be.
        self._since: dict[NodeID, tuple[float, float]] = {}
        # How long a write takes on each living node.
        self._write_s: Mapping[NodeID, float] = {}
        # The newest move of each stream: to which node, and when it was begun.
        self._moves: dict[LogStreamID, tuple[NodeID, float]] = {}

    def update(self, write_s: Mapping[NodeID, float], now: float) -> None:
        """Record the time of a write on each node that answers; 0: too few to measure."""
        self._write_s = write_s
        slow = {node: (self._since.get(node, (now, now))[0], now) for node in slow_nodes(write_s)}
        silent = {
            node: (since, seen)
            for node, (since, seen) in self._since.items()
            if not write_s.get(node, 1.0) and now - seen < self._slow_after_s
        }
        self._since = silent | slow
        self._moves = {stream: move for stream, move in self._moves.items() if now - move[1] < PAUSE_S}

    def primary_for(self, stream: LogStream, now: float) -> NodeID | None:
        """The node that is to be the primary; None: the one that is."""
        move = self._moves.get(stream.log_stream)
        if move is not None:
            node, begun = move
            return node if now - begun < WANTED_S and node in stream.replicas else None
        if stream.state is not StreamState.RUNNING or not self._is_slow(stream.primary, now):
            return None
        sound = [
            node for node in stream.replicas if self._write_s.get(node, 0.0) > 0 and node not in self._since
        ]
        if not sound:
            return None
        self._moves[stream.log_stream] = (sound[0], now)
        return sound[0]

    def _is_slow(self, node: NodeID, now: float) -> bool:
        since, seen = self._since.get(node, (now, now))
        return now == seen and now - since >= self._slow_after_s
