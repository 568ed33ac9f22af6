"""Files of an archive: a name is taken once, what is written is read back, and a range that is not whole is not taken."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from varlog.client.arrow import schema
from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.files import ArrowFiles, HadoopFiles
from varlog.spark.archive.rows import rows_of
from varlog.spark.archive.writer import archive_session, check_range, write_range


def log_rows(spark: SparkSession, begin: int, end: int) -> DataFrame:
    """Rows as the log has them: two streams, in no order, a second between two entries."""
    return (
        spark.range(begin, end)
        .select(
            F.col("id").alias("glsn"),
            ((F.col("id") + 1) / 2).cast("bigint").alias("llsn"),
            (F.col("id") % 2 + 1).cast("int").alias("log_stream"),
            F.timestamp_micros(F.col("id") * 1_000_000 + 7).alias("timestamp"),
            F.concat(F.lit("entry "), F.col("id").cast("string")).cast("binary").alias("data"),
        )
        .orderBy("log_stream", F.col("glsn").desc())
    )


def test_a_name_is_taken_by_one_of_many_writers_at_once(spark: SparkSession, tmp_path: Path) -> None:
    files = HadoopFiles(spark, str(tmp_path))
    contents = [f"writer {number}".encode() for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda content: files.write_new("_varlog/t/1.json", content), contents))
    assert taken.count(True) == 1
    assert files.read("_varlog/t/1.json") == contents[taken.index(True)]
    assert files.names("_varlog/t") == ["1.json"]


# How a file becomes the only one of its name: by a connection, by a rename, by being created.
@pytest.mark.parametrize("scheme", ["file", "hdfs", "s3a"])
def test_a_name_that_is_taken_stays_so(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    files = HadoopFiles(spark, str(tmp_path))
    files.scheme = scheme  # the local file system is used as if it were another one
    assert files.write_new("_varlog/t/1.json", b"first")
    assert not files.write_new("_varlog/t/1.json", b"second")
    assert files.write_new("_varlog/t/1.json", b"first"), "its own, whose answer was lost"
    assert (files.read("_varlog/t/1.json"), files.names("_varlog/t")) == (b"first", ["1.json"])


def test_both_ways_to_the_files_see_the_same(spark: SparkSession, tmp_path: Path) -> None:
    hadoop, arrow = HadoopFiles(spark, str(tmp_path / "a %41 b")), ArrowFiles(str(tmp_path / "a %41 b"))
    assert hadoop.names("_varlog/t") == arrow.names("_varlog/t") == []
    hadoop.write_new("_varlog/t/1.json", b"{}")
    assert hadoop.names("_varlog") == arrow.names("_varlog") == ["t"]
    assert hadoop.read("_varlog/t/1.json") == arrow.read("_varlog/t/1.json") == b"{}"
    assert ArrowFiles(f"file://{tmp_path}").path == str(tmp_path)


def refuse(gaps: Sequence[tuple[int, int]]) -> None:
    """Every position has an entry."""
    raise PreconditionFailed(f"{gaps} have no row")


def test_a_place_that_pyarrow_cannot_open_is_named() -> None:
    with pytest.raises(PreconditionFailed, match="archive gopher://old/times cannot be opened"):
        ArrowFiles("gopher://old/times")


def test_what_is_written_is_read_back_in_order_and_in_part(spark: SparkSession, tmp_path: Path) -> None:
    session, files = archive_session(spark), HadoopFiles(spark, str(tmp_path))
    write_range(log_rows(session, 101, 1101), files, "topic=t/r", 101, 1101, 3)
    made = check_range(session, files, "topic=t/r", 101, 1101, refuse)
    assert [(file.begin, file.end) for file in made] == [(101, 435), (435, 768), (768, 1101)]
    assert (made[0].first_us, made[-1].last_us) == (101_000_007, 1_100_000_007)
    batches = [
        batch
        for file in made
        for batch in rows_of(ArrowFiles(str(tmp_path)), file, max(200, file.begin), min(900, file.end))
    ]
    assert all(batch.schema.equals(schema()) for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["glsn"] for row in rows] == list(range(200, 900))
    assert [row["data"] for row in rows] == [b"entry %d" % glsn for glsn in range(200, 900)]
    assert rows[0]["timestamp"].timestamp() == 200.000007


@pytest.mark.parametrize(
    "fault",
    [
        "glsn <> 150",  # a hole
        "glsn < 190",  # the end is missing
        "glsn > 101",  # the beginning is missing
    ],
)
def test_a_range_that_is_not_whole_is_not_taken(spark: SparkSession, tmp_path: Path, fault: str) -> None:
    session, files = archive_session(spark), HadoopFiles(spark, str(tmp_path))
    write_range(log_rows(session, 101, 201).where(fault), files, "topic=t/r", 101, 201, 2)
    with pytest.raises(PreconditionFailed, match="does not hold positions 101 to 200, each once"):
        check_range(session, files, "topic=t/r", 101, 201, refuse)


def test_a_doubled_position_that_hides_a_hole_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """As many rows as there should be, from the right first to the right last one."""
    session, files = archive_session(spark), HadoopFiles(spark, str(tmp_path))
    moved = F.when(F.col("glsn") == 150, 151).otherwise(F.col("glsn")).cast("bigint")
    write_range(log_rows(session, 101, 201).withColumn("glsn", moved), files, "topic=t/r", 101, 201, 2)
    with pytest.raises(PreconditionFailed, match="each once"):
        check_range(session, files, "topic=t/r", 101, 201, refuse)


def test_positions_that_were_given_up_have_no_row_and_are_explained(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Junk of a sequenced topic counts as a position, and nobody is shown it."""
    session, files = archive_session(spark), HadoopFiles(spark, str(tmp_path))
    given_up = "glsn NOT BETWEEN 120 AND 129 AND glsn NOT IN (101, 160)"
    write_range(log_rows(session, 101, 201).where(given_up), files, "topic=t/r", 101, 201, 2)
    asked: list[tuple[int, int]] = []
    made = check_range(session, files, "topic=t/r", 101, 201, asked.extend)
    assert asked == [(101, 102), (120, 130), (160, 161)]
    assert [(file.begin, file.end, file.missing) for file in made] == [(101, 151, 11), (151, 201, 1)]
    (row,) = [batch.to_pylist() for batch in rows_of(ArrowFiles(str(tmp_path)), made[0], 118, 132)]
    assert [found["glsn"] for found in row] == [118, 119, 130, 131]


def test_a_file_that_is_gone_is_named_with_its_positions(spark: SparkSession, tmp_path: Path) -> None:
    session, files = archive_session(spark), HadoopFiles(spark, str(tmp_path))
    write_range(log_rows(session, 1, 11), files, "topic=t/r", 1, 11, 1)
    (made,) = check_range(session, files, "topic=t/r", 1, 11, refuse)
    (tmp_path / made.path).unlink()
    with pytest.raises(PreconditionFailed, match="which holds positions 1 to 10, is missing"):
        list(rows_of(ArrowFiles(str(tmp_path)), made, 1, 11))
