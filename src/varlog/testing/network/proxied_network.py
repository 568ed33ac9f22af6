"""ProxiedNetwork: a cuttable network made of one proxy per server.

The kernel's list of connections shows which process connects, so the addresses are the same for all. It differs from a cut cable in
what kernels do by themselves: nobody's keepalive or retransmission ends a connection here, so a cut is `Loss` and nothing between.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.ports import HOST, free_ports
from varlog.localcluster.process import ServerProcess
from varlog.testing.network.cuttable_network import CLIENTS, OUTSIDE, CutWays, Loss, server_places
from varlog.testing.network.cutting_proxy import Address, CuttingProxy


class ProxiedNetwork:
    """`pids` are those of the servers, by place; another process that we have started is a client."""

    def __init__(
        self, plan: ProxiedPlan, pids: Callable[[], Mapping[str, int]], *, loss: Loss = Loss.HELD
    ) -> None:
        self._pids = pids
        self._loss = loss
        self._ways = CutWays()
        self._proxies = [
            CuttingProxy(place, plan.front(place), plan.behind(place), self._ways, self._place_of)
            for place in plan.places
        ]

    def cut(self, source: str, target: str) -> None:
        """What `source` sends to `target` does not arrive from now on; the other direction works."""
        self._ways.cut(source, target, self._loss)
        if self._loss is Loss.BROKEN:
            for proxy in self._proxies:
                proxy.reset_between(source, target)

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        # First, or what was held would follow a gap.
        for proxy in self._proxies:
            proxy.reset_gaps()
        self._ways.heal()

    async def __aenter__(self) -> Self:
        try:
            for proxy in self._proxies:
                await proxy.start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for proxy in self._proxies:
            await proxy.stop()

    async def _place_of(self, near: Address, far: Address) -> str | None:
        pid = await asyncio.to_thread(dialling_process, near, far)
        if pid is None:
            return None
        if pid == os.getpid():
            return OUTSIDE
        return {pid: place for place, pid in self._pids().items()}.get(pid, CLIENTS)


# ProxiedPlan: a cluster on this machine whose processes reach each other, and are reached, through proxies alone.


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


# DiallingProcess: which process of ours has opened a connection, found by the two ends of it as the kernel lists them.

_TABLE = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _INODE = 1, 2, 9


def dialling_process(near: tuple[str, int], far: tuple[str, int]) -> int | None:
    """The id of the one that has `near` as its own end and `far` as the other: a process that this one has started, or
    this one itself. None if there is none: it is gone.

    The table of connections is read once: for each process by itself it took so long on a busy machine that clients gave up first.
    """
    inode = _inode_of(_listed(near), _listed(far))
    if inode is None:
        return None
    own = psutil.Process()
    for process in [*own.children(recursive=True), own]:
        if _has(process.pid, f"socket:[{inode}]"):
            return process.pid
    return None


def _listed(end: tuple[str, int]) -> str:
    """As the table has it: the address in the byte order of this machine."""
    (address,) = struct.unpack("=I", socket.inet_aton(end[0]))
    return f"{address:08X}:{end[1]:04X}"


def _inode_of(near: str, far: str) -> str | None:
    for line in _TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[_LOCAL] == near and fields[_REMOTE] == far:
            return fields[_INODE]
    return None


def _has(pid: int, target: str) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return False  # it has just ended
    for name in names:
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"{directory}/{name}") == target:
                return True
    return False
