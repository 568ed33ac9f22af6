"""SequencerConfig: what a sequencer is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from varlog.model.ids import ClusterID


@dataclass(frozen=True, slots=True)
class SequencerConfig:
    """`repository`: where the metadata repository listens, or several of them. `advertise` "": others reach it where it listens."""

    cluster: ClusterID
    repository: str
    listen: str
    advertise: str = ""
