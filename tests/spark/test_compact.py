"""Snapshots: the newest value of each key, good for a position, from which a state machine continues with the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.logs import LiveTopic
from varlog.model.errors import PreconditionFailed
from varlog.spark.jobs.compact import CompactReport, compact
from varlog.spark.options import OptionError
from varlog.spark.snapshot import StoredSnapshot, read_snapshot
from varlog.testing.tcp_cluster import TcpCluster

KEY = "get_json_object(data::string, '$.id')"
VALUE = "get_json_object(data::string, '$.at')"
DELETE = "get_json_object(data::string, '$.gone') = 'true'"

State = dict[str, str]


@pytest.fixture
def topic(cluster: TcpCluster, request: pytest.FixtureRequest) -> Iterator[LiveTopic]:
    live = LiveTopic(cluster.repository.address, request.node.name.partition("[")[0][-40:].lstrip("_"))
    yield live
    live.log.close()


@pytest.fixture
def run(spark: SparkSession, topic: LiveTopic) -> Callable[..., CompactReport]:
    settings = {"key": KEY, "value": VALUE, "delete": DELETE}
    return lambda path, **options: compact(spark, topic.address, topic.name, str(path), **settings | options)


def append_facts(topic: LiveTopic, *facts: Mapping[str, object]) -> None:
    for fact in facts:  # separate appends, so that both streams get some
        topic.log.append(json.dumps(fact).encode())


def apply(state: State, data: bytes) -> None:
    """The state machine: what `KEY`, `VALUE` and `DELETE` express in SQL."""
    fact = json.loads(data)
    if "id" in fact:
        state[str(fact["id"])] = str(fact.get("at"))
        if fact.get("gone"):
            del state[str(fact["id"])]


def state_of(snapshot: StoredSnapshot) -> State:
    rows = [row for batch in snapshot.batches() for row in batch.to_pylist()]
    assert all(
        str(batch.schema.field("timestamp").type) == "timestamp[us, tz=UTC]" for batch in snapshot.batches()
    )
    assert len({row["key"] for row in rows}) == len(rows) == snapshot.about.rows
    return {row["key"]: row["value"] for row in rows}


def replayed(topic: LiveTopic) -> State:
    state: State = {}
    for entry in topic.entries():
        apply(state, entry.data)
    return state


def test_a_state_machine_starts_from_a_snapshot_and_the_tail(
    run: Callable[..., CompactReport], topic: LiveTopic, tmp_path: Path
) -> None:
    """R-USE-4: the job compact."""
    append_facts(topic, *({"id": number % 7, "at": number} for number in range(40)), {"note": "no key"})
    append_facts(topic, {"id": 3, "gone": True}, {"id": 5, "gone": True}, {"id": 5, "at": "back"})
    tried = run(tmp_path / "snapshot", dry_run=True)
    assert (tried.entries, list(tmp_path.iterdir())) == (44, [])
    report = run(tmp_path / "snapshot")
    assert (report.rows, report.deleted, report.skipped, report.position) == (6, 1, 1, 44)
    snapshot = read_snapshot(report.path)
    assert state_of(snapshot) == replayed(topic)

    append_facts(topic, {"id": 1, "at": "newer"}, {"id": 99, "at": "new"}, {"id": 0, "gone": True})
    state = state_of(snapshot)
    for entry in topic.entries(snapshot.position + 1):
        apply(state, entry.data)
    assert state == replayed(topic) and "99" in state


def test_a_snapshot_continues_from_an_older_one_also_when_the_log_is_trimmed(
    run: Callable[..., CompactReport], topic: LiveTopic, tmp_path: Path
) -> None:
    append_facts(topic, *({"id": number % 5, "at": number} for number in range(20)))
    first = run(tmp_path / "first")
    append_facts(topic, {"id": 1, "at": "newer"}, {"id": 2, "gone": True}, {"id": 7, "at": "new"})
    wanted = replayed(topic)
    topic.log.trim(15)
    with pytest.raises(PreconditionFailed, match=r"positions 1 to 15 .* are trimmed: give option 'archive'"):
        run(tmp_path / "whole")
    second = run(tmp_path / "second", since=first.path)
    assert (second.entries, second.since, second.position) == (3, 20, 23)
    assert state_of(read_snapshot(second.path)) == wanted
    third = run(tmp_path / "third", since=second.path)
    assert third.entries == 0 and state_of(read_snapshot(third.path)) == wanted
    assert read_snapshot(third.path).about.begin == 1
    with pytest.raises(OptionError, match="option 'key' is 'glsn', and the snapshot that 'since' names"):
        run(tmp_path / "other", since=first.path, key="glsn")


def test_an_empty_topic_has_an_empty_snapshot(
    run: Callable[..., CompactReport], topic: LiveTopic, tmp_path: Path
) -> None:
    report = run(tmp_path / "none")
    assert (report.rows, report.position, report.entries) == (0, 0, 0)
    assert state_of(read_snapshot(report.path)) == {}


def test_a_run_that_fails_leaves_nothing(
    run: Callable[..., CompactReport], topic: LiveTopic, tmp_path: Path
) -> None:
    append_facts(topic, {"id": 1})
    with pytest.raises(Exception, match="no such value"):
        run(tmp_path / "broken", value="raise_error('no such value')")
    assert list(tmp_path.iterdir()) == []
    run(tmp_path / "whole")
    with pytest.raises(PreconditionFailed, match="is there already: name a new directory"):
        run(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"key": "nobody"}, "option 'key' is 'nobody': .*nobody"),
        ({"key": "map(1, 2)"}, "which is map<int,int>: it cannot be a key"),
        ({"value": "1 +"}, "option 'value' is '1 \\+'"),
        ({"delete": "glsn"}, "option 'delete' is 'glsn', which is bigint: it must be true or false"),
    ],
)
def test_sql_that_cannot_be_used_is_named(
    run: Callable[..., CompactReport],
    topic: LiveTopic,
    tmp_path: Path,
    options: dict[str, str],
    named: str,
) -> None:
    with pytest.raises(OptionError, match=named):
        run(tmp_path / "snapshot", **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_whole_snapshot_is_not_read(
    run: Callable[..., CompactReport], topic: LiveTopic, tmp_path: Path
) -> None:
    append_facts(topic, {"id": 1, "at": 2})
    path = Path(run(tmp_path / "snapshot").path)
    with pytest.raises(PreconditionFailed, match=r"is no snapshot: there is no _snapshot\.json"):
        read_snapshot(str(tmp_path))
    with pytest.raises(PreconditionFailed, match=r"is no snapshot: there is no _snapshot\.json"):
        run(tmp_path / "next", since=str(tmp_path))
    next(path.glob("*.parquet")).unlink()
    for read in (lambda: read_snapshot(str(path)), lambda: run(tmp_path / "next", since=str(path))):
        with pytest.raises(PreconditionFailed, match=r"is damaged: part-.* is missing"):
            read()
