"""The stream reader, asked as Spark asks it, against a cluster: offsets, limits, tasks, and checkpoints that no longer fit."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import varlog
from tests.spark.logs import LiveTopic
from varlog.runtime.loop_thread import LoopThread
from varlog.spark.options import OptionError, read_options
from varlog.spark.read.partition import LogPartition
from varlog.spark.read.planning_rules import ReadPiece
from varlog.spark.read.resolve_rules import MissingOffsets, TrimmedOffsets
from varlog.spark.stream.offsets import (
    CheckpointError,
    EntriesMissing,
    EntriesTrimmed,
    ForeignCheckpoint,
    Json,
    Offset,
    TopicGone,
    TopicOffset,
    TopicRecreated,
)
from varlog.spark.stream.stream_reader import StreamReader
from varlog.testing.tcp_cluster import CLUSTER, WAIT_S, TcpCluster

ALL = ReadAllAvailable()


@pytest.fixture
def topic(cluster: TcpCluster, request: pytest.FixtureRequest) -> Iterator[LiveTopic]:
    """A topic of two streams for this test alone."""
    made = LiveTopic(cluster.repository.address, request.node.originalname.removeprefix("test_")[:90])
    yield made
    made.log.close()


def reader_of(live: LiveTopic, /, **options: str) -> StreamReader:
    return StreamReader(read_options({**live.source, "timeout": "20", **options}, stream=True))


def at(topic: LiveTopic, glsn: int) -> Json:
    return Offset(CLUSTER, {topic.name: TopicOffset(topic.log.topic.topic, glsn)}).to_json()


def glsn_in(offset: Json, name: str) -> int:
    return Offset.of_json(offset).places[name].glsn


def step(reader: StreamReader, start: Json) -> Json:
    """One micro-batch further, by the reader's own limits."""
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def pieces(reader: StreamReader, start: Json, end: Json) -> list[ReadPiece]:
    return [cast(LogPartition, partition).piece for partition in reader.partitions(start, end)]


def rows(reader: StreamReader, start: Json, end: Json) -> list[tuple[int, bytes]]:
    """What all tasks of a micro-batch read, in order; each task's reader is another process's."""
    found: list[tuple[int, bytes]] = []
    for partition in reader.partitions(start, end):
        for batch in pickle.loads(pickle.dumps(StreamReader(reader.options))).read(partition):
            assert isinstance(batch, pa.RecordBatch)
            found += zip(batch["glsn"].to_pylist(), batch["data"].to_pylist(), strict=True)
    return sorted(found)


# --- Where it begins ----------------------------------------------------------------------------------------------------


def test_a_stream_begins_where_the_options_point(topic: LiveTopic) -> None:
    topic.append(20)
    topic.log.trim(5)
    first = {
        "earliest": 6,
        "latest": 21,
        "8": 8,
        json.dumps({topic.name: "latest"}): 21,
        "21": 21,
    }
    for option, glsn in first.items():
        assert reader_of(topic, startingOffsets=option).initialOffset() == at(topic, glsn)


def test_a_stream_since_a_time_has_the_entries_of_that_time_on(topic: LiveTopic) -> None:
    topic.append(20)
    since_us = topic.entries()[-1].time_us + 1
    while topic.entries()[-1].time_us < since_us:
        topic.append(1)
    wanted = [entry.glsn for entry in topic.entries() if entry.time_us >= since_us]
    for slack, earlier in ("60", 20), ("0", 0):
        reader = reader_of(topic, startingTimestamp=str(since_us), timestampSlack=slack)
        start = reader.initialOffset()
        assert start == at(topic, wanted[0] - earlier)
        assert [glsn for glsn, _ in rows(reader, start, reader.latestOffset(start, ALL))] == wanted
    after = reader_of(topic, startingTimestamp=str(since_us + 10**9), timestampSlack="0")
    assert after.initialOffset() == at(topic, wanted[-1] + 1)


def test_a_nonexistent_start_is_refused_by_its_option(topic: LiveTopic) -> None:
    topic.append(20)
    topic.log.trim(5)
    with pytest.raises(TrimmedOffsets, match="startingOffsets"):
        reader_of(topic, startingOffsets="5").initialOffset()
    with pytest.raises(MissingOffsets, match="startingOffsets"):
        reader_of(topic, startingOffsets="22").initialOffset()
    assert reader_of(topic, startingOffsets="5", failOnDataLoss="false").initialOffset() == at(topic, 6)
    with pytest.raises(OptionError, match="there is no topic 'nowhere'"):
        reader_of(topic, topic="nowhere").initialOffset()
    with pytest.raises(OptionError, match="position for topic 'other'"):
        reader_of(topic, startingOffsets='{"other": 3}').initialOffset()


