"""ManagerConfig: what a manager is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from varlog.model.ids import ClusterID


@dataclass(frozen=True)
class ManagerConfig:
    """`nodes` are addresses that the manager registers when it starts; `replicas` and `streams` are a new
    topic's defaults.

    A node is not alive while it refuses connections, or leaves a question unanswered for `node_timeout_s`: with the defaults one
    that hangs is found within a second. One that stays away for `replace_after_s` is replaced where another has room. A replica
    that is registered nowhere is removed after `zombie_grace_s`. A node whose disk has been slow for `slow_after_s` loses its
    primaries.
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
    node_timeout_s: float = 0.5
    replace_after_s: float = 30.0
    zombie_grace_s: float = 60.0
    slow_after_s: float = 10.0
