"""[R2] NodeClient: asks one storage node and returns what it stores, unchecked.

A reader of a log asks any replica and uses only what is intact. An audit needs the opposite: this replica, whatever it returns.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple, TypeVar

from varlog.client.routing import ATTEMPT_S, Routing, expect
from varlog.model.entry import StreamRange
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import GLSN, LLSN, LSN_MAX
from varlog.model.status import NodeStatus
from varlog.rpc.messages import (
    CheckEntries,
    CopyUnit,
    CopyUnitReply,
    Done,
    Fetch,
    FetchReply,
    GetNodeStatus,
    GetNodeStatusReply,
    MeasureRange,
    MeasureRangeReply,
    MeasureUnit,
    Message,
)
from varlog.runtime.logging import get_logger, logfmt

M = TypeVar("M", bound=Message)


class RawBatches(NamedTuple):
    """Batches back to back, as one replica stores them, and the rows (llsn, glsn, count) that order them. `next_llsn`: where to
    continue. Without payload: the replica has nothing at or above that LLSN yet, and ends at `committed_end`."""

    rows: tuple[tuple[LLSN, GLSN, int], ...]
    next_llsn: LLSN
    committed_end: LLSN
    payload: bytearray


class NodeClient:
    """Sends every request once; nothing is checked, and no failure counts against the node. Created by `Connector.on_node`."""

    def __init__(self, routing: Routing, node: NodeID) -> None:
        self._routing = routing
        self.node = node

    async def status(self) -> NodeStatus:
        return (await self._ask(GetNodeStatus(), GetNodeStatusReply)).status

    async def measure(
        self, log_stream: LogStreamID | int, begin: GLSN | int, end: GLSN | int, points_max: int = 256
    ) -> StreamRange:
        """Measures the entries with a GLSN in [begin, end) in the node's own replica."""
        return await self._measure(MeasureRange(LogStreamID(log_stream), GLSN(begin), GLSN(end), points_max))

    async def fetch(
        self, log_stream: LogStreamID | int, llsn: LLSN | int, *, bytes_max: int = 0, wait_s: float = 0.0
    ) -> RawBatches:
        """Fetches batches from `llsn` on, and the rows that order them, from the node's own replica."""
        connection = await self._routing.connection_to(self.node, ATTEMPT_S)
        request = Fetch(LogStreamID(log_stream), LLSN(llsn), bytes_max=bytes_max, wait_s=wait_s)
        got, payload = await connection.call(request, timeout_s=wait_s + ATTEMPT_S)
        fetched = expect(got, FetchReply)
        return RawBatches(fetched.rows, fetched.next_llsn, fetched.committed_end, payload)

    async def measure_unit(
        self, log_stream: LogStreamID | int, epoch: Epoch, begin: LLSN, end: LLSN, points_max: int = 256
    ) -> StreamRange:
        """Measures LLSNs [begin, end) in the node's own log unit (sequenced ordering)."""
        return await self._measure(MeasureUnit(LogStreamID(log_stream), epoch, begin, end, points_max))

    async def copy_unit(
        self, log_stream: LogStreamID | int, llsn: LLSN | int, bytes_max: int
    ) -> tuple[LLSN, bytearray]:
        """Fetches batches from `llsn` on from the node's own log unit, skipping holes, in any epoch (sequenced ordering). Returns
        the LLSN to continue at, and the batches."""
        connection = await self._routing.connection_to(self.node, ATTEMPT_S)
        request = CopyUnit(LogStreamID(log_stream), LLSN(llsn), LLSN(LSN_MAX), bytes_max)
        got, payload = await connection.call(request, timeout_s=ATTEMPT_S)
        return expect(got, CopyUnitReply).next_llsn, payload

    async def report_damage(self, log_stream: LogStreamID | int, begin: LLSN | int, end: LLSN | int) -> None:
        """Make the node check the entries [begin, end); it repairs those that are damaged."""
        await self._ask(CheckEntries(LogStreamID(log_stream), LLSN(begin), LLSN(end)), Done)

    async def _measure(self, request: MeasureRange | MeasureUnit) -> StreamRange:
        found = await self._ask(request, MeasureRangeReply)
        return StreamRange(found.begin, found.end, found.bytes, found.points)

    async def _ask(self, request: Message, answer: type[M]) -> M:
        connection = await self._routing.connection_to(self.node, ATTEMPT_S)
        got, _ = await connection.call(request, timeout_s=ATTEMPT_S)
        return expect(got, answer)


# [R2] DamageReports: reports damaged entries to the node that served them.
#
# The node then checks and repairs them.

# The maximum number of reports in flight; further ones are dropped, because the next read of the damage reports it again.
REPORTS_MAX = 4

logger = get_logger("client")


class DamageReports:
    """Best effort: no caller waits for a report, and a lost one is not repeated. The node's scrub finds the damage as well."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._in_flight: dict[tuple[NodeID, LogStreamID, LLSN], None] = {}

    def report(
        self, node: NodeID, log_stream: LogStreamID, begin: LLSN, end: LLSN, error: CorruptBatch
    ) -> None:
        """Report that entries [begin, end) arrived damaged from `node`."""
        key = (node, log_stream, begin)
        if self._routing.closed or key in self._in_flight or len(self._in_flight) >= REPORTS_MAX:
            return
        entries = f"[{begin}, {end})"
        logger.warning(
            logfmt(
                "a storage node served damaged entries",
                node=node,
                log_stream=log_stream,
                entries=entries,
                why=error,
            )
        )
        self._in_flight[key] = None
        report = self._send(node, CheckEntries(log_stream, begin, end))
        task = self._routing.tasks.spawn("report damage", report)
        task.add_done_callback(lambda _: self._in_flight.pop(key))

    async def _send(self, node: NodeID, request: CheckEntries) -> None:
        with contextlib.suppress(VarlogError):
            connection = await self._routing.connection_to(node, ATTEMPT_S)
            await connection.call(request, timeout_s=ATTEMPT_S)
