"""Cluster plans whose servers close segments early and check files constantly.

python -m varlog.testing.harms.small_segments vsn start …
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

from varlog.cli import serve
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.process import ServerProcess
from varlog.metarepo.store import sqlite
from varlog.model.limits import KIB, MIB
from varlog.storagenode import config

SEGMENT_BYTES = 8 * KIB
SCRUB_BYTES_PER_S = 4 * MIB
SCRUB_INTERVAL_S = 0.5


@dataclass(frozen=True)
class SmallSegmentsPlan(ClusterPlan):
    """A cluster that has every kind of file after a few hundred entries."""

    def _process(self, name: str, *arguments: str) -> ServerProcess:
        log = self.data / "logs" / f"{name}.log"
        return ServerProcess(name, arguments, log, module="varlog.testing.harms.small_segments")


@dataclass(frozen=True)
class MirroredPlan(SmallSegmentsPlan):
    """The same, with a second copy of the repository's journal in the directory `mirror`."""

    def _process(self, name: str, *arguments: str) -> ServerProcess:
        if name == "vmr":
            mirror = self.data / "mirror"
            mirror.mkdir(parents=True, exist_ok=True)
            arguments = (*arguments, f"--journal-mirror={mirror}")
        return super()._process(name, *arguments)


if __name__ == "__main__":
    small = partial(
        config.StorageNodeConfig,
        segment_bytes=SEGMENT_BYTES,
        scrub_bytes_per_s=SCRUB_BYTES_PER_S,
        scrub_interval_s=SCRUB_INTERVAL_S,
    )

    def small_config(**given: object) -> config.StorageNodeConfig:
        """What the command line says of segments and scrub does not count."""
        return small(**{name: value for name, value in given.items() if name not in small.keywords})  # type: ignore[arg-type]

    config.StorageNodeConfig = small_config  # type: ignore[assignment, misc]
    sqlite.NAMES_S = SCRUB_INTERVAL_S  # type: ignore[misc]
    getattr(serve, f"run_{sys.argv.pop(1)}")()
