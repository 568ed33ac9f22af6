"""The commands against an embedded directory: what they print, their JSON, and how they fail in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from varlog.cli.main import app

runner = CliRunner()


def varlog(*arguments: str, data: Path | None = None, stdin: str | bytes | None = None) -> Result:
    where = ["--data", str(data)] if data else []
    return runner.invoke(app, [*arguments, *where], input=stdin)


def good(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def bad(result: Result, code: int = 1) -> str:
    """One line on stderr, nothing of a traceback."""
    assert result.exit_code == code, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with five entries in topic `orders`."""
    path = tmp_path / "data"
    good(varlog("append", "orders", "a", "b", "c", "d", "e", data=path))
    return path


def test_append_prints_where_the_entries_are(tmp_path: Path) -> None:
    assert good(varlog("append", "orders", "hello", data=tmp_path)) == "position 1 (log stream 1, LLSN 1)\n"
    output = good(varlog("append", "orders", "b", "c", data=tmp_path))
    assert output == "positions 2 to 3 (log stream 1, LLSN 2 to 3)\n"
    output = good(varlog("append", "orders", "d", "--json", "--stream", "1", data=tmp_path))
    assert json.loads(output) == {"glsn": 4, "llsn": 4, "log_stream": 1, "count": 1}


def test_append_takes_the_lines_of_stdin_as_they_are(tmp_path: Path) -> None:
    """Empty lines, bytes that are no text, and a last line without an end are entries like others."""
    lines = b"one\n\n\xff\xfe\nlast"
    good(varlog("append", "orders", data=tmp_path, stdin=lines))
    good(varlog("append", "orders", "-", data=tmp_path, stdin=b"more\n"))
    result = varlog("read", "orders", "1", "--end", "6", data=tmp_path)
    assert (result.exit_code, result.stdout_bytes) == (0, b"one\n\n\xff\xfe\nlast\nmore\n")
    output = [
        json.loads(line) for line in good(varlog("tail", "orders", "--json", data=tmp_path)).splitlines()
    ]
    assert [entry.get("data") for entry in output] == ["one", "", None, "last", "more"]
    assert output[2]["base64"] == "//4="


def test_no_line_of_stdin_appends_nothing(tmp_path: Path) -> None:
    assert good(varlog("append", "orders", data=tmp_path, stdin=b"")) == ""


def test_read_by_position_by_range_and_by_stream(data: Path) -> None:
    assert good(varlog("read", "orders", "2", data=data)) == "b\n"
    assert good(varlog("read", "orders", "2", "--end", "4", data=data)) == "b\nc\n"
    assert good(varlog("read", "orders", "--stream", "1", "--llsn", "5", data=data)) == "e\n"
    assert good(varlog("read", "orders", "3", "-p", data=data)) == "3\t1\t3\tc\n"
    entry = json.loads(good(varlog("read", "orders", "1", "--json", data=data)))
    assert (entry["glsn"], entry["llsn"], entry["log_stream"], entry["data"]) == (1, 1, 1, "a")


@pytest.mark.parametrize(
    "arguments",
    [[], ["1", "--llsn", "2"], ["--llsn", "2"], ["1", "--stream", "1"], ["--stream", "1"]],
)
def test_a_read_that_names_no_one_place_is_wrong_usage(data: Path, arguments: list[str]) -> None:
    assert "POSITION" in bad(varlog("read", "orders", *arguments, data=data), code=2)


def test_reads_of_missing_positions_name_the_readable_range(data: Path) -> None:
    """R-READ-1: not yet written, and trimmed, are two different errors."""
    assert "position 6 is not written yet: the newest is 5" in bad(varlog("read", "orders", "6", data=data))
    assert "error" in bad(varlog("read", "orders", "0", data=data), code=2)
    partly = varlog("read", "orders", "4", "--end", "9", data=data)
    assert (partly.exit_code, partly.stdout) == (1, "d\ne\n")
    good(varlog("trim", "orders", "2", data=data))
    assert "position 1 is trimmed: the oldest that can be read is 3" in bad(
        varlog("read", "orders", "1", data=data)
    )


def test_tail_shows_the_newest_and_stops_at_what_is_trimmed(data: Path) -> None:
    assert good(varlog("tail", "orders", "-n", "2", data=data)) == "d\ne\n"
    assert good(varlog("tail", "orders", "-n", "0", data=data)) == ""
    assert good(varlog("tail", "orders", "--from", "4", data=data)) == "d\ne\n"
    output = good(varlog("trim", "orders", "3", data=data))
    assert output == "trimmed: the oldest entry of orders that can be read is now at 4\n"
    assert good(varlog("tail", "orders", data=data)) == "d\ne\n"


def test_trim_beyond_the_tail_is_refused(data: Path) -> None:
    assert "cannot trim up to 6: the newest position is 5" in bad(varlog("trim", "orders", "6", data=data))
    assert good(varlog("read", "orders", "1", data=data)) == "a\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["read", "nope", "1"],
        ["tail", "nope"],
        ["trim", "nope", "1"],
        ["topic", "describe", "nope"],
        ["topic", "delete", "nope", "--yes"],
        ["stream", "add", "nope"],
        ["stream", "list", "--topic", "nope"],
    ],
)
def test_an_unknown_topic_is_named_and_not_made(data: Path, arguments: list[str]) -> None:
    assert "there is no topic 'nope'" in bad(varlog(*arguments, data=data))
    assert "nope" not in good(varlog("topic", "list", data=data))


