"""The Spark step of `varlog demo`: reads a topic, writes a DataFrame exactly once.

Spark runs in a process of its own, `python -m varlog.cli.spark_demo ADDRESS TOPIC NEWEST INTO BEFORE DIRECTORY`, which prints one
line of JSON. So the demo can end it at any time, whatever Java is doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000
WRITER = "demo"
INSTALL = "Spark is not installed here: with pip install 'varlog[spark]' the demo shows it, too"


@dataclass(frozen=True, slots=True)
class SparkFigures:
    """What Spark saw. Positions are counted, and counted again without repeats."""

    read: int = 0
    positions: int = 0
    written: int = 0
    distinct: int = 0
    newest: int = 0
    skipped: str = ""  # what is not installed
    failed: str = ""  # what became of it

    def violations(self, entries: int, before: int) -> tuple[list[str], list[str]]:
        """Violations when reading a topic with this many entries, and when writing to one whose newest position was `before`."""
        if self.failed:
            return [self.failed], [self.failed]
        reading, writing = [], []
        if (self.read, self.positions) != (entries, entries):
            reading.append(f"{self.read} rows at {self.positions} positions, there are {entries} entries")
        if (self.written, self.distinct) != (ROWS, ROWS) or self.newest != before + ROWS:
            writing.append(
                f"{self.written} rows, {self.distinct} different ones, the newest is {self.newest}"
            )
        return reading, writing


@dataclass(frozen=True, slots=True)
class SparkTask:
    """Read `topic` up to `newest`; write to `into`, whose newest position is `before`: a sequenced topic is only read."""

    address: str
    topic: str
    newest: int
    into: str
    before: int


async def run_spark(task: SparkTask, directory: Path) -> SparkFigures:
    """Have it done in a process of its own, which ends with this call, however that ends."""
    if importlib.util.find_spec("pyspark") is None:
        return SparkFigures(skipped=INSTALL)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "varlog.cli.spark_demo", *map(str, asdict(task).values()), str(directory)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, complaint = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    lines = output.decode().splitlines()
    if process.returncode != 0 or not lines:
        last = (complaint.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
        return SparkFigures(failed=last)
    return SparkFigures(**json.loads(lines[-1]))


def read_and_write(spark: SparkSession, task: SparkTask) -> SparkFigures:
    """Read everything up to `newest`; write a DataFrame, twice under one name; read that back."""
    seen = _entries(spark, task.address, task.topic, 1).where(f"glsn <= {task.newest}")
    read, positions = seen.selectExpr("count(*)", "count(distinct glsn)").collect()[0]
    rows = spark.range(ROWS).selectExpr("concat('row ', id, ' of Spark') as data")
    for _ in range(2):  # as after a crash: the second time it finds that all is there
        rows.write.format("varlog").mode("append").options(
            address=task.address, topic=task.into, writer=WRITER, batch=0
        ).save()
    own = _entries(spark, task.address, task.into, task.before + 1)
    written, distinct, last = own.selectExpr("count(*)", "count(distinct data)", "max(glsn)").collect()[0]
    return SparkFigures(read, positions, written, distinct, last or task.before)


def _entries(spark: SparkSession, address: str, topic: str, begin: int) -> DataFrame:
    return (
        spark.read.format("varlog").options(address=address, topic=topic, startingOffsets=str(begin)).load()
    )


def main(address: str, topic: str, newest: str, into: str, before: str, directory: str) -> None:
    from varlog.model.errors import StartupError
    from varlog.spark import session

    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": directory,
        "spark.sql.warehouse.dir": str(Path(directory, "warehouse")),
        # Fast to start, slow to run: right for so few rows.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    try:
        spark = session("varlog demo", "local[2]", settings)
    except StartupError as missing:
        print(json.dumps(asdict(SparkFigures(skipped=str(missing)))))
        return
    try:
        task = SparkTask(address, topic, int(newest), into, int(before))
        print(json.dumps(asdict(read_and_write(spark, task))), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
