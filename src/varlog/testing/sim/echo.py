"""Echoes: control requests that arrive a second time, later and over another connection, as from a second or a retrying manager."""

from __future__ import annotations

import asyncio
import random
from contextvars import copy_context

from varlog.rpc import messages as m
from varlog.rpc.framing import REQUEST
from varlog.rpc.messages import Message
from varlog.rpc.transport import Call
from varlog.testing.sim.connection import SimConnection, link
from varlog.testing.sim.network import SimNetwork
from varlog.testing.sim.process import Process

# What steers the cluster: each of these must be harmless when it comes twice, late, or behind what was asked after it.
# Not HoldStream: it is an operator's word, and the last word that arrives counts.
CONTROL: frozenset[type[Message]] = frozenset(
    {
        m.AddLogStream,
        m.RepairReplica,
        m.OpenSession,
        m.RebuildReplica,
        m.RegisterNode,
        m.RemoveLogStream,
        m.SealReplica,
        m.SealStream,
        m.SetReplicas,
        m.SyncReplica,
        m.UnsealReplica,
        m.UnsealStream,
        # Of sequenced topics:
        m.FillUnit,
        m.ProposeProjection,
        m.RenewSequencer,
        m.SealUnit,
        m.SyncUnit,
    }
)


class Echoes:
    """Copies of what is sent, delivered later, until `stop`. `wanted` counts the copies still to be taken."""

    def __init__(self, network: SimNetwork, rng: random.Random) -> None:
        self.wanted = 0
        self._network = network
        self._rng = rng
        self._timers: list[asyncio.TimerHandle] = []
        # A message is heard inside the process that sends it, and its copy outlives that one.
        self._outside = copy_context()

    def heard(self, connection: SimConnection, message: Message) -> float | None:
        """If a copy of it is to come, after how many seconds."""
        if type(message) not in CONTROL or connection.accepting or connection.process.incarnation == 0:
            return None
        self.wanted -= 1
        after_s = self._rng.choice((0.01, 0.5, 5.0)) * self._rng.random()
        host, address = connection.process.host, connection.peer
        loop = asyncio.get_running_loop()
        self._timers.append(
            loop.call_later(after_s, self._echo, host, address, message, context=self._outside)
        )
        return after_s

    def stop(self) -> None:
        self.wanted = 0
        timers, self._timers = self._timers, []
        for timer in timers:
            timer.cancel()

    def _echo(self, host: str, address: str, message: Message) -> None:
        """The copy comes from a process that wants no answer, and is gone a little later."""
        server = self._network.listener(address)
        if server is None:
            return
        ghost = Process(host, 0)
        ours, theirs = link(self._network, ghost, server.process, address)
        ours.serve_with(_ignore)
        server.accept(theirs)
        ours._post(REQUEST, message, b"", 1)
        delay_s = self._rng.uniform(0.2, 2.0)
        asyncio.get_running_loop().call_later(delay_s, ours.close, context=ghost.context)


def _ignore(call: Call | None, message: Message, payload: bytearray) -> None:
    """Whatever the other side has to say."""
