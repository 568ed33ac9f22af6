"""A driver of its own, which is there to be killed: `python -m tests.spark.driver JSON` does the work of a Job in a new session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

# Fast to start, slow to run: right for tests, wrong for benchmarks.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": "/nowhere",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
}


@dataclass(frozen=True)
class Job:
    """What a driver does at once: a query over the files of a directory, and a batch of rows; either may be left out."""

    query: dict[str, str] = field(default_factory=dict)
    batch: dict[str, str] = field(default_factory=dict)
    files: str = ""
    checkpoint: str = ""
    rows: int = 0
    partitions: int = 2
    master: str = "local[4,4]"  # a paused query and a paused batch leave room for each other
    conf: dict[str, str] = field(default_factory=dict)


def rows_of(spark: SparkSession, rows: int, partitions: int = 2) -> DataFrame:
    """Rows of about a KiB: "row-0 …", "row-1 …" and so on."""
    column = "concat('row-', id, ' ', repeat('x', 1000)) AS data"
    return spark.range(0, rows, 1, partitions).selectExpr(column)


def run_query(spark: SparkSession, job: Job) -> None:
    """To the end of what there is in the files now."""
    start_query(spark, job).awaitTermination()


def start_query(spark: SparkSession, job: Job) -> StreamingQuery:
    """Two files a micro-batch."""
    lines = spark.readStream.option("maxFilesPerTrigger", 2).text(job.files)
    return (
        lines.writeStream.format("varlog-faulty")
        .options(**job.query)
        .option("checkpointLocation", job.checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def run_batch(spark: SparkSession, job: Job) -> None:
    rows = rows_of(spark, job.rows, job.partitions)
    rows.write.format("varlog-faulty").options(**job.batch).mode("append").save()


@contextmanager
def driver_of(job: Job, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process group with the driver, its JVM and its workers; killed at once at the end, whatever it does. What it leaves is
    below `path`."""
    scratch = path / "scratch"
    scratch.mkdir(exist_ok=True)
    elsewhere = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
    elsewhere["JDK_JAVA_OPTIONS"] = f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.driver", json.dumps(asdict(job))],
        start_new_session=True,
        env={**os.environ, **elsewhere},
        cwd=Path(__file__).parents[2],
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _main(job: Job) -> None:
    from pyspark import cloudpickle

    import varlog.spark
    from tests.spark import faulty

    by_value: Callable[[object], None] = cloudpickle.register_pickle_by_value
    by_value(faulty)  # an executor elsewhere has no tests
    spark = varlog.spark.session("driver", job.master, {**QUICK, **job.conf})
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    spark.dataSource.register(faulty.FaultySource)
    query = start_query(spark, job) if job.files else None
    if job.rows:
        run_batch(spark, job)
    if query is not None:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    _main(Job(**json.loads(sys.argv[1])))
