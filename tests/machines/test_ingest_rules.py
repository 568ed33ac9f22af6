"""What of a row becomes an entry, and which runs are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from varlog.spark.jobs.ingest_rules import (
    WHOLE_ROW,
    IngestError,
    Reading,
    SourceFile,
    check_entry_type,
    entry_expression,
    literal_path,
    writer_name,
)

FILES = [SourceFile("/in/a", 10, 1), SourceFile("/in/b", 20, 2)]


@pytest.mark.parametrize(
    ("fields", "reading", "entry"),
    [
        ([("value", "string")], Reading("text"), "`value`"),
        ([("value", "string"), ("day", "date")], Reading("text"), "value"),
        ([("path", "string"), ("content", "binary")], Reading("binary"), "content"),
        ([("only", "binary")], Reading("parquet"), "`only`"),
        ([("only", "varchar(5)")], Reading("parquet"), "`only`"),
        ([("only", "bigint")], Reading("parquet"), WHOLE_ROW),
        ([("a", "string"), ("b", "string")], Reading("csv"), WHOLE_ROW),
        ([("a", "string"), ("B`s", "string")], Reading("csv", column="b`S"), "`B``s`"),
        ([("a", "string")], Reading("csv", expression="upper(a)"), "upper(a)"),
    ],
)
def test_what_becomes_an_entry(fields: list[tuple[str, str]], reading: Reading, entry: str) -> None:
    assert entry_expression(fields, reading) == entry


def test_the_order_of_the_listing_does_not_matter() -> None:
    assert writer_name("t", Reading("text"), FILES) == writer_name("t", Reading("text"), FILES[::-1])


@pytest.mark.parametrize(
    ("topic", "reading", "files"),
    [
        ("other", Reading("text"), FILES),
        ("t", Reading("csv"), FILES),
        ("t", Reading("text", (("wholetext", "true"),)), FILES),
        ("t", Reading("text", expression="upper(value)"), FILES),
        ("t", Reading("text"), FILES[:1]),
        ("t", Reading("text"), [FILES[0], replace(FILES[1], size=21)]),
        ("t", Reading("text"), [FILES[0], replace(FILES[1], modified_us=3)]),
    ],
)
def test_another_topic_reading_or_file_is_another_write(
    topic: str, reading: Reading, files: list[SourceFile]
) -> None:
    assert writer_name(topic, reading, files) != writer_name("t", Reading("text"), FILES)


def test_names_of_writers_do_not_change_between_versions() -> None:
    """A run that was cut off may be completed by a newer version."""
    assert writer_name("t", Reading("text"), FILES) == "ingest-d0599dcbff3cfbbf"


def test_a_path_may_hold_what_is_a_pattern_elsewhere() -> None:
    assert literal_path(r"/in/a[1]{2}*?\x y") == r"/in/a\[1\]\{2\}\*\?\\x y"


def test_a_number_is_no_entry() -> None:
    check_entry_type("binary", Reading("csv"))
    with pytest.raises(IngestError, match="option 'column' is 'id', which is bigint"):
        check_entry_type("bigint", Reading("csv", column="id"))
