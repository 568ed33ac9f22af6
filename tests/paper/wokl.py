"""Wokl: the cluster of the diagrams in 003 and 004: clients CL…, storage nodes SN…, sequencer SQ, repository MR.

The manager (MCL) creates the topic and then leaves: what happens afterwards is done by the clients, as drawn.
"""

from __future__ import annotations

from tests.paper.cluster import CLUSTER, REPOSITORY, TOPIC, PaperCluster, run_story
from tests.paper.transcript import Transcript
from varlog.model.cluster import Grouping, Ordering
from varlog.model.ids import LogStreamID
from varlog.model.projection import Projection
from varlog.model.status import UnitStatus
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment
from varlog.sequencer.sequencer import Sequencer, SequencerConfig
from varlog.testing.sim.core.host import Host, SimService

__all__ = ["Wokl", "run_story"]

SEQUENCER = "sq:7102"


class Wokl(PaperCluster):
    """`nodes` storage nodes; a log stream is on all of them, unless there are fewer `replicas`."""

    def __init__(
        self,
        nodes: int,
        *,
        replicas: int = 0,
        streams: int = 1,
        stripe_size: int = 1,
        grouping: Grouping = Grouping.STREAM,
    ) -> None:
        super().__init__(nodes, replicas=replicas or nodes, transcript=Transcript(streams=streams > 1))
        self.streams, self.stripe_size, self.grouping = streams, stripe_size, grouping
        self.sequencer = self._hosts["SQ"] = self._host("sq", self._make_sequencer)
        self.transcript.names[SEQUENCER] = "SQ"

    def _others(self) -> tuple[Host, ...]:
        return self.repository, self.sequencer, self.manager

    def _ready(self) -> bool:
        return super()._ready() and bool(self.view.sequencers)

    async def create(self) -> None:
        """The topic, by the manager."""
        await self.operate(
            lambda admin: admin.create_topic(
                TOPIC,
                streams=self.streams,
                replicas=self.replicas,
                ordering=Ordering.SEQUENCED,
                stripe_size=self.stripe_size,
                grouping=self.grouping,
            )
        )

    async def drawn(self) -> Wokl:
        """As every diagram but that of the creation begins: epoch 1, every process in it, SN1 the head of the first
        chain, and only clients act."""
        await self.start()
        await self.create()
        await self.wait(lambda: all(self.node(node).status().leased for node in self.nodes))
        await self.manager.stop()
        self.call_in_order(list(self.projection.chains[0].nodes))
        assert self.epoch == 1
        self.transcript.take()
        return self

    @property
    def projection(self) -> Projection:
        (projection,) = self.view.projections
        return projection

    @property
    def epoch(self) -> int:
        return self.projection.epoch

    def chain(self, log_stream: LogStreamID | None = None) -> str:
        """As the diagrams write it: SN1->SN2->SN3."""
        found = self.projection.chains[0] if log_stream is None else self.projection.chain(log_stream)
        return "->".join(map(self.name, found.nodes))

    def units(self, name: str) -> list[UnitStatus]:
        """The log units of a storage node."""
        return sorted(self.storage_node(name).status().units, key=lambda unit: unit.log_stream)

    def epochs(self, *names: str) -> list[int]:
        """Of the first log unit of each."""
        return [self.units(name)[0].epoch for name in names]

    def _make_sequencer(self, environment: Environment, transport: Transport) -> SimService:
        return Sequencer(SequencerConfig(CLUSTER, REPOSITORY, SEQUENCER), environment, transport)
