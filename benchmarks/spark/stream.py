"""Spark streams: from the answer of an append to the row in `foreachBatch`, beside the same with a source that does nothing.

The source that does nothing is Spark's own floor: a number in a file, returned as soon as Spark asks for the newest offset. What a
stream of the log takes longer than that is the log's.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.spark.session import activate, failure_text, spark_errors, start
from varlog.bench.context import BenchContext, open_cluster_log
from varlog.bench.figures import median, percentile
from varlog.bench.workload import Measured
from varlog.model.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

SAMPLES, QUICK_SAMPLES = 25, 3
LEGS, QUICK_LEGS = 2, 1
# Appends come at any moment of a micro-batch: so much later, at most, than the last one was seen.
PAUSE_S_MAX = 0.25
SEEN_S_MAX = 60

Say = Callable[[int], Awaitable[None]]


async def streaming_latency(context: BenchContext) -> Measured:
    """Samples of both, in turns."""
    spark = await asyncio.to_thread(start, context)
    quick = context.settings.quick
    latencies: dict[str, list[float]] = {"log": [], "floor": []}
    legs = QUICK_LEGS if quick else LEGS
    async with open_cluster_log(context.address, context.topic, streams=context.settings.streams) as log:

        async def append(number: int) -> None:
            await log.append(b"%d" % number)

        counter = context.directory / "counter"
        for leg in range(legs):
            for name in ("floor", "log"):
                if name == "log":
                    source = _of_log(spark, context, await log.tail() + 1)
                    say: Say = append
                else:
                    source, say = _of_counter(spark, counter)
                latencies[name] += await _leg(context, source, say, f"{name}-{leg}")
            context.display.advance((leg + 1) / legs, "streaming")
    log_s, floor_s = latencies["log"], latencies["floor"]
    return {
        "p50_s": median(log_s),
        "p90_s": percentile(log_s, 90),
        "floor_p50_s": median(floor_s),
        "floor_p90_s": percentile(floor_s, 90),
        "samples": float(len(log_s)),
    }


def _of_log(spark: SparkSession, context: BenchContext, begin: int) -> DataStreamReader:
    """From a position on, not from "latest": a query finds out where that is some time after it was started."""
    return spark.readStream.format("varlog").options(
        address=context.address, topic=context.topic, startingOffsets=str(begin)
    )


def _of_counter(spark: SparkSession, counter: Path) -> tuple[DataStreamReader, Say]:
    """A stream of the numbers up to the one in a file."""
    _write_number(counter, 0)
    spark.dataSource.register(_counter_source())

    async def say(number: int) -> None:
        _write_number(counter, number)

    return spark.readStream.format("varlog_bench_counter").option("file", str(counter)), say


def _write_number(counter: Path, number: int) -> None:
    fresh = counter.with_suffix(".new")
    fresh.write_text(str(number), "ascii")
    fresh.replace(counter)


async def _leg(context: BenchContext, source: DataStreamReader, say: Say, name: str) -> list[float]:
    """One query from its start to its end: how long each number took to be seen."""
    seen = _Seen(asyncio.get_running_loop())
    query = await asyncio.to_thread(_started, source, context.directory / f"checkpoint-{name}", seen)
    latencies: list[float] = []
    chance = random.Random(1)
    try:
        samples = QUICK_SAMPLES if context.settings.quick else SAMPLES
        for number in range(1, samples + 2):
            began = time.perf_counter()
            await say(number)
            latencies.append(await _seen_at(seen, number, query) - began)
            await asyncio.sleep(chance.random() * PAUSE_S_MAX)
    finally:
        await asyncio.to_thread(query.stop)
    return latencies[1:]  # the first one waited for the query to start


async def _seen_at(seen: _Seen, number: int, query: StreamingQuery) -> float:
    """When it was; or what became of the query."""
    for _ in range(SEEN_S_MAX):
        try:
            async with asyncio.timeout(1):
                return await seen.wait(number)
        except TimeoutError:
            failed = await asyncio.to_thread(query.exception)
            if failed is not None:
                raise Unavailable(f"the stream ended: {failure_text(failed)}") from failed
    raise Unavailable(f"number {number} was not seen within {SEEN_S_MAX} s")


class _Seen:
    """The numbers that `foreachBatch` has been given, and when."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._at: dict[int, float] = {}
        self._news = asyncio.Event()

    def take(self, rows: DataFrame, _batch: int) -> None:
        """Called by Spark, in a thread of its own."""
        numbers = [int(bytes(row[0])) for row in rows.select("data").collect()]
        now = time.perf_counter()
        self._loop.call_soon_threadsafe(self._note, numbers, now)

    async def wait(self, number: int) -> float:
        while number not in self._at:
            self._news.clear()
            await self._news.wait()
        return self._at[number]

    def _note(self, numbers: list[int], at: float) -> None:
        self._at |= dict.fromkeys(numbers, at)
        self._news.set()


def _started(source: DataStreamReader, checkpoint: Path, seen: _Seen) -> StreamingQuery:
    activate()
    with spark_errors():
        return (
            source.load()
            .writeStream.foreachBatch(seen.take)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )


def _counter_source() -> type[Any]:
    """Defined here, so that importing this module needs no Spark. It travels to Spark's processes by value."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class CounterReader(DataSourceStreamReader):
        def __init__(self, file: str) -> None:
            self._file = file

        def initialOffset(self) -> dict[str, int]:
            return {"number": 0}

        def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
            from pathlib import Path

            return {"number": int(Path(self._file).read_text("ascii"))}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition((start["number"], end["number"]))]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            numbers = [b"%d" % number for number in range(partition.value[0] + 1, partition.value[1] + 1)]
            schema = pa.schema([pa.field("data", pa.binary(), nullable=False)])
            yield pa.RecordBatch.from_arrays([pa.array(numbers, pa.binary())], schema=schema)

        def commit(self, end: dict[str, int]) -> None: ...

    class CounterSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "varlog_bench_counter"

        def schema(self) -> str:
            return "data binary not null"

        def streamReader(self, schema: object) -> CounterReader:
            return CounterReader(self.options["file"])

    return CounterSource
