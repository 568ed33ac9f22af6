"""Executor: one replica, driven through the state diagrams of 000 and 002.

000 and 002 call it LogStreamExecutor. It is SN2's replica of a log stream whose primary is on SN1. The repository is the real one;
the test speaks for the manager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.paper.cluster import Client
from tests.paper.varlog import Varlog
from varlog.model.batch import pack
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.lsn import LLSN
from varlog.model.status import ReplicaState
from varlog.rpc.messages import ReplicaStateReply, SealReplica, SealStream, UnsealReplica

# Of 000, "State Diagram of Log Stream Replica", the second one: the state diagram that this project has.
PROPOSED: Final = """
[*] --> SEALING
SEALING --> SEALED: Seal (Committed LSN = Last Committed LSN)
SEALED --> RUNNING: Unseal
RUNNING --> SEALED: Seal (Committed LSN = Last Committed LSN)
RUNNING --> SEALING: Seal itself or Seal (Committed LSN < Last Committed LSN)
"""
# Of 002, and of 000, "Background": the one that 000 proposes to replace.
FORMER: Final = """
[*] --> RUNNING
RUNNING --> SEALING: Seal itself or Seal (Committed LSN < Last Committed LSN)
RUNNING --> SEALED: Seal (Committed LSN = Last Committed LSN)
SEALING --> SEALED: Seal (Committed LSN = Last Committed LSN)
SEALED --> RUNNING: Unseal
"""
START: Final = "[*]"
EQUAL: Final = "Seal (Committed LSN = Last Committed LSN)"
LESS: Final = "Seal (Committed LSN < Last Committed LSN)"
ITSELF: Final = "Seal itself"
UNSEAL: Final = "Unseal"
# For this time, what the repository sends to an executor that is behind does not arrive.
BEHIND_S: Final = 10.0


class Arrow(NamedTuple):
    """One transition of a state diagram."""

    begin: str
    end: str
    event: str


def arrows(diagram: str) -> Iterator[Arrow]:
    """Those of a diagram; one that has two events is two."""
    for line in diagram.strip().splitlines():
        states, _, events = line.partition(":")
        begin, _, end = states.partition(" --> ")
        for event in events.split(" or "):
            yield Arrow(begin, end, event.strip())


def batch(entry: bytes, sequence: int = 1) -> bytearray:
    """A message that a test sends by hand."""
    return pack([entry], producer=ProducerID(7), sequence=sequence, time_us=1)


class Executor:
    """A log stream with three ordered entries. `behind`: SN2 has the entries, and does not know that they are
    ordered."""

    def __init__(self, varlog: Varlog, cl: Client, mcl: Client) -> None:
        self.varlog, self.cl, self.mcl = varlog, cl, mcl

    @classmethod
    async def at(cls, state: str, *, behind: bool = False, streams: int = 1) -> Executor:
        """An executor in this state of the diagram."""
        varlog = await Varlog(2, streams=streams).unmanaged()
        found = cls(varlog, await varlog.client("CL"), varlog.by_hand("MCL"))
        if behind or state == ReplicaState.SEALING.name:
            found.hold("MR", "SN2")
        await found.append(3)
        if state != ReplicaState.RUNNING.name:
            await found.seal()
        if not behind:
            await varlog.wait(lambda: found.committed_end == 4)
        assert (found.state, found.committed_end) == (state, 1 if behind else 4)
        varlog.take()
        return found

    @property
    def state(self) -> str:
        return self.varlog.replica("SN2").state.name

    @property
    def committed_end(self) -> LLSN:
        return self.varlog.replica("SN2").committed_end

    @property
    def log_stream(self) -> LogStreamID:
        return self.varlog.stream.log_stream

    def hold(self, sender: str, receiver: str) -> None:
        """Messages between the two arrive late."""
        place, until = self.varlog.place, asyncio.get_running_loop().time() + BEHIND_S
        self.varlog.network.cut_off(place(sender), place(receiver), until, one_way=True)

    async def append(self, entries: int) -> None:
        for number in range(entries):
            await self.cl.do(self.cl.log.append(b"%d" % number, log_stream=self.log_stream))

    async def seal(self, name: str = "SN2") -> ReplicaStateReply:
        """Seal at the repository's position, as the manager does."""
        await self.mcl.ask("MR", SealStream(self.log_stream))
        stream = self.varlog.stream
        answer, _ = await self.mcl.ask(name, SealReplica(stream.log_stream, stream.epoch, stream.sealed_end))
        assert isinstance(answer, ReplicaStateReply)
        return answer

    async def unseal(self, name: str = "SN2") -> ReplicaStateReply:
        replicas = tuple(map(self.varlog.address, ("SN1", "SN2")))
        answer, _ = await self.mcl.ask(
            name, UnsealReplica(self.log_stream, self.varlog.stream.epoch, replicas)
        )
        assert isinstance(answer, ReplicaStateReply)
        return answer

    async def do(self, event: str) -> None:
        """What the diagram writes at an arrow. Seal with less or the same as the repository has: see `behind`."""
        if event == UNSEAL:
            await self.unseal()
        elif event == ITSELF:
            self.varlog.host("SN2").drive.fail_writes = 1
            _ = self.cl.start(self.cl.log.append(b"lost", log_stream=self.log_stream))
            await self.varlog.wait(lambda: self.varlog.replica("SN2").trouble)
        else:
            await self.seal()
