"""[R2] NodeClient: one storage node, asked alone: what it says of itself, and the bytes that it holds, as it holds them.

Who reads a log asks any replica and believes only what is sound. An audit wants the opposite: this replica, whatever it says.
"""

from __future__ import annotations

from typing import TypeVar

from varlog.client.routing import ATTEMPT_S, Routing, expect
from varlog.model.cluster import NodeStatus
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import GLSN, LLSN, LSN_MAX
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

M = TypeVar("M", bound=Message)


class NodeClient:
    """Every call is made once; nothing is checked, and no failure is held against the node. Made by `Log.on_node`."""

    def __init__(self, routing: Routing, node: NodeID) -> None:
        self._routing = routing
        self.node = node

    async def status(self) -> NodeStatus:
        return (await self._ask(GetNodeStatus(), GetNodeStatusReply)).status

    async def measure(
        self, log_stream: LogStreamID | int, begin: GLSN | int, end: GLSN | int, points_max: int = 256
    ) -> MeasureRangeReply:
        """How the node's own replica has the entries with a GLSN in [begin, end)."""
        return await self._ask(
            MeasureRange(LogStreamID(log_stream), GLSN(begin), GLSN(end), points_max), MeasureRangeReply
        )

    async def fetch(
        self, log_stream: LogStreamID | int, llsn: LLSN | int, *, bytes_max: int = 0, wait_s: float = 0.0
    ) -> tuple[FetchReply, bytearray]:
        """Batches from `llsn` on, and the rows that order them, as the node's own replica has them."""
        connection = await self._routing.connection_to(self.node, ATTEMPT_S)
        request = Fetch(LogStreamID(log_stream), LLSN(llsn), bytes_max=bytes_max, wait_s=wait_s)
        got, payload = await connection.call(request, timeout_s=wait_s + ATTEMPT_S)
        return expect(got, FetchReply), payload

    async def measure_unit(
        self, log_stream: LogStreamID | int, epoch: Epoch, begin: LLSN, end: LLSN, points_max: int = 256
    ) -> MeasureRangeReply:
        """How the node's own log unit has LLSNs [begin, end) (sequenced ordering)."""
        request = MeasureUnit(LogStreamID(log_stream), epoch, begin, end, points_max)
        return await self._ask(request, MeasureRangeReply)

    async def copy_unit(
        self, log_stream: LogStreamID | int, llsn: LLSN | int, bytes_max: int
    ) -> tuple[CopyUnitReply, bytearray]:
        """Batches from `llsn` on as the node's own log unit has them, holes passed over; in any epoch (sequenced ordering)."""
        connection = await self._routing.connection_to(self.node, ATTEMPT_S)
        request = CopyUnit(LogStreamID(log_stream), LLSN(llsn), LLSN(LSN_MAX), bytes_max)
        got, payload = await connection.call(request, timeout_s=ATTEMPT_S)
        return expect(got, CopyUnitReply), payload

    async def tell_damage(self, log_stream: LogStreamID | int, begin: LLSN | int, end: LLSN | int) -> None:
        """Have the node look at the entries [begin, end); what it finds damaged is mended."""
        await self._ask(CheckEntries(LogStreamID(log_stream), LLSN(begin), LLSN(end)), Done)

    async def _ask(self, request: Message, answer: type[M]) -> M:
        connection = await self._routing.connection_to(self.node, ATTEMPT_S)
        got, _ = await connection.call(request, timeout_s=ATTEMPT_S)
        return expect(got, answer)
