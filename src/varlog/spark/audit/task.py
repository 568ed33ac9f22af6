"""Task: reads one range of a replica or log unit from its node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Protocol, TypeVar

from varlog.client.log import Log
from varlog.client.node_client import NodeClient, RawBatches
from varlog.model.batch import parse_header
from varlog.model.entry import StreamRange
from varlog.model.errors import CorruptBatch, Trimmed, Unavailable, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.limits import MIB
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection
from varlog.spark.audit.parts import AuditRange, TaskFindings
from varlog.spark.audit.replica_rules import Walk
from varlog.spark.connection import SparkConnection, connection_to
from varlog.spark.options import LogLocation

# A replica applies commits a moment after they are ordered: how long to wait for what it does not have yet.
WAIT_S = 3.0
# Pauses before a node that does not answer is asked again.
PAUSES_S = (0.2, 0.5, 1.0)

T = TypeVar("T")


class ReplicaSource(Protocol):
    """The replica or log unit of a stream on one storage node."""

    async def measure(self, log_stream: int, begin: int, end: int, points_max: int = 256) -> StreamRange: ...

    async def fetch(
        self, log_stream: int, llsn: int, *, bytes_max: int = 0, wait_s: float = 0.0
    ) -> RawBatches: ...


async def replica_source(log: Log, node: int) -> ReplicaSource:
    """By a fresh view. Unavailable: a sequenced topic without a projection yet."""
    one = log.connector.on_node(node)
    if not log.topic.sequenced:
        return one
    projection = (await log.connector.view()).projection(log.topic.topic)
    if projection is None:
        raise Unavailable(f"topic {log.topic.name!r} is still being created")
    return UnitNode(one, projection)


class Task:
    """Picklable: what Spark runs on an executor for each range."""

    def __init__(self, where: LogLocation) -> None:
        self._where = where

    def __call__(self, reading: AuditRange) -> TaskFindings:
        return read_replica(connection_to(self._where), reading)


def retried(connection: SparkConnection, ask: Callable[[], Coroutine[object, object, T]]) -> T:
    """The answer of a node, with a few retries: it may have just started."""
    for pause_s in PAUSES_S:
        try:
            return connection.run(ask())
        except Unavailable:
            connection.run(asyncio.sleep(pause_s))
    return connection.run(ask())


def read_replica(connection: SparkConnection, reading: AuditRange) -> TaskFindings:
    """Read the whole range, past damage; what cannot be read becomes a finding."""
    walk = Walk(reading)
    failures = 0
    while walk.next_llsn < reading.end:
        before = walk.next_llsn
        try:
            one = connection.run(replica_source(connection.fresh_log(reading.topic), reading.node))
            _read_on(connection, one, walk)
            failures = 0
        except VarlogError as error:
            failures = failures + 1 if walk.next_llsn == before else 1
            if failures > len(PAUSES_S):
                walk.unread(str(error))
            else:
                connection.run(asyncio.sleep(PAUSES_S[failures - 1]))
    return walk.outcome()


def _read_on(connection: SparkConnection, one: ReplicaSource, walk: Walk) -> None:
    """Read until the end of the range, or up to the first problem, which is recorded."""
    reading = walk.reading
    pieces = connection.items(_pieces(one, reading.log_stream, walk.next_llsn, reading.end))
    try:
        for fetched in pieces:
            if not fetched.payload:
                walk.ends(fetched.committed_end)
                return
            walk.add(fetched.rows, fetched.payload)
            if walk.stuck:
                break
    except CorruptBatch as damage:
        walk.damaged(damage.message())
    except Trimmed:
        walk.trimmed()
    finally:
        pieces.close()
    if walk.stuck:
        walk.skip_to(connection.run(_readable_from(one, reading.log_stream, walk.next_llsn, reading.end)))


async def _pieces(
    one: ReplicaSource, log_stream: int, llsn: int, end: int
) -> AsyncGenerator[RawBatches, None]:
    """Batches from `llsn` on, fetch by fetch; an empty fetch is the last: the replica ends there."""
    while llsn < end:
        fetched = await one.fetch(log_stream, llsn, wait_s=WAIT_S)
        yield fetched
        if not fetched.payload:
            return
        llsn = fetched.next_llsn


async def _readable_from(one: ReplicaSource, log_stream: int, damaged: int, end: int) -> int:
    """The first LLSN above `damaged` from which the replica can be read again, or `end`: searched in growing steps, then by
    bisection.

    A damaged header hides how long its batch is, so what follows is found only at the next batch in the node's index.
    """
    step = 1
    while damaged + step < end and not await _readable(one, log_stream, damaged + step):
        step *= 2
    bad, good = damaged + step // 2, min(damaged + step, end)
    while good - bad > 1:
        middle = (bad + good) // 2
        if await _readable(one, log_stream, middle):
            good = middle
        else:
            bad = middle
    return good


async def _readable(one: ReplicaSource, log_stream: int, llsn: int) -> bool:
    try:
        fetched = await one.fetch(log_stream, llsn, bytes_max=1)
        header = parse_header(fetched.payload)
    except CorruptBatch:
        return False
    return header.first_llsn <= llsn < header.end_llsn


# --- log units ----------------------------------------------------------------------------------------------------------


FETCH_BYTES = 2 * MIB


class UnitNode:
    """One storage node's log unit with the interface of a replica.

    A replica stores the order of its entries; a unit knows LLSNs only, and the projection of the plan gives their positions. Its
    requests are answered in any epoch: they change nothing.
    """

    def __init__(self, one: NodeClient, projection: Projection) -> None:
        self._one = one
        self._projection = projection

    async def measure(self, log_stream: int, begin: int, end: int, points_max: int = 256) -> StreamRange:
        """Where positions [begin, end) lie, with their bytes if the unit can measure them now."""
        number = LogStreamID(log_stream)
        first, stop = (self._projection.llsn_from(number, GLSN(at)) for at in (begin, end))
        try:
            found = await self._one.measure_unit(log_stream, self._projection.epoch, first, stop, points_max)
            return StreamRange(first, stop, found.bytes, found.points)
        except VarlogError:
            # Without a lease, or in another epoch: one long piece, which can be read all the same.
            return StreamRange(first, stop, stop - first)

    async def fetch(
        self, log_stream: int, llsn: int, *, bytes_max: int = 0, wait_s: float = 0.0
    ) -> RawBatches:
        """Batches from `llsn` on without holes, with the rows that the projection gives them."""
        try:
            next_llsn, payload = await self._one.copy_unit(log_stream, llsn, bytes_max or FETCH_BYTES)
        except CorruptBatch:
            # Somewhere in this fetch: the first batch alone shows whether it is that one.
            next_llsn, payload = await self._one.copy_unit(log_stream, llsn, 1)
        if not payload or parse_header(payload).first_llsn > llsn:
            await self._check_trimmed(log_stream, llsn)
        if not payload:
            return RawBatches((), LLSN(llsn), LLSN(llsn), payload)
        rows = tuple(self._projection.rows(LogStreamID(log_stream), LLSN(llsn), next_llsn))
        return RawBatches(rows, next_llsn, LLSN(llsn), payload)

    async def _check_trimmed(self, log_stream: int, llsn: int) -> None:
        """A unit skips trimmed positions as it skips holes."""
        units = (await self._one.status()).units
        low = next((unit.low for unit in units if unit.log_stream == log_stream), LLSN(0))
        if llsn < low:
            raise Trimmed(llsn, low)
