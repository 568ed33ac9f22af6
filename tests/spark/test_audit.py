"""An audit of a real cluster: a sound log is clean; whatever is planted in one replica's files is found, and named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

import varlog
from varlog.cli.spark.audit import show, summary
from varlog.model.batch import BatchHeader, pack, place_batch, walk
from varlog.model.errors import Unavailable, UnknownTopic
from varlog.model.ids import LogStreamID, TopicID
from varlog.runtime.loop_thread import LoopThread
from varlog.spark.jobs.audit import AuditReport, Finding, FindingKind, audit
from varlog.spark.options import OptionError
from varlog.storage.committed.row_file import ROW_BYTES, ROW_TYPE, encode_row_file
from varlog.testing.tcp_cluster import WAIT_S, TcpCluster, running

# One stream, or two that share the order: entry n of the topic is at GLSN n either way.
TOPICS = {
    "clean": 2,
    "body": 2,
    "header": 2,
    "first-header": 1,
    "diverged": 2,
    "gap": 2,
    "reordered": 1,
    "moved": 1,
    "trimmed": 2,
}
BATCHES = 24
ENTRIES = 10
# Large enough that a node's index knows every batch, and that it serves what lies between two of them unseen.
ENTRY_BYTES = 1000


class Planted:
    """A cluster without a manager: what is planted stays, because nothing requests repairs."""

    def __init__(self, cluster: TcpCluster, thread: LoopThread, volumes: Path) -> None:
        self.cluster = cluster
        self.thread = thread
        self.volumes = volumes
        self.address = cluster.repository.address

    def fill(self, topic: str, streams: int) -> None:
        with varlog.connect(self.address, topic, create=True, streams=streams, timeout_s=WAIT_S) as log:
            ids = [stream.log_stream for stream in log.streams]
            for number in range(BATCHES):
                entries = [b"%s %d %d" % (topic.encode(), number, n) for n in range(ENTRIES)]
                wide = [entry.ljust(ENTRY_BYTES, b".") for entry in entries]
                log.append_batch(wide, log_stream=ids[number % streams])

    def stream(self, topic: str) -> int:
        """The first of a topic: it has every other batch where there are two, the first among them."""
        with varlog.connect(self.address, topic, timeout_s=WAIT_S) as log:
            return log.streams[0].log_stream

    def replica(self, topic: str, node: int) -> Path:
        (path,) = (self.volumes / f"node-{node}").rglob(f"lsid={self.stream(topic)}")
        return path

    def batch(self, topic: str, node: int, number: int) -> tuple[Path, int, BatchHeader]:
        """Where a batch of the topic's first stream lies on a node: its file, its place in it."""
        (segment,) = self.replica(topic, node).glob("*.seg")
        content = segment.read_bytes()
        used = content[: len(content.rstrip(b"\0")) + 8]
        at, header = [found for _, found in zip(range(number + 1), walk(used), strict=False)][-1]
        return segment, at, header

    def stop(self, node: int) -> None:
        self.thread.run(self.cluster.stop_node(node - 1))

    def start(self, node: int) -> None:
        self.thread.run(self._start(node))

    async def _start(self, node: int) -> None:
        """Until the node answers readers: it does once the repository has sent its watermarks."""
        await self.cluster.start_node(node - 1)
        async with (
            asyncio.timeout(WAIT_S),
            varlog.aio.connect(self.address, "clean", timeout_s=WAIT_S) as log,
        ):
            one, log_stream = log.connector.on_node(node), log.streams[0].log_stream
            while True:
                try:
                    await one.measure(log_stream, 1, 2)
                    return
                except Unavailable:
                    await asyncio.sleep(0.01)

    def wait_stopped(self, topic: str) -> None:
        self.thread.run(self._wait_stopped(topic))

    async def _wait_stopped(self, topic: str) -> None:
        async with asyncio.timeout(WAIT_S), varlog.aio.admin(self.address, timeout_s=WAIT_S) as admin:
            while not any(found.stopped for found in await admin.topics() if found.name == topic):
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    volumes = tmp_path_factory.mktemp("audit")
    with running(volumes) as (cluster, thread):
        made = Planted(cluster, thread, volumes)
        for topic, streams in TOPICS.items():
            made.fill(topic, streams)
        thread.run(cluster.manager.stop())
        yield made


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int) -> None:
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 1]))


def only(report: AuditReport, kind: FindingKind) -> Finding:
    (finding,) = report.findings
    assert not report.clean
    assert finding.kind is kind
    return finding