def test_topics_are_made_listed_described_and_deleted(tmp_path: Path) -> None:
    assert (
        good(varlog("topic", "create", "orders", "--streams", "2", data=tmp_path))
        == "topic orders is ready\n"
    )
    assert "already exists" in bad(varlog("topic", "create", "orders", data=tmp_path))
    good(varlog("topic", "create", "orders", "--if-not-exists", data=tmp_path))
    good(varlog("append", "orders", "x", data=tmp_path))
    [output] = json.loads(good(varlog("topic", "list", "--json", data=tmp_path)))
    assert (output["name"], output["streams"], output["oldest"], output["newest"]) == ("orders", 2, 1, 1)
    described = json.loads(good(varlog("topic", "describe", "orders", "--json", data=tmp_path)))
    assert [stream["state"] for stream in described["log_streams"]] == ["running", "running"]
    assert "positions 1 to 1" in good(varlog("topic", "describe", "orders", data=tmp_path))
    assert "pass --yes" in bad(varlog("topic", "delete", "orders", data=tmp_path), code=2)
    good(varlog("topic", "delete", "orders", "--yes", data=tmp_path))
    assert json.loads(good(varlog("topic", "list", "--json", data=tmp_path))) == []


def test_a_topic_name_that_needs_quoting_is_refused(tmp_path: Path) -> None:
    assert "not usable" in bad(varlog("topic", "create", "no/slash", data=tmp_path), code=2)
    assert "not usable" in bad(varlog("append", "no space", "x", data=tmp_path), code=2)


def test_streams_are_listed_added_and_status_shows_all(data: Path) -> None:
    assert "log stream 2 is running" in good(varlog("stream", "add", "orders", data=data))
    output = json.loads(good(varlog("stream", "list", "--json", data=data)))
    assert [stream["log_stream"] for stream in output] == [1, 2]
    assert output[0]["statuses"]["1"]["committed_end"] == 6
    status = good(varlog("status", data=data))
    assert all(word in status for word in ("orders", "running", "alive", "committed"))
    output = json.loads(good(varlog("status", "--json", data=data)))
    assert output["view"]["topics"][0]["name"] == "orders" and output["tails"][0]["high_watermark"] == 5
    [node] = json.loads(good(varlog("node", "list", "--json", data=data)))
    assert node["node"] == 1 and node["alive"] is True


def test_an_unknown_stream_and_an_unknown_node_are_named(data: Path) -> None:
    assert "log stream 9" in bad(varlog("stream", "seal", "9", data=data))
    assert "no storage node 9" in bad(varlog("node", "remove", "9", data=data), code=2)
    assert "has replicas" in bad(varlog("node", "remove", "1", data=data))
    assert "log stream 9" in bad(varlog("append", "orders", "x", "--stream", "9", data=data))


def test_more_replicas_than_nodes_is_refused(data: Path) -> None:
    output = bad(varlog("topic", "create", "wide", "--replicas", "3", data=data))
    assert "3 replicas need 3 living storage nodes" in output


def test_dump_shows_replicas_and_finds_damage(data: Path) -> None:
    output = good(varlog("dump", str(data), "--verify", "--segments"))
    assert "good" in output and "1 to 5" in output
    [segment] = data.rglob("*.seg")
    content = bytearray(segment.read_bytes())
    content[80] ^= 1
    segment.write_bytes(content)
    result = varlog("dump", str(data), "--verify")
    assert result.exit_code == 1 and "damaged" in result.output
    output = json.loads(varlog("dump", str(data), "--json").stdout)
    assert output["problems"]


def test_dump_of_another_directory_reports_that_it_is_no_data_directory(tmp_path: Path) -> None:
    assert "contains no replica" in bad(varlog("dump", str(tmp_path)))
    assert "not a directory" in bad(varlog("dump", str(tmp_path / "nope")))


def test_a_directory_without_a_log_is_read_by_nobody_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "nothing"
    assert "contains no log" in bad(varlog("tail", "orders", data=path))
    assert not path.exists()


def test_a_directory_of_a_cluster_of_processes_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"cluster": 1, "nodes": 3}')
    assert "varlog up" in bad(varlog("append", "orders", "x", data=tmp_path))
    assert not (tmp_path / "varlog.json").exists()


def test_no_cluster_at_the_address_is_reported_immediately() -> None:
    assert "varlog up" in bad(varlog("status", "--cluster", "127.0.0.1:1"))
    assert "varlog up" in bad(varlog("append", "orders", "x", "--cluster", "127.0.0.1:1"))


def test_a_cluster_and_a_directory_at_once_are_wrong_usage(data: Path) -> None:
    assert "two different logs" in bad(varlog("status", "--cluster", "127.0.0.1:1", data=data), code=2)


def test_an_invalid_address_is_named() -> None:
    assert "nonsense" in bad(varlog("status", "--cluster", "nonsense"), code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["up"],
        ["demo"],
        ["append"],
        ["read"],
        ["tail"],
        ["trim"],
        ["status"],
        ["dump"],
        ["bench"],
        ["topic"],
        ["topic", "create"],
        ["node", "add"],
        ["node", "remove"],
        ["stream", "seal"],
        ["stream", "unseal"],
        ["stream", "sync"],
        ["stream", "replace"],
    ],
)
def test_every_command_explains_itself(arguments: list[str]) -> None:
    assert "Usage" in good(varlog(*arguments, "--help"))


def test_up_refuses_what_cannot_be(tmp_path: Path) -> None:
    output = bad(varlog("up", "--nodes", "2", "--replicas", "3", data=tmp_path), code=2)
    assert "--nodes 3" in output
    assert varlog("up", "--nodes", "0").exit_code == 2
    assert varlog("up", "--port", "99999").exit_code == 2
