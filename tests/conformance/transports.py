"""The environments of the transport suite.

Each runs a body with the server's transport and the client's.
"""

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
from varlog.testing.sim.core import loop as simulation
from varlog.testing.sim.core.loop import Process
from varlog.testing.sim.core.network import SimNetwork

# (server side, client side): two processes of one cluster.
Body = Callable[[Transport, Transport], Awaitable[None]]
World = Callable[[Body], None]


def in_memory(body: Body) -> None:
    async def start() -> None:
        transport = MemoryTransport()
        await body(transport, transport)

    run(start())


def over_tcp(body: Body) -> None:
    run(_two_processes(body, short_cuts=False))


def over_tcp_on_uvloop(body: Body) -> None:
    run(_two_processes(body, short_cuts=False), runner=uvloop.run)


def over_local_sockets(body: Body) -> None:
    run(_two_processes(body, short_cuts=True))


def over_local_sockets_on_uvloop(body: Body) -> None:
    run(_two_processes(body, short_cuts=True), runner=uvloop.run)


async def _two_processes(body: Body, *, short_cuts: bool) -> None:
    before = asyncio.all_tasks()
    server = TcpTransport(ClusterID(1), short_cuts=short_cuts)
    await body(server, TcpTransport(ClusterID(1), short_cuts=short_cuts))
    assert asyncio.all_tasks() == before


def in_simulation(body: Body) -> None:
    async def start() -> None:
        network = SimNetwork(random.Random(1))
        await body(network.transport(Process("server")), network.transport(Process("client")))

    run(start(), runner=simulation.run_simulated)


WORLDS: dict[str, World] = {
    "local": over_local_sockets,
    "local-uvloop": over_local_sockets_on_uvloop,
    "memory": in_memory,
    "simulation": in_simulation,
    "tcp": over_tcp,
    "tcp-uvloop": over_tcp_on_uvloop,
}
