"""A driver whose executors are other processes: `python -m tests.spark.two_executors ADDRESS SOURCE TARGET` copies a topic."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

from pyspark.sql import Row

import varlog.spark

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = {
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.executor.memory": "512m",
    # All executors are registered before the first task is scheduled, or one could do all the work.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.locality.wait": "0s",
}


def _who_read(rows: Iterable[Row]) -> Iterator[tuple[int, int]]:
    """The process that started this worker, and how many rows came."""
    yield os.getppid(), sum(1 for _ in rows)


def _main(address: str, source: str, target: str) -> None:
    spark = varlog.spark.session("two executors", "local-cluster[2,1,512]", CONF)
    log = {"address": address}
    rows = spark.read.format("varlog").options(**log, topic=source, minPartitions="4").load()
    read = rows.rdd.mapPartitions(_who_read).collect()
    rows.select("data").write.format("varlog").options(**log, topic=target).mode("append").save()
    print(
        json.dumps(
            {"rows": sum(count for _, count in read), "executors": len({process for process, _ in read})}
        )
    )
    spark.stop()


if __name__ == "__main__":
    _main(*sys.argv[1:])
