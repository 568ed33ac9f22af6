"""Namespaces: a cuttable network made of one network namespace per process.

A cut is a neighbour with a wrong hardware address: what is sent to it is carried away and reaches nobody, as on a broken cable.
No packet is refused, so a sender learns it from silence alone. It needs root and `ip`, and no filter modules of the kernel.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.process import ServerProcess
from varlog.testing.network.cuttable_network import OUTSIDE

_NOBODY = "02:00:00:00:00:01"
_FIRST_HOST = 10


class NoNamespaces(Exception):
    """This machine, or this user, cannot have them; the message says what was refused."""


class Namespaces:
    """One for each name. Entering makes them, leaving removes them, whatever happened inside."""

    def __init__(self, names: Sequence[str]) -> None:
        pid = os.getpid()
        self._names = list(names)
        self._tag = f"vl{pid}"
        self._bridge = f"{self._tag}b"
        self._subnet = f"10.{128 + pid // 250 % 100}.{pid % 250}"
        self._cuts: list[tuple[str, str]] = []

    def host(self, name: str) -> str:
        number = 1 if name == OUTSIDE else _FIRST_HOST + self._names.index(name)
        return f"{self._subnet}.{number}"

    def prefix(self, name: str) -> tuple[str, ...]:
        """What to put before a command so that it runs there. It keeps its process id."""
        return ("ip", "netns", "exec", self._space(name))

    def cut(self, source: str, target: str) -> None:
        """What `source` sends to `target` does not arrive from now on; the other direction works."""
        self._cuts.append((source, target))
        self._neighbour(source, "replace", self.host(target), "lladdr", _NOBODY, "nud", "permanent")

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        cuts, self._cuts = self._cuts, []
        for source, target in cuts:
            self._neighbour(source, "del", self.host(target))

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.host(OUTSIDE)}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for name in self._names:
                self._make(name)
        except (OSError, subprocess.CalledProcessError) as error:
            self._remove()
            raise NoNamespaces(f"{error}: {getattr(error, 'stderr', '')}".strip()) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self, name: str) -> None:
        space, cable = self._space(name), f"{self._tag}v{self._names.index(name)}"
        _ip("netns", "add", space)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", cable, "master", self._bridge, "up")
        _ip("-n", space, "addr", "add", f"{self.host(name)}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")

    def _remove(self) -> None:
        """Whatever of it is there. A namespace takes its end of the cable with it, and so the cable."""
        for name in self._names:
            _ip("netns", "del", self._space(name), must=False)
            # At once, and not when the kernel comes to it: the next network may have the same names.
            _ip("link", "del", f"{self._tag}v{self._names.index(name)}", must=False)
        _ip("link", "del", self._bridge, must=False)

    def _neighbour(self, source: str, verb: str, host: str, *facts: str) -> None:
        if source == OUTSIDE:
            _ip("neigh", verb, host, *facts, "dev", self._bridge)
        else:
            _ip("-n", self._space(source), "neigh", verb, host, *facts, "dev", "eth0")

    def _space(self, name: str) -> str:
        return f"{self._tag}-{name}"


def _ip(*arguments: str, must: bool = True) -> None:
    try:
        subprocess.run(["ip", *arguments], check=must, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        if must:
            raise


# NamespacedPlan: a cluster whose processes have a network namespace each, so that it can be cut between any two of them.

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