# --- How far ------------------------------------------------------------------------------------------------------------


def test_a_micro_batch_keeps_the_limit_of_records(topic: LiveTopic) -> None:
    topic.append(25)
    reader = reader_of(topic, maxRecordsPerTrigger="10")
    offsets = [reader.initialOffset()]
    while (end := step(reader, offsets[-1])) != offsets[-1]:
        offsets.append(end)
    assert [glsn_in(offset, topic.name) for offset in offsets] == [1, 11, 21, 26]
    assert reader.reportLatestOffset() == at(topic, 26)
    assert glsn_in(reader.latestOffset(at(topic, 1), ALL), topic.name) == 26


def test_a_micro_batch_keeps_the_limit_of_bytes(topic: LiveTopic) -> None:
    for _ in range(40):
        topic.log.append(bytes(10_000))
    reader = reader_of(topic, maxBytesPerTrigger="100000")
    end = step(reader, reader.initialOffset())
    data = [data for _, data in rows(reader, at(topic, 1), end)]
    assert 60_000 <= sum(map(len, data)) <= 100_000
    tight = reader_of(topic, maxBytesPerTrigger="1")
    assert step(tight, at(topic, 1)) == at(topic, 2)


def test_too_few_records_wait_for_more_but_not_when_no_more_are_taken(topic: LiveTopic) -> None:
    topic.append(9)
    reader = reader_of(topic, minRecordsPerTrigger="10")
    assert step(reader, at(topic, 1)) == at(topic, 1)
    topic.append(1)
    assert step(reader, at(topic, 1)) == at(topic, 11)
    last = reader_of(topic, minRecordsPerTrigger="100")
    last.prepareForTriggerAvailableNow()
    topic.append(200)
    assert step(last, at(topic, 1)) == at(topic, 11)
    assert step(last, at(topic, 11)) == at(topic, 11)


def test_a_repository_that_is_away_for_a_while_is_waited_for(
    services: tuple[TcpCluster, LoopThread], topic: LiveTopic
) -> None:
    cluster, thread = services
    topic.append(5)
    reader = reader_of(topic)
    start, address = reader.initialOffset(), cluster.repository.address
    thread.run(cluster.repository.stop())
    found: list[Json] = []
    asking = threading.Thread(target=lambda: found.append(reader.latestOffset(start, ALL)))
    asking.start()
    thread.run(cluster.start_repository(address))
    asking.join(120)
    assert found == [at(topic, 6)]


# --- Which tasks --------------------------------------------------------------------------------------------------------


def test_a_micro_batch_that_is_run_again_has_the_same_tasks(topic: LiveTopic) -> None:
    topic.append(200)
    start, end = at(topic, 11), at(topic, 191)
    planned = [pieces(reader_of(topic, minPartitions="7"), start, end) for _ in range(3)]
    assert planned[0] == planned[1] == planned[2]
    assert len(planned[0]) >= 7
    assert sum(piece.end - piece.begin for piece in planned[0]) == 180
    limited = pieces(reader_of(topic, maxRecordsPerPartition="50"), start, end)
    assert all(piece.end - piece.begin <= 50 for piece in limited)
    assert rows(reader_of(topic, minPartitions="7"), start, end) == [
        (entry.glsn, entry.data) for entry in topic.entries() if 11 <= entry.glsn < 191
    ]


def test_a_log_stream_made_meanwhile_is_found(topic: LiveTopic) -> None:
    topic.append(10)
    reader = reader_of(topic)
    assert len(rows(reader, at(topic, 1), step(reader, at(topic, 1)))) == 10
    with varlog.admin(topic.address, timeout_s=WAIT_S) as admin:
        made = admin.add_stream(topic.name).log_stream
    topic.log.connector.view()
    topic.log.append(b"in the new one", log_stream=made)
    assert rows(reader, at(topic, 11), step(reader, at(topic, 11))) == [(11, b"in the new one")]


def test_a_topic_that_comes_later_is_read_from_its_beginning(topic: LiveTopic) -> None:
    topic.append(3)
    reader = reader_of(topic, topic="", topicPattern=f"{topic.name}.*")
    start = step(reader, reader.initialOffset())
    later = LiveTopic(topic.address, f"{topic.name}-2")
    later.append(4)
    reader.prepareForTriggerAvailableNow()
    named = step(reader, start)
    end = step(reader, named)
    later.log.close()
    assert glsn_in(named, later.name) == 1
    assert [data for _, data in rows(reader, start, named)] == []
    assert [glsn for glsn, _ in rows(reader, named, end)] == [1, 2, 3, 4]
    assert step(reader, end) == end


# --- Checkpoints that do not fit ----------------------------------------------------------------------------------------


