"""UnitNode: one storage node's log unit, asked alone, in the words of a replica: bytes as it holds them, positions by arithmetic.

A replica keeps the order of its entries beside them; a unit knows LLSNs only, and the projection says where in the order they are.
"""

from __future__ import annotations

from varlog.client.node_client import NodeClient
from varlog.model.batch import parse_header
from varlog.model.errors import CorruptBatch, Trimmed, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.limits import MIB
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection
from varlog.rpc.messages import FetchReply, MeasureRangeReply

FETCH_BYTES = 2 * MIB


class UnitNode:
    """What an audit asks of a node, in the projection it was planned with. Answered in any epoch: nothing here moves."""

    def __init__(self, one: NodeClient, projection: Projection) -> None:
        self._one = one
        self._projection = projection

    async def measure(
        self, log_stream: int, begin: int, end: int, points_max: int = 256
    ) -> MeasureRangeReply:
        """Where positions [begin, end) lie; how many bytes they are only if the unit says so just now."""
        number = LogStreamID(log_stream)
        first, stop = (self._projection.llsn_from(number, GLSN(at)) for at in (begin, end))
        try:
            told = await self._one.measure_unit(log_stream, self._projection.epoch, first, stop, points_max)
            return MeasureRangeReply(first, stop, told.bytes, told.points, complete=True)
        except VarlogError:
            # Without a lease, or in another epoch by now: then it is one long piece, and read all the same.
            return MeasureRangeReply(first, stop, stop - first, (), complete=True)

    async def fetch(
        self, log_stream: int, llsn: int, *, bytes_max: int = 0, wait_s: float = 0.0
    ) -> tuple[FetchReply, bytearray]:
        """Batches from `llsn` on, holes passed over, with the rows that the projection gives them."""
        try:
            copied, payload = await self._one.copy_unit(log_stream, llsn, bytes_max or FETCH_BYTES)
        except CorruptBatch:
            # Somewhere in all of that: the first batch alone says whether it is there.
            copied, payload = await self._one.copy_unit(log_stream, llsn, 1)
        if not payload or parse_header(payload).first_llsn > llsn:
            await self._check_trimmed(log_stream, llsn)
        if not payload:
            return FetchReply((), LLSN(llsn), LLSN(llsn), GLSN(0), GLSN(0)), payload
        rows = tuple(self._projection.rows(LogStreamID(log_stream), LLSN(llsn), copied.next_llsn))
        return FetchReply(rows, copied.next_llsn, LLSN(llsn), GLSN(0), GLSN(0)), payload

    async def _check_trimmed(self, log_stream: int, llsn: int) -> None:
        """A unit passes over what was trimmed as it does over a hole."""
        units = (await self._one.status()).units
        low = next((unit.low for unit in units if unit.log_stream == log_stream), LLSN(0))
        if llsn < low:
            raise Trimmed(llsn, low)
