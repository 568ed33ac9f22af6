"""Settings: the options of a benchmark run, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from varlog.model.cluster import Ordering


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """`None` for entry_bytes, appenders and batch: each workload uses the values that its target is stated for."""

    data: Path
    nodes: int = 3
    replicas: int = 3
    streams: int = 1
    seconds: float = 5.0
    warm_up_s: float = 1.0
    entry_bytes: int | None = None
    appenders: int | None = None
    batch: int | None = None
    cluster: str = ""
    embedded: bool = False
    quick: bool = False
    # Of every topic that a workload does not choose an ordering for.
    ordering: Ordering = Ordering.COMMITTED

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= self.nodes:
            raise ValueError(
                f"--replicas must be between 1 and --nodes: {self.replicas} replicas need {self.replicas} nodes, "
                f"not {self.nodes}"
            )
        if self.streams < 1:
            raise ValueError(f"--streams must be at least 1, not {self.streams}")
        if self.seconds <= 0:
            raise ValueError(f"--seconds must be above 0, not {self.seconds:g}")
        for option, value in (
            ("--entry-bytes", self.entry_bytes),
            ("--appenders", self.appenders),
            ("--batch", self.batch),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{option} must be at least 1, not {value}")
        if self.cluster and self.embedded:
            raise ValueError("--cluster and --embedded exclude each other: measure one of them")

    @property
    def own_load(self) -> bool:
        """True where the options change a workload: then its target does not apply."""
        return not (self.entry_bytes is None and self.appenders is None and self.batch is None)

    @property
    def where(self) -> str:
        """What is measured, for the report."""
        if self.embedded:
            return f"embedded in this process, one replica{self._ordering_text}"
        if self.cluster:
            return f"the running cluster at {self.cluster}"
        return (
            f"{self.nodes} storage nodes, one metadata repository, one sequencer, one manager, one client, each a process of "
            f"this machine; {self.replicas} replicas, {self.streams} log stream{'s' if self.streams > 1 else ''} per topic"
            f"{self._ordering_text}"
        )

    @property
    def _ordering_text(self) -> str:
        return ", sequenced ordering" if self.ordering is Ordering.SEQUENCED else ""