def both_ways(reader: StreamReader, start: Json, end: Json, wrong: type[CheckpointError]) -> str:
    """A query that continues requests the latest offset first; one that repeats a micro-batch requests its tasks."""
    with pytest.raises(wrong) as latest:
        reader.latestOffset(start, ALL)
    with pytest.raises(wrong) as planned:
        reader.partitions(start, end)
    assert str(latest.value) == str(planned.value)
    return str(latest.value)


def test_a_checkpoint_of_something_else_is_recognised(topic: LiveTopic) -> None:
    topic.append(3)
    place = {topic.name: TopicOffset(topic.log.topic.topic, 1)}
    elsewhere = Offset(CLUSTER + 1, place).to_json()
    reader = reader_of(topic)
    assert "cluster 6, and this is cluster 5" in both_ways(reader, elsewhere, elsewhere, ForeignCheckpoint)
    other = Offset(CLUSTER, {"other": TopicOffset(1, 1)}).to_json()
    assert "topic 'other', which option topic leaves out" in both_ways(
        reader, other, other, ForeignCheckpoint
    )
    both_ways(reader_of(topic, failOnDataLoss="false"), {"logOffset": 3}, {"logOffset": 5}, ForeignCheckpoint)


def test_what_was_trimmed_before_it_was_read_is_an_error_or_skipped(topic: LiveTopic) -> None:
    topic.append(20)
    topic.log.trim(10)
    start, end = at(topic, 5), at(topic, 16)
    assert "oldest that can be read is 11" in both_ways(reader_of(topic), start, end, EntriesTrimmed)
    lenient = reader_of(topic, failOnDataLoss="false")
    assert [glsn for glsn, _ in rows(lenient, start, end)] == [11, 12, 13, 14, 15]
    assert [glsn for glsn, _ in rows(lenient, at(topic, 2), at(topic, 8))] == []
    assert lenient.latestOffset(start, ALL) == at(topic, 21)


def test_a_log_that_lost_its_end_is_an_error_or_continued_from_there(topic: LiveTopic) -> None:
    topic.append(5)
    start = at(topic, 100)
    assert "which ends before 6: entries are missing" in both_ways(
        reader_of(topic), start, start, EntriesMissing
    )
    lenient = reader_of(topic, failOnDataLoss="false")
    assert lenient.latestOffset(start, ALL) == at(topic, 6)
    assert rows(lenient, start, at(topic, 6)) == []


def test_a_recreated_topic_is_not_mistaken_for_the_old_one(topic: LiveTopic) -> None:
    topic.append(5)
    reader = reader_of(topic)
    start = reader.latestOffset(at(topic, 1), ALL)
    with varlog.admin(topic.address, timeout_s=WAIT_S) as admin:
        admin.delete_topic(topic.name)
        gone = both_ways(reader, start, start, TopicGone)
        assert f"topic {topic.name!r}, which no longer exists" in gone
        recreated = admin.create_topic(topic.name, streams=1)
    assert f"has id {recreated.topic}" in both_ways(reader, start, start, TopicRecreated)
    lenient = reader_of(topic, failOnDataLoss="false")
    found = Offset(CLUSTER, {topic.name: TopicOffset(recreated.topic, 1)}).to_json()
    assert lenient.latestOffset(start, ALL) == found
    assert rows(lenient, start, found) == []


# --- The named reader ---------------------------------------------------------------------------------------------------


def test_a_named_reader_holds_back_trims_that_respect_it(topic: LiveTopic) -> None:
    topic.append(20)
    reader = reader_of(topic, reader="billing", startingOffsets="4")
    start = reader.initialOffset()
    assert [(found.name, found.position) for found in topic.log.readers()] == [("billing", 3)]
    reader.latestOffset(start, ALL)
    reader.commit(at(topic, 12))
    assert [found.position for found in topic.log.readers()] == [11]
    with pytest.raises(varlog.ReaderBehind, match="billing"):
        topic.log.trim(12, respect_readers=True)
    topic.log.trim(11, respect_readers=True)
    reader.latestOffset(at(topic, 21), ALL)
    assert [found.position for found in topic.log.readers()] == [20]


def test_a_reader_whose_position_cannot_be_reported_reads_on_and_reports_the_next(
    topic: LiveTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("varlog.spark.stream.stream_reader.RETRY_S", 0.0)
    topic.append(5)
    reader = reader_of(topic, reader="billing")
    reader.commit(at(topic, 1000))
    assert topic.log.readers() == ()
    assert reader.latestOffset(at(topic, 1), ALL) == at(topic, 6)
    assert len(rows(reader, at(topic, 1), at(topic, 6))) == 5
    reader.commit(at(topic, 6))
    assert [found.position for found in topic.log.readers()] == [5]
