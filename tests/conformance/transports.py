"""The worlds that the transport suite runs in: each runs a body with the server's transport and the client's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import uvloop

from tests.rpc.helpers import run
from varlog.model.ids import ClusterID
from varlog.rpc.memory import MemoryTransport
from varlog.rpc.tcp import TcpTransport
from varlog.rpc.transport import Transport
from varlog.testing.sim import loop as simulation
from varlog.testing.sim.network import SimNetwork
from varlog.testing.sim.process import Process

# (server side, client side): two processes of one cluster.
Body = Callable[[Transport, Transport], Awaitable[None]]
World = Callable[[Body], None]


def in_memory(body: Body) -> None:
    async def start() -> None:
        transport = MemoryTransport()
        await body(transport, transport)

    run(start())


def over_tcp(body: Body) -> None:
    run(_two_processes(body))


def over_tcp_on_uvloop(body: Body) -> None:
    run(_two_processes(body), runner=uvloop.run)


async def _two_processes(body: Body) -> None:
    before = asyncio.all_tasks()
    await body(TcpTransport(ClusterID(1)), TcpTransport(ClusterID(1)))
    assert asyncio.all_tasks() == before


def in_simulation(body: Body) -> None:
    async def start() -> None:
        network = SimNetwork(random.Random(1))
        await body(network.transport(Process("server")), network.transport(Process("client")))

    run(start(), runner=simulation.run)


WORLDS: dict[str, World] = {
    "memory": in_memory,
    "simulation": in_simulation,
    "tcp": over_tcp,
    "tcp-uvloop": over_tcp_on_uvloop,
}
