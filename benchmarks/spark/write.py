"""Spark writes: a DataFrame into a topic, against the same rows into Parquet files and against the log's own appends."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

from benchmarks.spark.session import (
    as_parquet,
    batch_rows,
    filled,
    in_turns,
    medians,
    random_entries,
    start,
    timed,
)
from varlog.bench.context import BenchContext, open_cluster_log
from varlog.bench.workload import Measured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of the rows that are read elsewhere; every pass stores them once more, on every replica.
PART = 0.5
APPENDERS = 8


class WriteAgainstParquet:
    """Rows of `entry_bytes`, held in Spark's memory, written to a topic exactly once, to Parquet, and appended by a client."""

    def __init__(self, entry_bytes: int) -> None:
        self._entry_bytes = entry_bytes

    async def __call__(self, context: BenchContext) -> Measured:
        spark = await asyncio.to_thread(start, context)
        frame, rows = await self._rows(spark, context)
        async with open_cluster_log(context.address, context.topic, streams=context.settings.streams):
            pass  # created now: only the writing is measured
        numbers = itertools.count()

        async def log_pass() -> float:
            writer = (
                frame.write.format("varlog")
                .mode("append")
                .options(address=context.address, topic=context.topic)
            )
            return rows / await timed(writer.save)

        async def parquet_pass() -> float:
            path = str(context.directory / f"pass-{next(numbers)}.parquet")
            return rows / await timed(lambda: frame.write.parquet(path))

        async def append_pass() -> float:
            return await self._append(context, rows)

        rates = await in_turns(context, [log_pass, parquet_pass, append_pass])
        await timed(frame.unpersist)
        log_rate, parquet_rate, append_rate = medians(rates)
        return {
            "rows_per_s": log_rate,
            "bytes_per_s": log_rate * self._entry_bytes,
            "parquet_rows_per_s": parquet_rate,
            "append_rows_per_s": append_rate,
            "rows": float(rows),
            "passes": float(len(rates[0])),
        }

    async def _rows(self, spark: SparkSession, context: BenchContext) -> tuple[DataFrame, int]:
        topic, all_rows = await filled(context, self._entry_bytes)
        path = str(await as_parquet(spark, context, topic))
        rows = max(1, int(all_rows * PART))

        def held() -> DataFrame:
            # Two partitions, as the log's reader has; the columns are read once, and kept.
            frame = spark.read.parquet(path).where(f"glsn <= {rows}").select("data").coalesce(2).persist()
            if frame.count() != rows:
                raise OSError(f"the Parquet files of {topic} do not have the first {rows} rows")
            return frame

        return await asyncio.to_thread(held), rows

    async def _append(self, context: BenchContext, rows: int) -> float:
        """The client's own batches, several in flight; what they are made of is ready before the clock starts."""
        size = batch_rows(self._entry_bytes)
        entries = random_entries(min(size, rows), self._entry_bytes)
        left = rows

        async with open_cluster_log(context.address, context.topic, streams=context.settings.streams) as log:

            async def appender() -> None:
                nonlocal left
                while left > 0:
                    now = min(size, left)
                    left -= now
                    await log.append_batch(entries[:now])

            began = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for number in range(APPENDERS):
                    tasks.create_task(appender(), name=f"bench/appender={number}")
            return rows / (time.perf_counter() - began)
