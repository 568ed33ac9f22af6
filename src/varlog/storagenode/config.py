"""StorageNodeConfig: the configuration of a storage node (R-SN-1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from varlog.model.ids import ClusterID, NodeID
from varlog.model.limits import DISK_RESERVE_BYTES, SCRUB_BYTES_PER_S, SEGMENT_BYTES, STREAMS_PER_NODE_MAX


@dataclass(frozen=True, slots=True)
class StorageNodeConfig:
    """`node` None: the id found on the volumes, or a new random one, which is persisted. `advertise` "": where it listens.
    `disk_reserve_bytes`: what appends leave free on each volume, so that the node can still be administered when it is full.
    `scrub_bytes_per_s` 0: no scrub; otherwise one pass over everything, at most every `scrub_interval_s`."""

    cluster: ClusterID
    node: NodeID | None
    volumes: tuple[Path, ...]
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    cluster_key: str = ""
    error_if_exists: bool = False
    segment_bytes: int = SEGMENT_BYTES
    rows_sync_delay_s: float = 0.2
    streams_max: int = STREAMS_PER_NODE_MAX
    scrub_bytes_per_s: int = SCRUB_BYTES_PER_S
    scrub_interval_s: float = 86_400.0
    disk_reserve_bytes: int = DISK_RESERVE_BYTES
