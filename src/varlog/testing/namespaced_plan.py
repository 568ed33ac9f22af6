"""NamespacedPlan: a cluster whose processes have a network namespace each, so that it can be cut between any two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from varlog.cli.cluster_plan import ClusterPlan
from varlog.cli.process import ServerProcess
from varlog.testing.namespaces import Namespaces

_PORT = 7100


@dataclass(frozen=True)
class NamespacedPlan(ClusterPlan):
    """Each process listens at its own address; the ports are all the same."""

    network: Namespaces | None = None

    @property
    def repositories(self) -> tuple[str, ...]:
        return (self._address("vmr"),)

    @property
    def manager(self) -> str:
        return self._address("vmc")

    @property
    def sequencer(self) -> str:
        return self._address("vseq")

    @property
    def node_addresses(self) -> tuple[str, ...]:
        return tuple(self._address(f"vsn-{number}") for number in range(1, self.nodes + 1))

    def check_ports(self) -> None:
        """Nobody else is in a namespace that was just made."""

    def _process(self, name: str, *arguments: str) -> ServerProcess:
        log = self.data / "logs" / f"{name}.log"
        return ServerProcess(name, arguments, log, prefix=self._network.prefix(name))

    def _address(self, name: str) -> str:
        return f"{self._network.host(name)}:{_PORT}"

    @property
    def _network(self) -> Namespaces:
        if self.network is None:
            raise ValueError("a namespaced plan needs its namespaces")
        return self.network


def namespaced_plan(
    directory: Path, network: Namespaces, *, nodes: int, replicas: int, streams: int = 2
) -> NamespacedPlan:
    ports: Sequence[int] = [_PORT] * (nodes + 2)
    return NamespacedPlan(
        directory, tuple(ports), replicas=replicas, streams=streams, heartbeat_s=0.1, network=network
    )
