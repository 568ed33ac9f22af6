"""SequencedCluster: the small cluster in virtual time, with two sequencers, and an appender that writes the chain by itself."""

from __future__ import annotations

import asyncio

from tests.manager.sim_cluster import CLUSTER, REPOSITORY, TOPIC, SimCluster
from varlog.client.admin import Admin
from varlog.client.connect import connect_admin
from varlog.model.batch import entries_of, pack, parse_header, place_batch
from varlog.model.cluster import ClusterView, Ordering
from varlog.model.errors import StaleEpoch, Unavailable, UnknownLogStream, VarlogError
from varlog.model.ids import LogStreamID, NodeID, ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection
from varlog.model.status import UnitStatus
from varlog.rpc import messages as m
from varlog.sequencer.sequencer import Sequencer, SequencerConfig
from varlog.testing.sim.core.host import Host


class SequencedCluster(SimCluster):
    """Four storage nodes, a repository, two sequencers, a manager. Nobody but the manager reconfigures."""

    def __init__(self, nodes: int = 4, replicas: int = 3) -> None:
        super().__init__(nodes, replicas)
        self.sequencers = {number: self._sequencer(number) for number in (1, 2)}
        self.written: dict[GLSN, bytes] = {}

    def _sequencer(self, number: int) -> Host:
        config = SequencerConfig(CLUSTER, REPOSITORY, f"sq{number}:7120")
        return self._host(
            f"sq{number}", lambda environment, transport: Sequencer(config, environment, transport)
        )

    def start(self) -> None:
        super().start()
        for host in self.sequencers.values():
            host.boot()

    async def admin(self) -> Admin:
        return await connect_admin(self.transport, self.environment, REPOSITORY)

    async def create(self, *, streams: int = 1, stripe_size: int = 4, grouping: str = "stream") -> Projection:
        async with await self.admin() as admin:
            await admin.create_topic(
                TOPIC,
                streams=streams,
                ordering=Ordering.SEQUENCED,
                stripe_size=stripe_size,
                grouping=grouping,
            )
        return await self.projection()

    async def projection(self) -> Projection:
        found = (await self.view()).projections
        assert len(found) == 1
        return found[0]

    async def append(self, data: bytes) -> GLSN:
        """One entry, written along its chain; after a failure with a new position, until it is there. What is left is a hole."""
        async with asyncio.timeout(60):
            while True:
                try:
                    return await self._append_once(data)
                except (Unavailable, StaleEpoch, UnknownLogStream):
                    await asyncio.sleep(0.1)

    async def _append_once(self, data: bytes) -> GLSN:
        view = await self.view()
        projection = view.projections[0]
        if projection.sequencer is None:
            raise Unavailable("no sequencer")
        tokens = m.NextTokens(projection.topic, projection.epoch, 1)
        given = await self.ask(projection.sequencer.address, tokens)
        assert isinstance(given, m.NextTokensReply)
        at = projection.locate(given.first)
        batch = pack([data], producer=ProducerID(1), sequence=given.first, time_us=0)
        place_batch(batch, projection.epoch, at.llsn)
        for node in projection.chain(at.log_stream).nodes:
            await self._write(view, node, m.WriteUnit(at.log_stream, projection.epoch), batch)
        self.written[given.first] = data
        return given.first

    async def _write(self, view: ClusterView, node: NodeID, write: m.WriteUnit, batch: bytearray) -> None:
        found = view.node(node)
        assert found is not None
        connection = await self.transport.connect(found.address, timeout_s=1.0)
        try:
            await connection.call(write, batch, timeout_s=1.0)
        finally:
            connection.close()

    async def check_written(self) -> None:
        """Law 8: every acknowledged entry is on every node of its chain."""
        view = await self.view()
        projection = view.projections[0]
        for glsn, data in self.written.items():
            at = projection.locate(glsn)
            for node in projection.chain(at.log_stream).nodes:
                assert await self._read(view, node, at.log_stream, projection, at.llsn) == data, (glsn, node)
        assert self.complaints == []

    async def _read(
        self, view: ClusterView, node: NodeID, log_stream: LogStreamID, projection: Projection, llsn: LLSN
    ) -> bytes:
        found = view.node(node)
        assert found is not None
        connection = await self.transport.connect(found.address, timeout_s=3.0)
        try:
            read = m.ReadUnit(log_stream, projection.epoch, llsn)
            _, batch = await connection.call(read, timeout_s=3.0)
            (data,) = entries_of(batch, parse_header(batch))
            return data
        finally:
            connection.close()

    async def unit(self, node: int, log_stream: LogStreamID) -> UnitStatus | None:
        status = (await self.statuses()).get(NodeID(node))
        units = status.units if status is not None else ()
        return next((found for found in units if found.log_stream == log_stream), None)

    async def trouble(self, streams: int) -> str:
        """What keeps the cluster from being whole and clean; "" when it is."""
        try:
            view, statuses = await self.view(), await self.statuses()
        except VarlogError as error:
            return str(error)
        if len(view.streams) != streams or len(view.projections) != 1:
            return f"{len(view.streams)} streams, not {streams}; {view.projections}"
        projection = view.projections[0]
        if projection.sequencer not in view.sequencers:
            return f"{projection.sequencer} is none of {view.sequencers}"
        if len(projection.chains) != streams:
            return f"{len(projection.chains)} chains, not {streams}"
        for chain in projection.chains:
            if chain.out_of_sync or len(chain.nodes) != self.replicas:
                return f"{chain}"
            for node in chain.nodes:
                units = statuses[node].units if node in statuses else ()
                if not any(
                    found.log_stream == chain.log_stream
                    and found.epoch == projection.epoch
                    and not found.trouble
                    for found in units
                ):
                    return f"log stream {chain.log_stream} is not in epoch {projection.epoch} on node {node}: {units}"
        for node, status in statuses.items():
            for found in status.units:
                known = view.stream(found.log_stream)
                if known is None or node not in known.replicas:
                    return f"a zombie of log stream {found.log_stream} is on node {node}"
        return ""
