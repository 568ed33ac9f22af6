"""[R2] DamageReports: tells a storage node of damaged entries that it served, so that it looks at them and has them mended."""

from __future__ import annotations

import contextlib

from varlog.client.routing import ATTEMPT_S, Routing
from varlog.model.errors import CorruptBatch, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import LLSN
from varlog.rpc.messages import CheckEntries
from varlog.runtime.logging import get_logger, logfmt

# So many are under way at a time; what comes meanwhile is not told: whoever reads it again says it again.
REPORTS_MAX = 4

logger = get_logger("client")


class DamageReports:
    """Best effort: nobody waits for a report, and nobody hears of one that is lost. The node's scrub finds the damage as well."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._under_way: dict[tuple[NodeID, LogStreamID, LLSN], None] = {}

    def tell(
        self, node: NodeID, log_stream: LogStreamID, begin: LLSN, end: LLSN, error: CorruptBatch
    ) -> None:
        """Entries [begin, end) came damaged from `node`."""
        key = (node, log_stream, begin)
        if self._routing.closed or key in self._under_way or len(self._under_way) >= REPORTS_MAX:
            return
        entries = f"[{begin}, {end})"
        logger.warning(
            logfmt(
                "a storage node served damage", node=node, log_stream=log_stream, entries=entries, why=error
            )
        )
        self._under_way[key] = None
        report = self._report(node, CheckEntries(log_stream, begin, end))
        task = self._routing.tasks.spawn("report damage", report)
        task.add_done_callback(lambda _: self._under_way.pop(key))

    async def _report(self, node: NodeID, request: CheckEntries) -> None:
        with contextlib.suppress(VarlogError):
            connection = await self._routing.connection_to(node, ATTEMPT_S)
            await connection.call(request, timeout_s=ATTEMPT_S)
