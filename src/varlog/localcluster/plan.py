"""ClusterPlan: the processes of a local cluster, their ports and data directories."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from varlog.localcluster.etcd import EtcdPlan
from varlog.localcluster.ports import HOST, free_ports
from varlog.localcluster.process import ServerProcess
from varlog.model.errors import StartupError
from varlog.runtime.disk import OsDisk

CLUSTER_FILE = "cluster.json"
# The files and directories that `varlog up` creates.
OURS = r"cluster\.json.*|up\.lock|logs|etcd|vmr|vsn-[0-9]+"
FIRST_NODE_OFFSET = 10
PROXY_OFFSET = 80
# A replicated cluster survives the loss of one repository and of one etcd member.
REPOSITORIES, ETCD_MEMBERS = 3, 3
REPLICATED_PORTS = REPOSITORIES - 1 + 2 * ETCD_MEMBERS


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored in the data directory, so that a second start runs the same cluster."""

    cluster: int
    nodes: int
    format: int = 1
    replicated: bool = False


@dataclass(frozen=True)
class ClusterPlan:
    """`ports`: repository, manager, then the nodes. `replicated_ports`, if any: the other repositories, then the client ports and
    the peer ports of the etcd members. The sequencer stores nothing: it may have any port that stays the same over restarts.
    `proxy_port` None: without a proxy."""

    data: Path
    ports: tuple[int, ...]
    replicas: int
    streams: int
    cluster: int = 1
    heartbeat_s: float = 0.5
    auto_create_topics: bool = True
    replicated_ports: tuple[int, ...] = ()
    lease_s: int = 3
    replace_after_s: float = 30.0
    zombie_grace_s: float = 60.0
    sequencer_port: int = field(default_factory=lambda: free_ports(1)[0])
    proxy_port: int | None = None

    @property
    def nodes(self) -> int:
        return len(self.ports) - 2

    @property
    def replicated(self) -> bool:
        return bool(self.replicated_ports)

    @property
    def repository(self) -> str:
        """The addresses of the metadata repositories, separated by commas."""
        return ",".join(self.repositories)

    @property
    def repositories(self) -> tuple[str, ...]:
        return tuple(f"{HOST}:{port}" for port in (self.ports[0], *self.replicated_ports[: REPOSITORIES - 1]))

    @property
    def etcd(self) -> EtcdPlan:
        """The store of a replicated cluster's repositories."""
        ports = self.replicated_ports[REPOSITORIES - 1 :]
        logs = self.data / "logs"
        return EtcdPlan(self.data / "etcd", ports[:ETCD_MEMBERS], ports[ETCD_MEMBERS:], logs)

    @property
    def manager(self) -> str:
        return f"{HOST}:{self.ports[1]}"

    @property
    def sequencer(self) -> str:
        return f"{HOST}:{self.sequencer_port}"

    @property
    def proxy(self) -> str:
        """The address of the proxy; empty if there is none."""
        return "" if self.proxy_port is None else f"{HOST}:{self.proxy_port}"

    @property
    def node_addresses(self) -> tuple[str, ...]:
        return tuple(f"{HOST}:{port}" for port in self.ports[2:])

    def prepare(self) -> None:
        """Create the directories; refuse a directory of another kind of cluster, or of one with more nodes."""
        disk = OsDisk()
        disk.make_directory(self.data / "logs")
        disk.make_directory(self.data / ("etcd" if self.replicated else "vmr"))
        path = self.data / CLUSTER_FILE
        try:
            known = msgspec.json.decode(path.read_bytes(), type=ClusterFile)
        except FileNotFoundError:
            known = ClusterFile(self.cluster, 0, replicated=self.replicated)
        except msgspec.DecodeError as error:
            raise StartupError(
                f"{path} does not describe a varlog cluster ({error}): choose another --data"
            ) from None
        if known.nodes > self.nodes:
            raise StartupError(
                f"{self.data} contains a cluster of {known.nodes} storage nodes: start it with --nodes {known.nodes} or more"
            )
        if known.replicated != self.replicated:
            # The metadata is elsewhere: the other kind would start without topics on nodes full of entries.
            raise StartupError(
                f"{self.data} contains a cluster with {'three repositories' if known.replicated else 'one repository'}: "
                f"start it {'with' if known.replicated else 'without'} --replicated"
            )
        for number in range(1, self.nodes + 1):
            disk.make_directory(self.data / f"vsn-{number}")
        disk.replace_file(
            path,
            msgspec.json.encode(ClusterFile(self.cluster, self.nodes, replicated=self.replicated)) + b"\n",
        )

    def check_ports(self) -> None:
        """Refuse to start if one of the ports is in use."""
        proxy = () if self.proxy_port is None else (self.proxy_port,)
        for port in (*self.ports, *self.replicated_ports, self.sequencer_port, *proxy):
            with socket.socket() as probe:
                # As a server does: a port in TIME_WAIT is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except (OSError, OverflowError) as error:
                    raise StartupError(
                        f"port {port} is not available ({getattr(error, 'strerror', None) or error}): another cluster may "
                        "be running; stop it, or choose other ports with --port"
                    ) from None

    def stages(self) -> list[list[ServerProcess]]:
        """In the order in which they start; they stop in reverse: etcd if there is one, repositories, nodes, sequencer, manager,
        and the proxy if there is one."""
        cluster = f"--cluster-id={self.cluster}"
        vmc = [
            *("vmc", "start", cluster, f"--repository={self.repository}", f"--listen={self.manager}"),
            *(f"--nodes={address}" for address in self.node_addresses),
            *(f"--replicas={self.replicas}", f"--streams={self.streams}", f"--heartbeat={self.heartbeat_s}"),
            *(f"--replace-after={self.replace_after_s}", f"--zombie-grace={self.zombie_grace_s}"),
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
        vseq = ("vseq", "start", cluster, f"--repository={self.repository}", f"--listen={self.sequencer}")
        etcd = self.etcd.processes() if self.replicated else []
        repositories = self._repository_processes(cluster)
        manager = [self._process("vmc", *vmc)]
        return [etcd, repositories, nodes, [self._process("vseq", *vseq)], manager, *self._proxy_stage()]

    def processes(self) -> list[ServerProcess]:
        return [process for stage in self.stages() for process in stage]

    def _proxy_stage(self) -> list[list[ServerProcess]]:
        if self.proxy_port is None:
            return []
        arguments = ("proxy", f"--cluster={self.repository}", f"--listen={self.proxy}")
        return [[self._process("proxy", *arguments)]]

    def _repository_processes(self, cluster: str) -> list[ServerProcess]:
        if not self.replicated:
            store = self.data / "vmr" / "metadata.db"
            arguments = ("vmr", "start", cluster, f"--store={store}", f"--listen={self.repository}")
            return [self._process("vmr", *arguments)]
        store_and_lease = (f"--store={self.etcd.store}", f"--lease={self.lease_s}")
        return [
            self._process(f"vmr-{number}", "vmr", "start", cluster, *store_and_lease, f"--listen={address}")
            for number, address in enumerate(self.repositories, 1)
        ]

    def _process(self, name: str, *arguments: str) -> ServerProcess:
        return ServerProcess(name, arguments, self.data / "logs" / f"{name}.log")


def ports_from(first: int, nodes: int) -> tuple[int, ...]:
    """7100, 7101, 7110, 7111 …: repository, manager, nodes."""
    return (first, first + 1, *(first + FIRST_NODE_OFFSET + number for number in range(nodes)))


def replicated_ports_from(first: int) -> tuple[int, ...]:
    """7102 … 7109: two more repositories, three etcd members."""
    return tuple(range(first + 2, first + 2 + REPLICATED_PORTS))


def sequencer_port_from(first: int, nodes: int) -> int:
    """After the last node's."""
    return first + FIRST_NODE_OFFSET + nodes


def proxy_port_from(first: int, nodes: int) -> int:
    """7180, or a higher one if a node has that port."""
    return max(first + PROXY_OFFSET, sequencer_port_from(first, nodes) + 1)
