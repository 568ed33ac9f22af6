"""ManagerConfig: the options of a manager."""

from __future__ import annotations

from dataclasses import dataclass

from varlog.model.ids import ClusterID


@dataclass(frozen=True)
class ManagerConfig:
    """`nodes`: addresses that the manager registers when it starts. `replicas`, `streams`: the defaults of a new topic.

    A node counts as unreachable while it refuses connections, or does not answer within `node_timeout_s`: with the
    defaults a node that hangs is detected within a second. A node that stays unreachable for `replace_after_s` is
    replaced if another has room. An unregistered replica is removed after `zombie_grace_s`. A node whose disk has been
    slow for `slow_after_s` loses its primaries.
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
