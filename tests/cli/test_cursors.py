"""`varlog reader`, `varlog writer`, `varlog trim --respect-readers` and `varlog topic create --first`, on an embedded directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import varlog as api
from tests.cli.test_commands import bad, good, varlog


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five entries in topic `orders`, of which `nightly` has read four and `slow one` two; `ingest` is at batch 3."""
    path = tmp_path / "data"
    with api.open(path, "orders", sync=False) as log:
        log.append_batch([b"a", b"b", b"c", b"d", b"e"])
        log.set_reader("nightly", 4)
        log.set_reader("slow one", 2)
        log.connector.begin_write("ingest", 3, kept=True)
        log.connector.end_write("ingest", 3)
    return path


def test_readers_are_listed_with_their_lag(data: Path) -> None:
    lines = good(varlog("reader", "list", data=data)).splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["topic", "reader", "position", "lag"],
        ["orders", "nightly", "4", "1"],
        ["orders", "slow", "one", "2"],
    ]
    assert all(line.endswith(" ago") for line in lines[1:])
    output = json.loads(good(varlog("reader", "list", "--topic", "orders", "--json", data=data)))
    assert [(one["name"], one["position"], one["newest"], one["lag"]) for one in output] == [
        ("nightly", 4, 5, 1),
        ("slow one", 2, 5, 3),
    ]
    assert all(0 <= one["age_s"] < 3600 for one in output)


def test_the_status_shows_readers_and_their_lag(data: Path) -> None:
    shown = good(varlog("status", data=data))
    assert any(line.split()[:4] == ["orders", "nightly", "4", "1"] for line in shown.splitlines())
    output = json.loads(good(varlog("status", "--json", data=data)))
    assert [(one["topic"], one["name"], one["lag"]) for one in output["readers"]] == [
        ("orders", "nightly", 1),
        ("orders", "slow one", 3),
    ]


def test_a_forgotten_reader_is_gone_and_an_unknown_one_is_named(data: Path) -> None:
    assert (
        good(varlog("reader", "forget", "orders", "slow one", data=data))
        == "reader slow one of orders is forgotten\n"
    )
    assert "topic 'orders' has no reader 'slow one': see `varlog reader list`" in bad(
        varlog("reader", "forget", "orders", "slow one", data=data)
    )
    assert "nope" in bad(varlog("reader", "forget", "nope", "nightly", data=data))
    good(varlog("reader", "forget", "orders", "nightly", data=data))
    assert good(varlog("reader", "list", data=data)) == "there are no named readers\n"


def test_writers_are_listed_and_forgotten(data: Path) -> None:
    line = good(varlog("writer", "list", data=data)).splitlines()[1]
    assert line.split()[:6] == ["orders", "ingest", "3", "finished", "5", "1"]
    (output,) = json.loads(good(varlog("writer", "list", "--topic", "orders", "--json", data=data)))
    assert (
        output["topic"],
        output["name"],
        output["batch"],
        output["begin"],
        output["streams"],
        output["finished"],
    ) == (
        "orders",
        "ingest",
        3,
        5,
        [1],
        True,
    )
    good(varlog("writer", "forget", "orders", "ingest", data=data))
    assert "no writer 'ingest'" in bad(varlog("writer", "forget", "orders", "ingest", data=data))
    assert good(varlog("writer", "list", data=data)) == "there are no named writers\n"


def test_a_trim_that_respects_readers_takes_nothing_from_them(data: Path) -> None:
    output = bad(varlog("trim", "orders", "3", "--respect-readers", data=data))
    assert "reader 'slow one' has read up to 2" in output
    assert good(varlog("read", "orders", "1", data=data)) == "a\n"
    good(varlog("trim", "orders", "2", "--respect-readers", data=data))
    good(varlog("trim", "orders", "3", data=data))
    assert good(varlog("tail", "orders", data=data)) == "d\ne\n"


def test_a_topic_may_begin_at_another_position(tmp_path: Path) -> None:
    good(varlog("topic", "create", "copy", "--first", "500", data=tmp_path))
    assert "no entries yet, the first will be 500" in good(varlog("topic", "describe", "copy", data=tmp_path))
    assert (
        good(varlog("append", "copy", "a", "b", data=tmp_path))
        == "positions 500 to 501 (log stream 1, LLSN 1 to 2)\n"
    )
    assert "positions 500 to 501, the first was 500" in good(
        varlog("topic", "describe", "copy", data=tmp_path)
    )
    assert good(varlog("tail", "copy", data=tmp_path)) == "a\nb\n"
    assert "position 499 is trimmed: the oldest that can be read is 500" in bad(
        varlog("read", "copy", "499", data=tmp_path)
    )
    listed = good(varlog("topic", "list", data=tmp_path)).splitlines()
    assert (listed[0].split()[-1], listed[1].split()[-1]) == ("first", "500")
    assert json.loads(good(varlog("topic", "list", "--json", data=tmp_path)))[0]["first"] == 500
    assert "its first position is 500, not 1" in bad(
        varlog("topic", "create", "copy", "--if-not-exists", data=tmp_path)
    )


def test_topics_that_begin_at_1_do_not_speak_of_it(data: Path) -> None:
    assert "first" not in good(varlog("topic", "list", data=data))
    assert "first" not in good(varlog("topic", "describe", "orders", data=data))
