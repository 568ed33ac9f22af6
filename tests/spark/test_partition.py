"""What a task reads, without Spark around it: pickled, read again, trimmed or lost meanwhile; from a cluster and from files."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

import varlog
from varlog.model.errors import UnknownTopic
from varlog.spark.columns import arrow_schema
from varlog.spark.options import LogLocation
from varlog.spark.read.origin import DirectoryOrigin, Origin, origin_at
from varlog.spark.read.partition import LogPartition
from varlog.spark.read.planning_rules import ReadPiece
from varlog.spark.read.reader import BatchReader
from varlog.spark.read.resolve_rules import MissingOffsets, TrimmedOffsets
from varlog.testing.tcp_cluster import WAIT_S, TcpCluster

Row = tuple[int, bytes]


def rows(partitions: Sequence[InputPartition], reader: BatchReader) -> list[Row]:
    """(position, data) of what the tasks read, each partition as it arrives at a task."""
    found: list[Row] = []
    for partition in partitions:
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema == arrow_schema()
            batch.validate(full=True)
            found += zip(batch.column("glsn").to_pylist(), batch.column("data").to_pylist(), strict=True)
    return sorted(found)


def filled(log: varlog.Log, batches: int) -> list[Row]:
    """Batches of one to forty entries, to both streams in turn."""
    for number in range(batches):
        stream = log.streams[number % len(log.streams)].log_stream
        log.append_batch([b"%d" % number] * (1 + number % 40), log_stream=stream)
    return [(entry.glsn, entry.data) for entry in log.subscribe(None, log.tail() + 1)]


def test_a_partition_that_is_trimmed_after_planning_fails_or_returns_what_is_left(
    cluster: TcpCluster,
) -> None:
    address = cluster.repository.address
    with varlog.connect(address, "late-trim", create=True, streams=2, timeout_s=WAIT_S) as log:
        everything = filled(log, 100)
        options = {"address": address, "topic": "late-trim", "minPartitions": "6"}
        strict, lenient = BatchReader(options), BatchReader({**options, "failOnDataLoss": "false"})
        planned = [(reader, reader.partitions()) for reader in (strict, lenient)]
        assert all(rows(partitions, reader) == everything for reader, partitions in planned)
        log.trim(900)
        with pytest.raises(TrimmedOffsets, match="'late-trim' is trimmed up to position 900"):
            rows(planned[0][1], strict)
        assert rows(planned[1][1], lenient) == everything[900:]


def test_a_partition_of_nonexistent_entries_is_missing_and_not_trimmed(cluster: TcpCluster) -> None:
    address = cluster.repository.address
    with varlog.connect(address, "lost", create=True, timeout_s=WAIT_S) as log:
        filled(log, 3)
        stream = log.streams[0].log_stream
    partition = LogPartition(LogLocation(address), ReadPiece("lost", stream, 1, 500))
    with pytest.raises(MissingOffsets, match=r"'lost'.*ends at LLSN 6, and had entries up to LLSN 499"):
        list(partition.read())


def test_a_partition_is_read_to_its_end_over_restarts_of_its_nodes(
    cluster: TcpCluster, restart_node: Callable[[int], None]
) -> None:
    address = cluster.repository.address
    with varlog.connect(address, "restarts", create=True, timeout_s=WAIT_S) as log:
        for number in range(40):
            log.append_batch([b"%d" % number + bytes(500_000)])
    reader = BatchReader({"address": address, "topic": "restarts", "maxRecordsPerPartition": "1000000"})
    positions: list[int] = []
    restarts = iter((0, 1, 2))
    for partition in reader.partitions():
        for batch in reader.read(partition):
            positions += batch.column("glsn").to_pylist()
            if (index := next(restarts, None)) is not None:
                restart_node(index)
    assert sorted(positions) == list(range(1, 41))


def test_a_partition_without_a_value_has_no_rows() -> None:
    reader = BatchReader({"address": "127.0.0.1:1", "topic": "orders"})
    assert list(reader.read(InputPartition(None))) == []


def test_rows_of_another_time_are_left_out_batch_by_batch(cluster: TcpCluster) -> None:
    address = cluster.repository.address
    with varlog.connect(address, "times", create=True, timeout_s=WAIT_S) as log:
        everything = filled(log, 50)
        stream, middle = log.streams[0].log_stream, log.read(500).time_us
    piece = ReadPiece("times", stream, 1, len(everything) + 1)
    parts = [
        LogPartition(LogLocation(address), piece, time=time)
        for time in ((0, middle), (middle, 1 << 62), (0, 0))
    ]
    reader = BatchReader({"address": address, "topic": "times"})
    before, after, none = (rows([part], reader) for part in parts)
    assert before + after == everything
    assert 0 < len(before) < 500
    assert none == []


def directory_rows(origin: Origin, topic: str) -> list[Row]:
    span = origin.span(topic)
    found: list[Row] = []
    for log_stream in span.streams:
        measured = origin.measure(topic, log_stream, span.oldest, span.end, 7)
        for batch in origin.batches(topic, log_stream, measured.begin, measured.end):
            found += zip(batch.column("glsn").to_pylist(), batch.column("data").to_pylist(), strict=True)
    return sorted(found)


def test_files_of_a_directory_are_read_while_it_grows_and_is_trimmed(tmp_path: Path) -> None:
    with varlog.open(tmp_path, "orders", streams=2) as log:
        everything = filled(log, 60)
        origin = origin_at(LogLocation(path=str(tmp_path)))
        assert origin.topics() == ["orders"]
        assert directory_rows(origin, "orders") == everything
        everything = filled(log, 60)
        assert directory_rows(origin, "orders") == everything
        log.trim(777)
        assert directory_rows(origin, "orders") == everything[777:]
        time_us = log.read(1000).time_us
        for stream in log.streams:
            found = origin.find_time("orders", stream.log_stream, time_us)
            assert found == log.connector.find_time(stream.log_stream, time_us)
        with pytest.raises(UnknownTopic):
            origin.span("payments")
    assert directory_rows(DirectoryOrigin(str(tmp_path)), "orders") == everything[777:]


KILLED = """
import os, sys, varlog
log = varlog.open(sys.argv[1], "orders", streams=2)
for number in range(50):
    log.append_batch([b"%d" % number] * 3, log_stream=log.streams[number % 2].log_stream)
os.kill(os.getpid(), 9)
"""


@pytest.mark.process
@pytest.mark.parametrize("writable", [True, False])
def test_what_a_killed_process_had_acknowledged_is_in_its_files(tmp_path: Path, writable: bool) -> None:
    """Also where SQLite may not put a file of its own beside them."""
    path = tmp_path / "data"
    killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (path / "metadata.db-wal").stat().st_size
    if not writable:
        (path / "metadata.db-shm").unlink()
        path.chmod(0o555)
    try:
        found = directory_rows(DirectoryOrigin(str(path)), "orders")
    finally:
        path.chmod(0o755)
    assert [glsn for glsn, _ in found] == list(range(1, 151))
    with varlog.open(path, "orders") as log:
        assert found == [(entry.glsn, entry.data) for entry in log.subscribe(1, 151)]


def test_looking_at_a_directory_changes_no_file(tmp_path: Path) -> None:
    with varlog.open(tmp_path, "orders") as log:
        filled(log, 30)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    directory_rows(DirectoryOrigin(str(tmp_path)), "orders")
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before
