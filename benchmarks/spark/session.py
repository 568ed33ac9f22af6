"""Spark's side of a benchmark: its session, timed actions, topics and Parquet files.

A topic is filled once per run, and its rows are written to Parquet files once. Both sides of a ratio are measured in turns, pass
by pass, in one session; a ratio is of their medians.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from varlog.bench.context import BenchContext, open_cluster_log
from varlog.bench.figures import median
from varlog.model.errors import Unavailable
from varlog.model.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"
# Of each topic that is read: enough that a pass is not the start of its tasks.
TOPIC_BYTES = 1024 * MIB
QUICK_BYTES = 4 * MIB
PASSES_MIN, PASSES_MAX = 3, 9
# Java compiles what it runs often; before that both sides are at half their speed.
WARM_UPS = 3
_FILLERS = 4
# What is filled and appended in one call. As much as Spark's writer puts into one batch.
BATCH_BYTES = 1 * MIB

DEFINITION = (
    "Times are per side. "
    "Spark: local[2] in the client's process, two partitions, unix sockets to its Python workers; rows of random bytes, so that "
    "nothing compresses; Parquet as Spark writes it by default (snappy), read from the page cache; the noop sink, all columns; "
    "three passes of each side to warm up, then passes in turns, medians"
)

OnePass = Callable[[], Awaitable[float]]  # rows (or bytes) per second


_running: list[SparkSession] = []


def prepare_session() -> None:
    """ValueError with the remedy if Spark or Java is missing."""
    from varlog.model.errors import StartupError
    from varlog.spark.session import prepare

    try:
        prepare()
    except StartupError as missing:
        raise ValueError(str(missing)) from missing


def start(context: BenchContext) -> SparkSession:
    """The session of this run; the first call starts it."""
    import varlog.spark
    from varlog.spark.session import FAST_SOCKETS

    directory = context.settings.data
    with spark_errors():
        spark = varlog.spark.session(
            "varlog benchmarks",
            MASTER,
            {
                **FAST_SOCKETS,
                "spark.driver.memory": "4g",
                "spark.local.dir": str(directory / "spark"),
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
                # One file per partition, as many as there are cores, like the log's.
                "spark.sql.files.maxPartitionBytes": "4g",
                "spark.sql.shuffle.partitions": "2",
            },
        )
    _running[:] = [spark]
    return spark


def stop() -> None:
    """Stop the session, if there is one."""
    while _running:
        _running.pop().stop()


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turns what Spark raises into a VarlogError, so that the row of the table says what is wrong."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise Unavailable(failure_text(error)) from error


def failure_text(error: BaseException) -> str:
    from varlog.spark.failure import spark_failure

    return spark_failure(error).message


def activate() -> None:
    """Make the session the one of this thread: Spark looks nowhere else for a sink."""
    _running[-1].createDataFrame([], "nothing int")


async def timed(action: Callable[[], object]) -> float:
    """Seconds of a Spark action, in a thread: the cluster's supervisor runs on the event loop."""

    def work() -> float:
        activate()
        began = time.perf_counter()
        with spark_errors():
            action()
        return time.perf_counter() - began

    return await asyncio.to_thread(work)


async def in_turns(context: BenchContext, sides: list[OnePass]) -> list[list[float]]:
    """Each side to warm up, then in turns until the time is over; the rates of each side."""
    for side in sides * (1 if context.settings.quick else WARM_UPS):
        await side()
    rates: list[list[float]] = [[] for _ in sides]
    seconds = context.settings.seconds * len(sides)
    began = time.perf_counter()
    passes_min = 1 if context.settings.quick else PASSES_MIN
    while len(rates[0]) < passes_min or (
        len(rates[0]) < PASSES_MAX and time.perf_counter() < began + seconds
    ):
        for own, side in zip(rates, sides, strict=True):
            own.append(await side())
        context.display.advance((time.perf_counter() - began) / seconds, f"pass {len(rates[0])}")
    return rates


def medians(rates: Sequence[Sequence[float]]) -> list[float]:
    return [median(own) for own in rates]


def rows_of(context: BenchContext, entry_bytes: int) -> int:
    """How many entries a topic of this run has."""
    return max(1, (QUICK_BYTES if context.settings.quick else TOPIC_BYTES) // entry_bytes)


def random_entries(count: int, entry_bytes: int) -> list[bytes]:
    """All different: Parquet stores what repeats only once."""
    data = os.urandom(count * entry_bytes)
    return [data[at : at + entry_bytes] for at in range(0, len(data), entry_bytes)]


def batch_rows(entry_bytes: int) -> int:
    return max(1, BATCH_BYTES // entry_bytes)


async def filled(context: BenchContext, entry_bytes: int) -> tuple[str, int]:
    """A topic with entries of this size, and how many it has; the first workload of a run that needs it fills it."""
    topic, count = f"bench-spark-{entry_bytes}", rows_of(context, entry_bytes)
    async with open_cluster_log(context.address, topic, streams=context.settings.streams) as log:
        left = count - await log.tail()

        async def filler() -> None:
            nonlocal left
            while left > 0:
                now = min(batch_rows(entry_bytes), left)
                left -= now
                await log.append_batch(random_entries(now, entry_bytes))
                context.display.advance(1 - left / count, "filling")

        async with asyncio.TaskGroup() as tasks:
            for number in range(_FILLERS):
                tasks.create_task(filler(), name=f"bench/filler={number}")
        return topic, await log.tail()


def read_log(spark: SparkSession, context: BenchContext, topic: str, **options: object) -> DataFrame:
    return (
        spark.read.format("varlog")
        .options(
            address=context.address, topic=topic, minPartitions=2, **{k: str(v) for k, v in options.items()}
        )
        .load()
    )


async def as_parquet(spark: SparkSession, context: BenchContext, topic: str) -> Path:
    """The rows of a topic in Parquet files; written once per run, and read once so that they are in the page cache."""
    path = context.settings.data / f"{topic}.parquet"
    if not path.exists():
        context.display.advance(1.0, "writing the same rows as Parquet")
        await timed(lambda: read_log(spark, context, topic).write.parquet(str(path)))
    return path


def drain(rows: DataFrame) -> None:
    """Read every row of every column, and do nothing with it."""
    rows.write.format("noop").mode("overwrite").save()