def names(planted: Planted, finding: Finding, topic: str, node: int) -> tuple[int, int]:
    """Checks that the finding names the replica; returns the positions that it names."""
    assert (finding.topic, finding.log_stream, finding.node) == (topic, planted.stream(topic), node)
    assert Path(finding.path) == planted.replica(topic, node)
    return finding.llsn, finding.glsn


def test_a_sound_topic_is_clean_and_every_replica_was_read(spark: SparkSession, planted: Planted) -> None:
    """R-USE-4: the job audit."""
    steps: list[str] = []
    report = audit(spark, planted.address, "clean", progress=lambda what, done, total: steps.append(what))
    assert report.clean, report.findings
    assert {replica.result for replica in report.replicas} == {"sound"}
    assert len(report.replicas) == 6
    assert sum(replica.entries for replica in report.replicas) == 3 * BATCHES * ENTRIES
    assert report.bytes > 3 * BATCHES * ENTRIES * ENTRY_BYTES
    assert (report.topics[0].begin, report.topics[0].end) == (1, BATCHES * ENTRIES + 1)
    assert "reading replicas" in steps


def test_a_part_of_a_topic_is_looked_at_by_its_positions(spark: SparkSession, planted: Planted) -> None:
    report = audit(spark, planted.address, "clean", begin=15, end=106)
    assert report.clean, report.findings
    assert sum(replica.entries for replica in report.replicas) == 3 * (106 - 15)


def test_a_flipped_byte_in_a_body_is_found_with_its_replica_and_position(
    spark: SparkSession, planted: Planted
) -> None:
    segment, at, header = planted.batch("body", node=2, number=5)
    flip(segment, at + 64 + 500)
    finding = only(audit(spark, planted.address, "body"), FindingKind.DAMAGE)
    assert names(planted, finding, "body", 2) == (header.first_llsn, 101)
    assert "the body's checksum is wrong" in finding.found


def test_a_flipped_byte_in_a_header_is_found_and_what_is_behind_it_is_read(
    spark: SparkSession, planted: Planted
) -> None:
    segment, at, header = planted.batch("header", node=3, number=4)
    flip(segment, at + 17)
    report = audit(spark, planted.address, "header")
    finding = only(report, FindingKind.DAMAGE)
    assert names(planted, finding, "header", 3) == (header.first_llsn, 81)
    assert "checksum is wrong" in finding.found


def test_a_header_that_the_node_itself_refuses_is_found_as_well(
    spark: SparkSession, planted: Planted
) -> None:
    segment, at, _ = planted.batch("first-header", node=1, number=0)
    flip(segment, at + 3)
    finding = only(audit(spark, planted.address, "first-header"), FindingKind.DAMAGE)
    assert names(planted, finding, "first-header", 1) == (1, 1)
    assert "the magic number is wrong" in finding.found


def test_other_content_with_a_right_checksum_is_found_as_a_divergence(
    spark: SparkSession, planted: Planted
) -> None:
    """R-USE-4: the job audit."""
    segment, at, header = planted.batch("diverged", node=1, number=3)
    other = pack(
        [b"forged".ljust(ENTRY_BYTES, b".")] * ENTRIES,
        producer=header.producer,
        sequence=header.sequence,
        time_us=header.time_us,
    )
    place_batch(other, header.epoch, header.first_llsn)
    assert len(other) == header.size
    overwrite(segment, at, bytes(other))
    finding = only(audit(spark, planted.address, "diverged"), FindingKind.DIVERGENCE)
    assert names(planted, finding, "diverged", 1) == (header.first_llsn, 61)
    assert finding.expected.endswith("as on nodes 2, 3")


def test_a_batch_that_is_missing_on_one_replica_is_found_as_a_gap(
    spark: SparkSession, planted: Planted
) -> None:
    segment, at, header = planted.batch("gap", node=2, number=6)
    _, behind, next_header = planted.batch("gap", node=2, number=7)
    overwrite(segment, at, segment.read_bytes()[behind : behind + next_header.size])
    report = audit(spark, planted.address, "gap")
    gaps = [finding for finding in report.findings if finding.kind is FindingKind.GAP]
    assert [names(planted, finding, "gap", 2) for finding in gaps] == [(header.first_llsn, 121)]
    assert {finding.node for finding in report.findings} == {2}


