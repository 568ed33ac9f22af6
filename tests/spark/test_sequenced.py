"""Spark on sequenced topics: everything that reads works, positions without an entry have no row, and writes are refused first."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import varlog
from varlog.model.errors import JunkPosition, PreconditionFailed, StaleEpoch, Unavailable
from varlog.rpc.messages import NextTokens, NextTokensReply
from varlog.rpc.tcp import TcpTransport
from varlog.runtime.loop_thread import LoopThread
from varlog.spark.jobs.archive import archive
from varlog.spark.jobs.audit import audit
from varlog.spark.jobs.compact import compact
from varlog.spark.jobs.mirror import mirror
from varlog.spark.jobs.report import report
from varlog.spark.jobs.restore import restore
from varlog.testing.tcp_cluster import WAIT_S, TcpCluster

_numbers = count(1)


class Topic:
    """A sequenced topic of two stripes, and what was appended to it. Some positions are taken and never written."""

    def __init__(self, cluster: TcpCluster, thread: LoopThread) -> None:
        self.name = f"fast{next(_numbers)}"
        self.address = cluster.repository.address
        self._thread = thread
        with varlog.admin(self.address, timeout_s=WAIT_S) as admin:
            admin.create_topic(self.name, streams=2, ordering="sequenced", stripe_size=16)
        self.entries: dict[int, bytes] = {}
        self.given_up: set[int] = set()

    def append(self, entries: int) -> None:
        with varlog.connect(self.address, self.name, create=False, timeout_s=WAIT_S) as log:
            for number in range(entries):
                data = b"entry %d of %d" % (number, entries)
                self.entries[log.append(data).glsn] = data

    def give_up(self, positions: int) -> None:
        """As an appender that dies with its token: nobody writes there."""
        self.given_up |= set(self._thread.run(self._tokens(positions)))

    async def _tokens(self, positions: int) -> range:
        """On a machine that stalled for longer than a lease there may be a new epoch: then of that one."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    return await self._tokens_of_this_epoch(positions)
                except (StaleEpoch, Unavailable):
                    await asyncio.sleep(0.05)

    async def _tokens_of_this_epoch(self, positions: int) -> range:
        async with varlog.aio.admin(self.address, timeout_s=WAIT_S) as admin:
            view = await admin.view()
        topic = view.topic_named(self.name)
        assert topic is not None
        projection = view.projection(topic.topic)
        assert projection is not None and projection.sequencer is not None
        connection = await TcpTransport(view.cluster).connect(projection.sequencer.address, timeout_s=WAIT_S)
        try:
            reply, _ = await connection.call(
                NextTokens(topic.topic, projection.epoch, positions), timeout_s=WAIT_S
            )
            assert isinstance(reply, NextTokensReply)
            return range(reply.first - reply.skipped, reply.first + positions)
        finally:
            connection.close()

    def load(self, spark: SparkSession, **options: object) -> DataFrame:
        source = {"address": self.address, "topic": self.name}
        return spark.read.format("varlog").options(**source, **options).load()  # type: ignore[arg-type]


@pytest.fixture
def topic(services: tuple[TcpCluster, LoopThread]) -> Topic:
    """Positions 1 to 40 are entries, 41 to 45 were given up, then 20 more entries, and two more at the end were given up."""
    made = Topic(*services)
    made.append(40)
    made.give_up(5)
    made.append(20)
    made.give_up(2)
    return made


def rows(frame: DataFrame) -> dict[int, bytes]:
    found = frame.select("glsn", "data").collect()
    assert len({row["glsn"] for row in found}) == len(found), "a position came twice"
    return {row["glsn"]: bytes(row["data"]) for row in found}


def test_a_read_has_every_entry_and_no_row_for_what_was_given_up(spark: SparkSession, topic: Topic) -> None:
    """R-SEQ-7, R-USE-4: readers skip junk."""
    assert rows(topic.load(spark)) == topic.entries
    assert len(topic.given_up) >= 7
    with (
        varlog.connect(topic.address, topic.name, create=False, timeout_s=WAIT_S) as log,
        pytest.raises(JunkPosition),
    ):
        log.read(min(topic.given_up))


def test_a_read_is_bounded_cut_and_filtered_as_any_other(spark: SparkSession, topic: Topic) -> None:
    wanted = {glsn: data for glsn, data in topic.entries.items() if 20 <= glsn < 60}
    bounded = topic.load(spark, startingOffsets=20, endingOffsets=60, maxRecordsPerPartition=7)
    assert rows(bounded) == wanted
    assert bounded.rdd.getNumPartitions() > 4
    assert rows(topic.load(spark).where("glsn >= 20 and glsn < 60")) == wanted


