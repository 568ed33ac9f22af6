"""MetadataRepositoryConfig: what one metadata repository is started with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from varlog.model.ids import ClusterID

# Seconds that positions wait, as a term begins, for a node that cannot be reached and may know more.
WITNESS_GRACE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class MetadataRepositoryConfig:
    """`advertise` "": others reach it where it listens. A node that cannot be reached is dialled every `node_retry_s`.

    `leases_survive_restart`: a process that got a lease before this start may still rely on it. False only if all of
    them live and die with this process. As a term begins, positions wait `witness_grace_s` for the report of a node
    that cannot be reached.
    """

    cluster: ClusterID
    listen: str
    advertise: str = ""
    node_retry_s: float = 0.2
    leases_survive_restart: bool = True
    witness_grace_s: float = WITNESS_GRACE_S
