"""Sequencer workload: how many positions a second one sequencer gives, asked for many at a time by many at once."""

from __future__ import annotations

from varlog.bench.context import BenchContext
from varlog.bench.workload import Measured, Meter, metered
from varlog.model.cluster import Ordering
from varlog.model.errors import Unavailable
from varlog.rpc.messages import NextTokens
from varlog.rpc.tcp import TcpTransport

# As many as a client that gathers what waits asks for.
POSITIONS_A_CALL = 100
CALLERS = 64
CALL_S = 10.0


async def sequencer_positions(context: BenchContext) -> Measured:
    """Positions of a topic of its own: nobody writes them, and nobody reads it."""
    settings = context.settings
    count = settings.batch or POSITIONS_A_CALL
    async with context.ordered_log(Ordering.SEQUENCED, 1) as log:
        view = await log.connector.view()
        projection = view.projection(log.topic.topic)
        if projection is None or projection.sequencer is None:
            raise Unavailable("the cluster has no sequencer: start one with `vseq start`")
        request = NextTokens(log.topic.topic, projection.epoch, count)
        connection = await TcpTransport(view.cluster).connect(projection.sequencer.address, timeout_s=CALL_S)
        try:
            meter = Meter(settings.warm_up_s, settings.seconds)
            callers = settings.appenders or CALLERS
            await metered(
                meter,
                context.display,
                callers,
                lambda: connection.call(request, timeout_s=CALL_S),
                each=count,
            )
        finally:
            connection.close()
    measured = meter.measured(entries=count, entry_bytes=0)
    return {
        "positions_per_s": measured["entries_per_s"],
        "calls_per_s": measured["appends_per_s"],
        "p50_s": measured["p50_s"],
        "p99_s": measured["p99_s"],
        "callers": float(callers),
        "positions_a_call": float(count),
    }
