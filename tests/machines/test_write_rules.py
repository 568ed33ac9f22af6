"""A write needs one column of bytes or text, and its task attempts are recognised as the same write."""

from __future__ import annotations

import pytest

from varlog.spark.write.exactly_once_rules import Write, committed_write, left_behind, producer_of
from varlog.spark.write.input_rules import InputColumns, InputError, input_columns

READ = [
    ("topic", "string"),
    ("glsn", "bigint"),
    ("llsn", "bigint"),
    ("log_stream", "int"),
    ("timestamp", "timestamp"),
    ("data", "binary"),
]


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        ([("data", "binary")], "data"),
        ([("value", "string")], "value"),
        ([("line", "string")], "line"),
        ([("name", "varchar(10)")], "name"),
        ([("timestamp", "string")], "timestamp"),
        ([("topic", "string"), ("body", "binary")], "body"),
        (READ, "data"),
    ],
)
def test_the_payload_is_found(fields: list[tuple[str, str]], data: str) -> None:
    assert input_columns(fields) == InputColumns(data)


def test_named_columns_stand_beside_the_payload() -> None:
    fields = [("Customer", "bigint"), ("at", "timestamp"), ("line", "string")]
    assert input_columns(fields, order_by="at", log_stream="customer") == InputColumns(
        "line", "at", "Customer"
    )


def test_rows_may_be_sorted_by_their_payload() -> None:
    assert input_columns([("line", "string")], order_by="line") == InputColumns("line", "line")
    assert input_columns([("at", "date"), ("data", "string")], order_by="at", log_stream="3").data == "data"


def test_rows_that_keep_their_positions_name_them() -> None:
    assert input_columns(READ, keep=True) == InputColumns("data", glsn="glsn", timestamp="timestamp")


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ([("a", "int"), ("b", "string")], {}, r"columns are \(a int, b string\).*to_json\(struct"),
        ([("data", "int")], {}, r"column 'data' is int.*CAST"),
        ([("data", "struct<a:int>")], {}, "to_json"),
        ([("data", "binary"), ("id", "int")], {}, r"'id' would be lost.*df.select\('data'\)"),
        ([("data", "binary"), ("value", "binary")], {}, "'value' would be lost"),
        ([("data", "binary")], {"order_by": "at"}, r"option 'orderBy' names 'at'.*\(data binary\)"),
        ([("data", "binary")], {"log_stream": "at"}, "or the id of a log stream"),
        ([("data", "binary"), ("m", "map<int,int>")], {"order_by": "m"}, "cannot be sorted"),
        ([("data", "binary"), ("x", "double")], {"log_stream": "x"}, "'x', which is double.*cast it"),
        ([("data", "binary")], {"keep": True}, "needs a column 'glsn' of type bigint"),
        (
            [("data", "binary"), ("glsn", "bigint"), ("timestamp", "string")],
            {"keep": True},
            "'timestamp' is string",
        ),
        ([], {}, "one binary or string column"),
    ],
)
def test_other_columns_are_refused_with_a_remedy(
    fields: list[tuple[str, str]], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        input_columns(fields, **options)  # type: ignore[arg-type]


def test_a_producer_is_one_task_of_one_write() -> None:
    """And the same number in every process and version: a restarted job must find its chains."""
    write = Write("orders-ingest", 7, kept=True)
    others = {
        producer_of(1, write, 0),
        producer_of(2, write, 0),
        producer_of(1, write, 1),
        producer_of(1, Write("orders-ingest", 8, kept=True), 0),
        producer_of(1, Write("orders", 7, kept=True), 0),
        producer_of(1, Write("1\0x", 7, kept=True), 0),
    }
    assert len(others) == 6
    assert all(0 < producer < 2**63 for producer in others)
    assert producer_of(1, Write("orders-ingest", 7, kept=False), 0) == producer_of(1, write, 0)
    assert producer_of(3, Write("w", 2, kept=True), 5) == 5359446165658787967


def test_a_write_is_committed_when_every_task_has_reported() -> None:
    write, other = Write("w", 1, kept=True), Write("w", 2, kept=True)
    assert committed_write([write, write]) == write
    assert committed_write([]) is None
    with pytest.raises(InputError, match="1 of 2 tasks"):
        committed_write([write, None])
    with pytest.raises(InputError, match="belong to several"):
        committed_write([write, other])


def test_a_failed_write_names_how_to_complete_it() -> None:
    assert "writer 'w', batch 3" in left_behind("t", Write("w", 3, kept=True), stream=False)
    assert "this one had none" in left_behind("t", Write("w", 3, kept=False), stream=False)
    assert "same checkpoint" in left_behind("t", None, stream=True)
