"""[R2] DamageReports: reports damaged entries to the node that served them.

The node then checks them and has them repaired.
"""

from __future__ import annotations

import contextlib

from varlog.client.routing import ATTEMPT_S, Routing
from varlog.model.errors import CorruptBatch, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import LLSN
from varlog.rpc.messages import CheckEntries
from varlog.runtime.logging import get_logger, logfmt

# How many reports are in flight at a time; others are dropped: the next read of the damage reports it again.
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
        """Entries [begin, end) came damaged from `node`."""
        key = (node, log_stream, begin)
        if self._routing.closed or key in self._in_flight or len(self._in_flight) >= REPORTS_MAX:
            return
        entries = f"[{begin}, {end})"
        logger.warning(
            logfmt(
                "a storage node served damage", node=node, log_stream=log_stream, entries=entries, why=error
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
