"""append_entries: entries of one request or message into the log, as one atomic batch, and counted."""

from __future__ import annotations

from typing import Final

from varlog.client.log import Log
from varlog.model.entry import Run
from varlog.model.errors import Overloaded
from varlog.proxy.deadline import Deadline
from varlog.proxy.meters import ProxyMeters

# In `varlog_proxy_refused_total`: more waits for the log than can be served before the deadline.
OVERLOADED: Final = "overloaded"


async def append_entries(
    log: Log, entries: list[bytes], log_stream: int | None, deadline: Deadline, meters: ProxyMeters
) -> Run:
    """Where they are now. One alone may share its batch with those of other callers. What is refused as overloaded is counted."""
    try:
        run = await _append(log, entries, log_stream, deadline)
    except Overloaded:
        meters.refused(OVERLOADED)
        raise
    meters.appended(run.count, sum(map(len, entries)))
    return run


async def _append(log: Log, entries: list[bytes], log_stream: int | None, deadline: Deadline) -> Run:
    if len(entries) == 1:
        return Run(await log.append(entries[0], log_stream=log_stream, timeout_s=deadline.remaining_s), 1)
    return await log.append_batch(entries, log_stream=log_stream, timeout_s=deadline.remaining_s)
