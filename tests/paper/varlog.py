"""Varlog: the cluster of the diagrams in 000 to 002, and their message names.

Every participant is written down: what the manager asks (MCL), what clients (CL) and storage nodes (SN) send each other, and what
the repository (MR) and the nodes send in their sessions. A test that follows a diagram by hand stops the manager and speaks for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import ndiff
from typing import Any, Final

from tests.paper.cluster import TOPIC, PaperCluster, node_address, run_story
from tests.paper.transcript import RecordedTransport, Transcript
from varlog.manager.config import ManagerConfig
from varlog.model.cluster import LogStream, StreamState
from varlog.model.ids import LogStreamID
from varlog.model.status import ReplicaState, ReplicaStatus
from varlog.rpc.messages import (
    AddLogStream,
    Append,
    CopyFrom,
    GetNodeStatus,
    GetView,
    KeepView,
    Message,
    NewLogStreamID,
    OpenSession,
    RegisterLogStream,
    RegisterNode,
    RemoveLogStream,
    ReplicaAddress,
    Replicate,
    Reports,
    SealReplica,
    SealStream,
    Suspect,
    SyncReplica,
    UnsealReplica,
    UnsealStream,
)
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.storagenode.config import StorageNodeConfig
from varlog.storagenode.node import StorageNodeServer
from varlog.testing.sim.core.host import SimService

__all__ = ["OURS", "Varlog", "check_drawn", "of", "run_story"]

# What the documents call a message, by its receiver, and what it is here. One that goes the other way says why.
OURS: Final[dict[str, tuple[type[Message], ...]]] = {
    "SN GetStorageNodeID": (GetNodeStatus,),
    "SN GetInfo": (GetNodeStatus,),
    "SN Heartbeat": (GetNodeStatus,),
    "SN AddLogStream": (AddLogStream,),
    "SN RemoveLogStream": (RemoveLogStream,),
    "SN Append": (Append,),
    "SN Replicate": (Replicate,),
    "SN Seal": (SealReplica,),
    "SN Unseal": (UnsealReplica,),
    "SN Sync": (SyncReplica,),  # asked of the replica that lacks entries (decision 0009)
    "SN SyncReplicate": (CopyFrom, SyncReplica),  # pulled by the replica that lacks entries (decision 0009)
    "SN GetReport": (OpenSession, Reports),  # asked for once, then sent unasked (decision 0001)
    "MR RegisterStorageNode": (RegisterNode,),
    "MR RegisterLogStream": (RegisterLogStream,),
    "MR GetMetadata": (GetView,),
    "MR Seal": (SealStream,),
    "MR Unseal": (UnsealStream,),
    "MCL Generate": (NewLogStreamID,),
    "CL SetBlacklist": (Suspect,),
}

_ARROW: Final = re.compile(r"(\w+)->>[+-]?(\w+): (\w+)")


def check_drawn(said: Iterable[str], table: str) -> None:
    """A table has a line of the diagram on the left of `|`, with its answer behind `;`, and what is sent here on the right.
    Nothing on the right: it is not sent, or happens inside a participant. Nothing on the left: it is not drawn."""
    rows = [[cell.strip() for cell in row.split("|")] for row in table.strip().splitlines()]
    for drawn, ours in rows:
        arrow = _ARROW.match(drawn)
        if arrow is not None and ours:
            names = [kind.__name__ for kind in OURS[f"{arrow[2].rstrip('0123456789')} {arrow[3]}"]]
            assert ours.split()[3] in names, f"{drawn} is {' or '.join(names)} here, not {ours}"
    spoken, wanted = list(said), [ours for _, ours in rows if ours]
    assert spoken == wanted, "\n".join(["said (-) and drawn (+) differ:", *ndiff(spoken, wanted)])


def of(said: Iterable[str], who: str) -> list[str]:
    """The messages of one participant: the diagrams draw concurrent ones in one of many orders."""
    return [line for line in said if line.startswith(f"{who} -> ")]


class Varlog(PaperCluster):
    """`nodes` storage nodes and a topic of `streams` log streams with `replicas` replicas each. `settings` are the
    manager's; of the storage nodes each has `node_settings`. Not `registered`: the manager knows no node."""

    def __init__(
        self,
        nodes: int = 2,
        *,
        replicas: int = 2,
        streams: int = 1,
        registered: bool = True,
        node_settings: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.streams = streams
        self._registered = registered
        self.settings = settings | ({} if registered else {"nodes": ()})
        self.node_settings = node_settings or {}
        transcript = Transcript(
            words={},
            unrecorded=(GetView, KeepView),
            at_once=tuple((kind.__name__,) for kind in (AddLogStream, GetNodeStatus, SealReplica)),
            polls=frozenset({GetNodeStatus.__name__}),
        )
        super().__init__(nodes, replicas=replicas, transcript=transcript)

    # --- Before the diagram begins ------------------------------------------------------------------------------------

    def _expected(self) -> int:
        return len(self.nodes) if self._registered else 0

    async def create(self) -> None:
        """The topic, by the manager."""
        await self.operate(
            lambda admin: admin.create_topic(TOPIC, streams=self.streams, replicas=self.replicas)
        )

    async def drawn(self) -> Varlog:
        """As most diagrams begin: every log stream runs, and SN1 is the primary of the first, SN2 its backup, and so on."""
        await self.start()
        await self.create()
        await self.wait(self.all_running)
        self.call_in_order(
            list(dict.fromkeys(node for stream in self.view.streams for node in stream.replicas))
        )
        self.take()
        return self

    async def unmanaged(self) -> Varlog:
        """The same, and the manager has left: the test sends its messages."""
        await self.drawn()
        await self.manager.stop()
        self.transcript.at_once = ()
        self.take()
        return self

    # --- While it is drawn --------------------------------------------------------------------------------------------

    def take(self, *whos: str, words: Iterable[type[Message]] = ()) -> list[str]:
        """The messages since the last call, of these participants, and (if words are given) only with these words."""
        names = [word.__name__ for word in words]
        said = self.transcript.take(*whos)
        return [line for line in said if not names or line.split()[3] in names]

    def said(self, text: str) -> bool:
        """Whether this message is among those since the last call, with its answer."""
        return any(
            line.over and line.text(streams=self.transcript.streams) == text for line in self.transcript.lines
        )

    def all_running(self) -> bool:
        """Every log stream runs, with all its replicas."""
        return (
            all(
                stream.state is StreamState.RUNNING
                and all(
                    self.replica(self.name(node), stream.log_stream).state is ReplicaState.RUNNING
                    for node in stream.replicas
                )
                for stream in self.view.streams
            )
            and len(self.view.streams) == self.streams
        )

    @property
    def stream(self) -> LogStream:
        """The first log stream, as the repository has it."""
        return self.view.streams[0]

    def replica(self, name: str, log_stream: LogStreamID | None = None) -> ReplicaStatus:
        """The status of SN1's, SN2's … replica of a log stream (none given: the first one)."""
        wanted = self.stream.log_stream if log_stream is None else log_stream
        return next(
            found for found in self.storage_node(name).status().replicas if found.log_stream == wanted
        )

    def address(self, name: str) -> ReplicaAddress:
        (node,) = [node for node in self.nodes if self.name(node) == name]
        return ReplicaAddress(node, node_address(node))

    # --- The processes ------------------------------------------------------------------------------------------------

    def _node(self, number: int) -> Callable[[Environment, Transport], SimService]:
        def make(environment: Environment, transport: Transport) -> SimService:
            network = RecordedTransport(node_address(number), transport, self.transcript, late=False)
            return StorageNodeServer(self._node_config(number), environment, network)

        return make

    def _node_config(self, number: int) -> StorageNodeConfig:
        return replace(super()._node_config(number), scrub_bytes_per_s=0, **self.node_settings)

    def _make_repository(self, environment: Environment, transport: Transport) -> SimService:
        network = RecordedTransport("MR", transport, self.transcript, late=False)
        return super()._make_repository(environment, network)

    def _manager_config(self) -> ManagerConfig:
        return replace(super()._manager_config(), **self.settings)
