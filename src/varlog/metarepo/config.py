"""MetadataRepositoryConfig: the settings of one metadata repository."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from varlog.model.ids import ClusterID

# How long, in seconds, a new term waits for an unreachable node before it assigns positions: the node may know more.
WITNESS_GRACE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class MetadataRepositoryConfig:
    """`advertise` "": others reach it at the address where it listens. An unreachable node is dialled every `node_retry_s`.

    `leases_survive_restart`: a process that got a lease before this start may still rely on it. False only if all such
    processes live and die with this one. When a term begins, no positions are assigned for `witness_grace_s` unless every
    node has reported: an unreachable one may know more.
    """

    cluster: ClusterID
    listen: str
    advertise: str = ""
    node_retry_s: float = 0.2
    leases_survive_restart: bool = True
    witness_grace_s: float = WITNESS_GRACE_S
