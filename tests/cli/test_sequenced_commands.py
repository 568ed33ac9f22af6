"""The commands on a sequenced topic of an embedded directory: what they print, their JSON, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import bad, good, varlog


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with five entries in the sequenced topic `fast`."""
    path = tmp_path / "data"
    good(varlog("topic", "create", "fast", "--ordering", "sequenced", data=path))
    good(varlog("append", "fast", "a", "b", "c", "d", "e", data=path))
    return path


def test_entries_are_appended_read_followed_and_trimmed_as_in_any_topic(data: Path) -> None:
    assert good(varlog("append", "fast", "f", data=data)) == "position 6 (log stream 1, LLSN 6)\n"
    assert good(varlog("read", "fast", "2", data=data)) == "b\n"
    assert good(varlog("tail", "fast", data=data)).split() == ["a", "b", "c", "d", "e", "f"]
    good(varlog("trim", "fast", "2", data=data))
    assert "position 2 is trimmed" in bad(varlog("read", "fast", "2", data=data))
    assert "position 7 is not written yet" in bad(varlog("read", "fast", "7", data=data))


def test_a_sequenced_topic_is_listed_and_described(data: Path) -> None:
    assert "sequenced" in good(varlog("topic", "list", data=data))
    output = good(varlog("topic", "describe", "fast", data=data))
    assert "sequenced ordering, positions 1 to 5" in output
    assert "positions 1 on: log stream 1" in output and "leased" in output
    found = json.loads(good(varlog("topic", "describe", "fast", "--json", data=data)))
    assert (found["ordering"], found["grouping"], found["newest"]) == ("sequenced", "stream", 5)
    assert found["projection"]["chains"][0]["nodes"] == [1]
    assert found["units"]["1"]["1"]["newest"] == 5


def test_status_and_dump_show_log_units(data: Path) -> None:
    assert "1:serves" in good(varlog("status", data=data))
    assert good(varlog("dump", str(data), "--verify")).count("good") == 1


def test_a_topic_keeps_its_ordering(data: Path) -> None:
    output = bad(varlog("topic", "create", "fast", "--if-not-exists", data=data))
    assert "already exists and its ordering is sequenced" in output
    good(varlog("topic", "create", "fast", "--if-not-exists", "--ordering", "sequenced", data=data))


@pytest.mark.parametrize("option", [["--stripe-size", "8"], ["--grouping", "node"]])
def test_what_only_sequenced_topics_have_is_refused_for_others(tmp_path: Path, option: list[str]) -> None:
    output = bad(varlog("topic", "create", "x", *option, data=tmp_path), 2)
    assert f"{option[0]} is for sequenced topics" in output


def test_stripes_take_turns(tmp_path: Path) -> None:
    """R-SEQ-3: round robin over log streams, `--stripe-size` positions each; a batch has no more entries than that."""
    shape = ("--ordering", "sequenced", "--streams", "2", "--stripe-size", "2", "--grouping", "node")
    good(varlog("topic", "create", "wide", *shape, data=tmp_path))
    for number in range(1, 6):
        good(varlog("append", "wide", str(number), data=tmp_path))
    output = [json.loads(line) for line in good(varlog("tail", "wide", "--json", data=tmp_path)).splitlines()]
    assert [entry["data"] for entry in output] == ["1", "2", "3", "4", "5"]
    streams = [entry["log_stream"] for entry in output]
    assert streams == [streams[0]] * 2 + [streams[2]] * 2 + [streams[0]]
    assert "2 positions per stripe" in good(varlog("topic", "describe", "wide", data=tmp_path))
    assert "over the limit of 2" in bad(varlog("append", "wide", "a", "b", "c", data=tmp_path), 2)


def test_a_deleted_topic_is_gone(data: Path) -> None:
    good(varlog("topic", "delete", "fast", "--yes", data=data))
    assert "fast" not in good(varlog("topic", "list", data=data))
