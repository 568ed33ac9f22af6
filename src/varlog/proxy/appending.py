"""append_entries: entries of one request or message into the log, as one atomic batch, and counted."""

from __future__ import annotations

from varlog.client.log import Log
from varlog.model.entry import Run
from varlog.proxy.deadline import Deadline
from varlog.proxy.meters import ProxyMeters


async def append_entries(
    log: Log, entries: list[bytes], log_stream: int | None, deadline: Deadline, meters: ProxyMeters
) -> Run:
    """Where they are now. One alone may share its batch with those of other callers."""
    if len(entries) == 1:
        run = Run(await log.append(entries[0], log_stream=log_stream, timeout_s=deadline.remaining_s), 1)
    else:
        run = await log.append_batch(entries, log_stream=log_stream, timeout_s=deadline.remaining_s)
    meters.appended(run.count, sum(map(len, entries)))
    return run