def move_last_batch(planted: Planted, topic: str, node: int, by: int) -> None:
    """Order the newest batch of a replica further on than it was, with right checksums. The repository notices when the node
    reports, and stops the topic: wait for that, because a stopped topic ends at the newest position that any node knows."""
    planted.stop(node)
    path = planted.replica(topic, node) / "commits.log"
    content = path.read_bytes()
    rows = np.frombuffer(content[ROW_BYTES : len(content) // ROW_BYTES * ROW_BYTES], ROW_TYPE)
    rows = rows[rows["count"] > 0]
    # Rows are merged before they are written, as many as there are at that moment: the newest batch gets its own row.
    before, batch = rows[-1:].copy(), rows[-1:].copy()
    before["count"] -= ENTRIES
    for field in ("llsn", "glsn"):
        batch[field] += before["count"]
    batch["count"] = ENTRIES
    batch["glsn"] += by
    batch["high_watermark"] += by
    rows = np.concatenate([rows[:-1], before[before["count"] > 0], batch])
    topic_id, stream = (int.from_bytes(content[at : at + 8], "little") for at in (8, 16))
    path.write_bytes(encode_row_file(TopicID(topic_id), LogStreamID(stream), rows))
    planted.start(node)
    planted.wait_stopped(topic)


def test_a_replica_with_another_order_is_found_as_a_divergence(spark: SparkSession, planted: Planted) -> None:
    """And as nothing else: the stopped topic ends behind the four positions that only this replica has, which are not missing."""
    move_last_batch(planted, "reordered", 3, by=4)
    stopped = audit(spark, planted.address, "reordered")
    assert stopped.topics[0].end == BATCHES * ENTRIES + 1 + 4
    # As if the tail had been read before the node reported.
    before = audit(spark, planted.address, "reordered", end=BATCHES * ENTRIES + 1)
    assert before.topics[0].end == BATCHES * ENTRIES + 1
    for report in (stopped, before):
        assert {finding.kind for finding in report.findings} == {FindingKind.DIVERGENCE}
        *shorter, moved = report.findings
        assert names(planted, moved, "reordered", 3) == (231, 235)
        assert moved.found == "10 entries from GLSN 235 on"
        # Most replicas have one run there; this one's ends where the moved batch begins.
        ((llsn, glsn),) = (names(planted, finding, "reordered", 3) for finding in shorter)
        assert llsn == glsn < 231
        assert shorter[0].found == f"{231 - llsn} entries from GLSN {glsn} on"


def test_positions_that_no_replica_has_are_found_as_a_gap_of_the_topic(
    spark: SparkSession, planted: Planted
) -> None:
    for node in (1, 2, 3):
        move_last_batch(planted, "moved", node, by=4)
    report = audit(spark, planted.address, "moved")
    (finding,) = report.findings
    assert (finding.kind, finding.glsn) == (FindingKind.GAP, 231)
    assert finding.found.startswith("GLSN 231 to 234 are in no log stream")


def test_what_is_trimmed_is_not_missed(spark: SparkSession, planted: Planted) -> None:
    with varlog.connect(planted.address, "trimmed", timeout_s=WAIT_S) as log:
        log.trim(45)
    report = audit(spark, planted.address, "trimmed")
    assert report.clean, report.findings
    assert (report.topics[0].begin, report.topics[0].end) == (46, BATCHES * ENTRIES + 1)


def test_a_node_that_is_away_is_a_finding_and_not_a_proof(spark: SparkSession, planted: Planted) -> None:
    planted.stop(2)
    try:
        report = audit(spark, planted.address, "clean")
    finally:
        planted.start(2)
    assert not report.clean
    assert {(finding.kind, finding.node) for finding in report.findings} == {(FindingKind.UNREAD, 2)}
    assert [replica.result for replica in report.replicas if replica.node == 2] == ["1 unread"] * 2


def test_the_report_is_for_people_and_for_programs(
    spark: SparkSession, planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    import dataclasses

    clean, damaged = (audit(spark, planted.address, topic) for topic in ("clean", "body"))
    assert summary(clean).startswith("clean: 240 positions of 1 topics on 6 replicas")
    show(damaged)
    shown = capsys.readouterr().out
    assert "the body's checksum is wrong" in shown
    assert str(planted.replica("body", 2)) in shown.replace("\n", "")
    assert "NOT clean: 1 findings" in shown
    as_json = json.loads(json.dumps(dataclasses.asdict(damaged)))
    assert as_json["findings"][0]["kind"] == "damage"
    assert as_json["clean"] is False


def test_what_cannot_be_audited_is_reported(spark: SparkSession, planted: Planted) -> None:
    with pytest.raises(UnknownTopic, match="no topic 'nowhere'"):
        audit(spark, planted.address, "nowhere")
    with pytest.raises(OptionError, match="say which, with 'topic'"):
        audit(spark, planted.address, begin=3)
