"""ManagerConfig: what a manager is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from varlog.model.ids import ClusterID


@dataclass(frozen=True)
class ManagerConfig:
    """`nodes` are addresses that the manager registers when it starts; `replicas` and `streams` are a new
    topic's defaults.

    A node is not alive while it refuses connections, or leaves a question unanswered for `node_timeout_s`.
    """

    cluster: ClusterID
    repository: str
    listen: str
    advertise: str = ""
    nodes: tuple[str, ...] = ()
    replicas: int = 3
    streams: int = 1
    heartbeat_s: float = 0.5
    auto_create_topics: bool = False
    node_timeout_s: float = 2.0
