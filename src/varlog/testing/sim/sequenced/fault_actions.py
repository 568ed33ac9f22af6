"""SequencedFaultActions: faults aimed at sequencers, leases and clients' views."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from varlog.model.cluster import ClusterView
from varlog.model.limits import LEASE_S
from varlog.testing.sim.core.host import Host
from varlog.testing.sim.core.network import SimNetwork

# Who holds leases.
LEASED = {"sn": 2, "sq": 1}
# What is sent meanwhile arrives behind it.
CUT_S_MAX = 8 * LEASE_S
SEQUENCERS = {"sq": 1}


class SequencedFaultActions:
    """Cuts between some hosts and others that end by themselves, or when everybody is reunited."""

    def __init__(
        self,
        rng: random.Random,
        network: SimNetwork,
        hosts: Sequence[Host],
        pause: Callable[[Host], None],
        stop: Callable[[Host], None],
        trace: Callable[[str], None],
        view: Callable[[], ClusterView | None],
    ) -> None:
        self._view = view
        self._rng = rng
        self._network = network
        self._hosts = list(hosts)
        self._pause = pause
        self._stop = stop
        self._trace = trace

    def lose_sequencer(self, host: Host) -> None:
        """In one of the ways in which it can be lost. One that comes back has counted nothing: it is another one."""
        how = self._rng.choice(("crash", "crash", "pause", "stop", "cut"))
        if how == "crash":
            host.crash()
        elif how == "pause":
            self._pause(host)
        elif how == "stop":
            self._stop(host)
        else:
            self._part([host.name], self._names(lambda other: other is not host), self._lease_or_more_s())

    def cut_island(self, host: Host) -> None:
        """Some clients stay with this node or sequencer, maybe with one more, and none of them reaches the others: what they
        read there must not be older than what the others know."""
        # A reader needs a node and a sequencer: both replies must be old for it to believe them. Others must continue.
        island = self._serving() or [host.name]
        clients = self._names(lambda other: _class(other) == "c")
        if clients:
            island += self._rng.sample(clients, self._rng.randint(1, max(1, len(clients) - 1)))
        rest = self._names(lambda other: other.name not in island)
        for_s = self._lease_or_more_s()
        self._trace(f"an island for {for_s:.3f} s: {', '.join(island)}")
        self._part(island, rest, for_s)

    def _serving(self) -> list[str]:
        """The sequencer of a topic, or a node that serves it, mostly a tail, or both; nobody while there is none."""
        view = self._view()
        if view is None or not view.projections:
            return []
        projection = self._rng.choice(view.projections)
        chain = self._rng.choice(projection.chains)
        node = view.node(chain.tail if self._rng.random() < 0.7 else self._rng.choice(chain.nodes))
        addresses = [
            projection.sequencer.address if projection.sequencer else "",
            node.address if node else "",
        ]
        kept = self._rng.choice((addresses, addresses[:1], addresses[1:]))
        return [address.partition(":")[0] for address in kept if address]

    def cut_lease(self, host: Host) -> None:
        for_s = self._lease_or_more_s()
        self._trace(f"no repository reaches {host.name} for {for_s:.3f} s")
        self._part([host.name], self._names(lambda other: _class(other) == "mr"), for_s)

    def cut_client(self, host: Host) -> None:
        clients = self._names(lambda other: _class(other) == "c")
        if clients:
            client, for_s = self._rng.choice(clients), self._rng.choice((0.7, 2.0, 4.0)) * self._rng.random()
            self._trace(f"{client} does not reach {host.name} for {for_s:.3f} s")
            self._part([client], [host.name], for_s)

    def _lease_or_more_s(self) -> float:
        return self._rng.choice((LEASE_S, 3 * LEASE_S, CUT_S_MAX)) * self._rng.uniform(0.3, 1.0)

    def _names(self, wanted: Callable[[Host], bool]) -> list[str]:
        return [host.name for host in self._hosts if wanted(host)]

    def _part(self, ones: Sequence[str], others: Sequence[str], for_s: float) -> None:
        """Nothing passes between them; mostly what was sent is lost, too, as connections that are cut for long do not last."""
        until = asyncio.get_running_loop().time() + for_s
        lost = self._rng.random() < 0.3
        for one in ones:
            for other in others:
                if lost:
                    self._network.lose(one, other, until)
                else:
                    self._network.cut_off(one, other, until)


def _class(host: Host) -> str:
    return host.name[:1] if host.name[0] == "c" else host.name[:2]
