"""ClusterPlan: which processes a cluster on this machine has, where they listen and where their data is."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

from varlog.cli.process import ServerProcess
from varlog.model.errors import StartError

HOST = "127.0.0.1"
CLUSTER_FILE = "cluster.json"
FIRST_NODE_OFFSET = 10
_FREE_PORTS = range(12_000, 32_000)


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a data directory remembers, so that a second start restores the same cluster."""

    cluster: int
    nodes: int
    format: int = 1


@dataclass(frozen=True)
class ClusterPlan:
    """`ports` are those of the repository, the manager, and the nodes in order."""

    data: Path
    ports: tuple[int, ...]
    replicas: int
    streams: int
    cluster: int = 1
    heartbeat_s: float = 0.5
    auto_create_topics: bool = True

    @property
    def nodes(self) -> int:
        return len(self.ports) - 2

    @property
    def repository(self) -> str:
        return f"{HOST}:{self.ports[0]}"

    @property
    def manager(self) -> str:
        return f"{HOST}:{self.ports[1]}"

    @property
    def node_addresses(self) -> tuple[str, ...]:
        return tuple(f"{HOST}:{port}" for port in self.ports[2:])

    def prepare(self) -> None:
        """Make the directories; refuse a directory that was made for more nodes than this plan has."""
        (self.data / "logs").mkdir(parents=True, exist_ok=True)
        (self.data / "vmr").mkdir(exist_ok=True)
        path = self.data / CLUSTER_FILE
        try:
            known = msgspec.json.decode(path.read_bytes(), type=ClusterFile)
        except FileNotFoundError:
            known = ClusterFile(self.cluster, 0)
        except msgspec.DecodeError as error:
            raise StartError(
                f"{path} does not describe a varlog cluster ({error}): choose another --data"
            ) from None
        if known.nodes > self.nodes:
            raise StartError(
                f"{self.data} holds a cluster of {known.nodes} storage nodes: start it with --nodes {known.nodes} or more"
            )
        for number in range(1, self.nodes + 1):
            (self.data / f"vsn-{number}").mkdir(exist_ok=True)
        path.write_bytes(msgspec.json.encode(ClusterFile(self.cluster, self.nodes)) + b"\n")

    def check_ports(self) -> None:
        """Refuse before anything is started if one of the ports is taken."""
        for port in self.ports:
            with socket.socket() as probe:
                # As a server would: a port that only waits for old packets to die is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except (OSError, OverflowError) as error:
                    raise StartError(
                        f"port {port} cannot be had ({getattr(error, 'strerror', None) or error}): another cluster may "
                        "be running; stop it, or choose other ports with --port"
                    ) from None

    def processes(self) -> list[ServerProcess]:
        """In the order in which they start: repository, nodes, manager."""
        cluster = f"--cluster-id={self.cluster}"
        vmr = [
            "vmr",
            "start",
            cluster,
            f"--store={self.data / 'vmr' / 'metadata.db'}",
            f"--listen={self.repository}",
        ]
        vmc = [
            *("vmc", "start", cluster, f"--repository={self.repository}", f"--listen={self.manager}"),
            *(f"--nodes={address}" for address in self.node_addresses),
            *(f"--replicas={self.replicas}", f"--streams={self.streams}", f"--heartbeat={self.heartbeat_s}"),
            *(["--auto-create-topics"] if self.auto_create_topics else []),
        ]
        nodes = [
            self._process(
                f"vsn-{number}",
                *("vsn", "start", cluster, f"--storage-node-id={number}", f"--listen={address}"),
                f"--volumes={self.data / f'vsn-{number}'}",
            )
            for number, address in enumerate(self.node_addresses, 1)
        ]
        return [self._process("vmr", *vmr), *nodes, self._process("vmc", *vmc)]

    def _process(self, name: str, *arguments: str) -> ServerProcess:
        return ServerProcess(name, arguments, self.data / "logs" / f"{name}.log")


def ports_from(first: int, nodes: int) -> tuple[int, ...]:
    """7100, 7101, 7110, 7111 …: repository, manager, nodes."""
    return (first, first + 1, *(first + FIRST_NODE_OFFSET + number for number in range(nodes)))


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that nobody listens at now, below those that the kernel gives to outgoing connections: a process
    that is
    restarted finds its own free again."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(_FREE_PORTS.start, _FREE_PORTS.stop)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return tuple(found)
