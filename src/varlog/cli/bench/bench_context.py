"""BenchContext: everything a workload is handed: settings, display, a fresh topic on the log under test, a directory."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from varlog.cli.bench.bench_target import BenchTarget, embedded
from varlog.cli.bench.progress import Display
from varlog.cli.bench.settings import Settings
from varlog.model.cluster import Ordering

if TYPE_CHECKING:
    from varlog.client.log import Log


@dataclass(frozen=True, slots=True)
class BenchContext:
    """One workload's own: no other workload has used its topic or its directory."""

    settings: Settings
    display: Display
    directory: Path
    topic: str
    ground: BenchTarget | None = None
    # What is more than a figure: values by name, as many of each; for plots.
    series: dict[str, list[float]] = field(default_factory=dict)

    def log(self) -> AbstractAsyncContextManager[Log]:
        """The topic, on the cluster or embedded, as the settings say."""
        return self._ground.log(self.topic, self.settings.ordering)

    def ordered_log(self, ordering: Ordering, replicas: int) -> AbstractAsyncContextManager[Log]:
        """One of several topics of a workload: of this ordering, with so many replicas."""
        return self._ground.log(f"{self.topic}-{ordering}", ordering, replicas)

    def embedded_log(self, *, synced: bool) -> AbstractAsyncContextManager[Log]:
        """A log in this process, whatever the settings say."""
        ordering = self.settings.ordering
        return embedded(self.directory / "embedded", self.topic, ordering, synced=synced)

    @property
    def address(self) -> str:
        return self._ground.address

    def processes(self) -> dict[str, int]:
        """Process ids by name: vmr, vmc, vsn-1 … of the cluster that this run has started."""
        return self._ground.processes()

    @property
    def _ground(self) -> BenchTarget:
        if self.ground is None:
            raise ValueError("this workload needs no log, and was handed none")
        return self.ground
