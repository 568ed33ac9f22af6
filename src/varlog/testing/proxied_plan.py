"""ProxiedPlan: a cluster on this machine whose processes reach each other, and are reached, through proxies alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from varlog.cli.cluster_plan import ClusterPlan
from varlog.cli.ports import HOST, free_ports
from varlog.cli.process import ServerProcess
from varlog.testing.cuttable_network import server_places


@dataclass(frozen=True)
class ProxiedPlan(ClusterPlan):
    """`ports`, where the processes listen, are known to the proxies alone; `fronts`, in the same order, are advertised. The
    sequencer's come last."""

    fronts: tuple[int, ...] = ()

    @property
    def repositories(self) -> tuple[str, ...]:
        return (self.front("vmr"),)

    @property
    def manager(self) -> str:
        return self.front("vmc")

    @property
    def node_addresses(self) -> tuple[str, ...]:
        return tuple(map(self.front, self.places[2:-1]))

    @property
    def sequencer(self) -> str:
        return self.front("vseq")

    @property
    def places(self) -> list[str]:
        return server_places(self.nodes)

    def front(self, place: str) -> str:
        return f"{HOST}:{self.fronts[self.places.index(place)]}"

    def behind(self, place: str) -> str:
        return f"{HOST}:{(*self.ports, self.sequencer_port)[self.places.index(place)]}"

    def _process(self, name: str, *arguments: str) -> ServerProcess:
        front = self.front(name)
        listen = (f"--listen={self.behind(name)}", f"--advertise={front}")
        others = [argument for argument in arguments if argument != f"--listen={front}"]
        return super()._process(name, *others, *listen)


def proxied_plan(directory: Path, *, nodes: int, replicas: int, streams: int = 2) -> ProxiedPlan:
    ports = free_ports(2 * (nodes + 3))
    return ProxiedPlan(
        directory,
        ports[: nodes + 2],
        replicas=replicas,
        streams=streams,
        heartbeat_s=0.1,
        fronts=ports[nodes + 3 :],
        sequencer_port=ports[nodes + 2],
    )