def test_a_stream_skips_what_was_given_up_and_continues_from_its_checkpoint(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """R-USE-4: streaming, from a sequenced topic, exactly once."""
    assert _streamed(spark, topic, tmp_path) == topic.entries
    topic.give_up(1)
    topic.append(10)
    assert _streamed(spark, topic, tmp_path) == topic.entries


def _streamed(spark: SparkSession, topic: Topic, place: Path) -> dict[int, bytes]:
    source = {"address": topic.address, "topic": topic.name, "maxRecordsPerTrigger": "13", "reader": "stream"}
    query = (
        spark.readStream.format("varlog").options(**source).load().select("glsn", "data").writeStream
        .format("parquet").option("checkpointLocation", str(place / "checkpoint")).option("path", str(place / "out"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(240)
    return rows(spark.read.parquet(str(place / "out")))


def test_an_end_that_a_read_has_seen_is_settled(
    spark: SparkSession, services: tuple[TcpCluster, LoopThread], topic: Topic
) -> None:
    """R-USE-4: a lost sequencer takes unused tokens with it, and the tail may fall back; not below what
    any client has seen, so that no entry appears in a range that was read."""
    cluster, thread = services
    newest = max(topic.given_up)
    assert rows(topic.load(spark)) == topic.entries
    thread.run(_replaced_sequencer(cluster))
    with varlog.connect(topic.address, topic.name, create=False, timeout_s=WAIT_S) as log:
        assert log.tail() >= newest
        assert log.append(b"after").glsn > newest


async def _replaced_sequencer(cluster: TcpCluster) -> None:
    address = cluster.sequencer.address
    await cluster.sequencer.stop()
    await cluster.start_sequencer(address)
    await cluster.wait_nodes()


def test_an_archive_has_every_entry_and_can_be_read_with_the_log(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """R-USE-4: the job archive, of a sequenced topic."""
    path = str(tmp_path / "archive")
    done = archive(spark, topic.address, topic.name, path, range_records=25, trim=True, keep_records=10)
    assert done.rows_written == len(topic.entries)
    assert done.end == max(topic.entries) + 1, "what was given up at the end waits for an entry behind it"
    with varlog.connect(topic.address, topic.name, create=False, timeout_s=WAIT_S) as log:
        assert log.trimmed() > 1
    topic.append(5)
    assert rows(topic.load(spark, archive=path)) == topic.entries
    again = archive(spark, topic.address, topic.name, path, range_records=25)
    assert again.rows_written == 5 and again.begin == 1
    assert rows(topic.load(spark, archive=path)) == topic.entries
    manifest = sorted((tmp_path / "archive" / "_varlog" / topic.name).glob("*.json"))
    assert {json.loads(found.read_text())["version"] for found in manifest} == {1, 2}
    with pytest.raises(
        PreconditionFailed, match="is of a sequenced topic, some positions of which hold no entry"
    ):
        restore(spark, path, topic.address, f"{topic.name}-again", source_topic=topic.name)


def test_an_audit_proves_every_unit_of_every_chain(spark: SparkSession, topic: Topic) -> None:
    """R-USE-4, law 8: byte-equal along the chain, every position once."""
    found = audit(spark, topic.address, topic.name)
    assert found.clean, found.findings
    assert len(found.replicas) == 6 and {one.result for one in found.replicas} == {"sound"}
    assert found.topics[0].end - found.topics[0].begin == sum(one.entries for one in found.replicas) // 3


def test_an_audit_finds_a_turned_bit(spark: SparkSession, cluster: TcpCluster, topic: Topic) -> None:
    found = audit(spark, topic.address, topic.name)
    victim = next(one for one in found.replicas if one.entries)
    segment = min(Path(victim.path).glob("*.seg"))
    with segment.open("r+b") as file:
        content = bytearray(file.read())
        at = content.index(b"entry 3 of 40") if b"entry 3 of 40" in content else content.index(b"entry ")
        file.seek(at)
        file.write(b"E")
    spoiled = audit(spark, topic.address, topic.name)
    assert not spoiled.clean
    assert {(one.kind, one.node) for one in spoiled.findings} == {("damage", victim.node)}


def test_compact_and_report_work(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    key = "split(data::string, ' ')[1]"
    done = compact(spark, topic.address, topic.name, str(tmp_path / "snapshot"), key=key)
    assert (done.entries, done.rows) == (60, 40)
    result = report(spark, topic.address, topic.name)
    assert result.entries == 60


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(b"row",)], "data binary")


@pytest.mark.parametrize("writer", [{}, {"writer": "nightly", "batch": "0"}])
def test_a_write_is_refused_before_a_row_is_written(
    frame: DataFrame, topic: Topic, writer: dict[str, str]
) -> None:
    writing = frame.write.format("varlog").mode("append")
    with pytest.raises(PySparkException, match="is a sequenced topic, and an exactly-once write needs"):
        writing.options(address=topic.address, topic=topic.name, **writer).save()
    with varlog.connect(topic.address, topic.name, create=False, timeout_s=WAIT_S) as log:
        assert log.tail() == max(topic.given_up)


def test_copies_that_keep_positions_are_refused_both_ways(spark: SparkSession, topic: Topic) -> None:
    with pytest.raises(PreconditionFailed, match="is sequenced: junk positions have no entry"):
        mirror(spark, topic.address, topic.name, topic.address, f"{topic.name}-copy", continuous=False)
    with varlog.connect(topic.address, f"{topic.name}-plain", create=True, timeout_s=WAIT_S) as log:
        log.append(b"one")
    with pytest.raises(
        PreconditionFailed, match="is sequenced, and a copy that keeps positions needs a committed one"
    ):
        mirror(spark, topic.address, f"{topic.name}-plain", topic.address, topic.name, continuous=False)


def test_the_topic_of_a_directory_cannot_be_read_from_its_files(spark: SparkSession, tmp_path: Path) -> None:
    with varlog.open(tmp_path / "data", "fast", ordering="sequenced") as log:
        log.append(b"one")
    reading = spark.read.format("varlog").options(path=str(tmp_path / "data"), topic="fast")
    with pytest.raises(
        PySparkException, match="is a sequenced topic, and those of a directory cannot be read"
    ):
        reading.load().collect()
