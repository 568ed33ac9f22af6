"""[A2 R2] PURE. Which streams and replicas to ask, in which order."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from varlog.model.cluster import ClusterView, LogStream, StreamState
from varlog.model.ids import LogStreamID, NodeID, TopicID


def running_streams(view: ClusterView, topic: TopicID) -> tuple[LogStream, ...]:
    """The streams that accept appends, as far as the view knows."""
    return tuple(stream for stream in view.streams_of(topic) if stream.state is StreamState.RUNNING)


def preferred(
    streams: Sequence[LogStream], tried: Container[LogStreamID], doubtful: Callable[[LogStream], bool]
) -> Sequence[LogStream]:
    """The candidates for the next try: streams that were not tried yet, and of these the ones that are not doubtful, if any."""
    untried = [stream for stream in streams if stream.log_stream not in tried] or streams
    return [stream for stream in untried if not doubtful(stream)] or untried


def in_turn(replicas: Sequence[NodeID], turn: int, shunned: Container[NodeID]) -> list[NodeID]:
    """All replicas, starting at `turn`; those that failed recently come last."""
    start = turn % len(replicas) if replicas else 0
    rotated = [*replicas[start:], *replicas[:start]]
    return sorted(rotated, key=lambda node: node in shunned)


def cover(
    view: ClusterView, topic: TopicID, turn: int, shunned: Container[NodeID]
) -> dict[NodeID, list[LogStreamID]] | None:
    """A small set of nodes that together store every stream of the topic, with the streams to ask each for. None: there is none."""
    uncovered = {stream.log_stream: stream for stream in view.streams_of(topic)}
    chosen: dict[NodeID, list[LogStreamID]] = {}
    while uncovered:
        holds: dict[NodeID, list[LogStreamID]] = {}
        for stream in uncovered.values():
            for node in in_turn(stream.replicas, turn, shunned):
                if node not in shunned:
                    holds.setdefault(node, []).append(stream.log_stream)
        if not holds:
            return None
        most = max(holds, key=lambda node: len(holds[node]))
        chosen[most] = holds[most]
        for log_stream in holds[most]:
            del uncovered[log_stream]
    return chosen
