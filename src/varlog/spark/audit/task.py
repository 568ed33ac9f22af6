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

# A replica applies what was ordered a moment later: so long is waited for what it does not have yet.
WAIT_S = 3.0
# A node that does not answer is asked again so often, each time after a longer pause.
PAUSES_S = (0.2, 0.5, 1.0)

T = TypeVar("T")


class ReplicaSource(Protocol):
    """A storage node, as far as its own replica or log unit of a stream goes."""

    async def measure(self, log_stream: int, begin: int, end: int, points_max: int = 256) -> StreamRange: ...

    async def fetch(
        self, log_stream: int, llsn: int, *, bytes_max: int = 0, wait_s: float = 0.0
    ) -> RawBatches: ...


async def holder(log: Log, node: int) -> ReplicaSource:
    """By a view of now. Unavailable: a sequenced topic that has not begun."""
    one = log.connector.on_node(node)
    if not log.topic.sequenced:
        return one
    projection = (await log.connector.view()).projection(log.topic.topic)
    if projection is None:
        raise Unavailable(f"topic {log.topic.name!r} is still being made")
    return UnitNode(one, projection)


class Task:
    """Picklable: what Spark runs on an executor for each reading."""

    def __init__(self, where: LogLocation) -> None:
        self._where = where

    def __call__(self, reading: AuditRange) -> TaskFindings:
        return read_replica(connection_to(self._where), reading)


def patiently(connection: SparkConnection, ask: Callable[[], Coroutine[object, object, T]]) -> T:
    """What a node answers; one that does not is asked again, a few times: it may have just started."""
    for pause_s in PAUSES_S:
        try:
            return connection.run(ask())
        except Unavailable:
            connection.run(asyncio.sleep(pause_s))
    return connection.run(ask())


def read_replica(connection: SparkConnection, reading: AuditRange) -> TaskFindings:
    """All of it, over damage; what cannot be read is said."""
    walk = Walk(reading)
    failures = 0
    while walk.next_llsn < reading.end:
        before = walk.next_llsn
        try:
            one = connection.run(holder(connection.fresh_log(reading.topic), reading.node))
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
    """Until the end of the reading, or the first trouble, which is dealt with."""
    reading = walk.reading
    pieces = connection.items(_pieces(one, reading.log_stream, walk.next_llsn, reading.end))
    try:
        for fetched in pieces:
            if not fetched.payload:
                walk.ends(fetched.committed_end)
                return
            walk.take(fetched.rows, fetched.payload)
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
    """Batch after batch from `llsn` on, one fetch each; the last one may be without any: the replica ends there."""
    while llsn < end:
        fetched = await one.fetch(log_stream, llsn, wait_s=WAIT_S)
        yield fetched
        if not fetched.payload:
            return
        llsn = fetched.next_llsn


async def _readable_from(one: ReplicaSource, log_stream: int, damaged: int, end: int) -> int:
    """The first LLSN above `damaged` from which the replica can be read again, or `end`: looked for in growing steps, then halved.

    A damaged header hides how long its batch is, so what follows is found only at the next place that the node's index knows.
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


# UnitNode: one storage node's log unit, asked alone, in the words of a replica: bytes as it holds them, positions by arithmetic.
#
# A replica keeps the order of its entries beside them; a unit knows LLSNs only, and the projection says where in the order they
# are.

FETCH_BYTES = 2 * MIB


class UnitNode:
    """What an audit asks of a node, in the projection it was planned with. Answered in any epoch: nothing here moves."""

    def __init__(self, one: NodeClient, projection: Projection) -> None:
        self._one = one
        self._projection = projection

    async def measure(self, log_stream: int, begin: int, end: int, points_max: int = 256) -> StreamRange:
        """Where positions [begin, end) lie; how many bytes they are only if the unit says so just now."""
        number = LogStreamID(log_stream)
        first, stop = (self._projection.llsn_from(number, GLSN(at)) for at in (begin, end))
        try:
            told = await self._one.measure_unit(log_stream, self._projection.epoch, first, stop, points_max)
            return StreamRange(first, stop, told.bytes, told.points)
        except VarlogError:
            # Without a lease, or in another epoch by now: then it is one long piece, and read all the same.
            return StreamRange(first, stop, stop - first)

    async def fetch(
        self, log_stream: int, llsn: int, *, bytes_max: int = 0, wait_s: float = 0.0
    ) -> RawBatches:
        """Batches from `llsn` on, holes passed over, with the rows that the projection gives them."""
        try:
            next_llsn, payload = await self._one.copy_unit(log_stream, llsn, bytes_max or FETCH_BYTES)
        except CorruptBatch:
            # Somewhere in all of that: the first batch alone says whether it is there.
            next_llsn, payload = await self._one.copy_unit(log_stream, llsn, 1)
        if not payload or parse_header(payload).first_llsn > llsn:
            await self._check_trimmed(log_stream, llsn)
        if not payload:
            return RawBatches((), LLSN(llsn), LLSN(llsn), payload)
        rows = tuple(self._projection.rows(LogStreamID(log_stream), LLSN(llsn), next_llsn))
        return RawBatches(rows, next_llsn, LLSN(llsn), payload)

    async def _check_trimmed(self, log_stream: int, llsn: int) -> None:
        """A unit passes over what was trimmed as it does over a hole."""
        units = (await self._one.status()).units
        low = next((unit.low for unit in units if unit.log_stream == log_stream), LLSN(0))
        if llsn < low:
            raise Trimmed(llsn, low)
