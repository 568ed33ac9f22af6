"""What of a row becomes an entry, and which runs are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from varlog.spark.jobs.ingest_rules import (
    WHOLE_ROW,
    FileFormat,
    IngestError,
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
        ([("value", "string")], FileFormat("text"), "`value`"),
        ([("value", "string"), ("day", "date")], FileFormat("text"), "value"),
        ([("path", "string"), ("content", "binary")], FileFormat("binary"), "content"),
        ([("only", "binary")], FileFormat("parquet"), "`only`"),
        ([("only", "varchar(5)")], FileFormat("parquet"), "`only`"),
        ([("only", "bigint")], FileFormat("parquet"), WHOLE_ROW),
        ([("a", "string"), ("b", "string")], FileFormat("csv"), WHOLE_ROW),
        ([("a", "string"), ("B`s", "string")], FileFormat("csv", column="b`S"), "`B``s`"),
        ([("a", "string")], FileFormat("csv", expression="upper(a)"), "upper(a)"),
    ],
)
def test_what_becomes_an_entry(fields: list[tuple[str, str]], reading: FileFormat, entry: str) -> None:
    assert entry_expression(fields, reading) == entry


def test_the_order_of_the_listing_does_not_matter() -> None:
    assert writer_name("t", FileFormat("text"), FILES) == writer_name("t", FileFormat("text"), FILES[::-1])


@pytest.mark.parametrize(
    ("topic", "reading", "files"),
    [
        ("other", FileFormat("text"), FILES),
        ("t", FileFormat("csv"), FILES),
        ("t", FileFormat("text", (("wholetext", "true"),)), FILES),
        ("t", FileFormat("text", expression="upper(value)"), FILES),
        ("t", FileFormat("text"), FILES[:1]),
        ("t", FileFormat("text"), [FILES[0], replace(FILES[1], size=21)]),
        ("t", FileFormat("text"), [FILES[0], replace(FILES[1], modified_us=3)]),
    ],
)
def test_another_topic_reading_or_file_is_another_write(
    topic: str, reading: FileFormat, files: list[SourceFile]
) -> None:
    assert writer_name(topic, reading, files) != writer_name("t", FileFormat("text"), FILES)


def test_names_of_writers_do_not_change_between_versions() -> None:
    """A run that was cut off may be completed by a newer version."""
    assert writer_name("t", FileFormat("text"), FILES) == "ingest-d0599dcbff3cfbbf"


def test_a_path_may_hold_what_is_a_pattern_elsewhere() -> None:
    assert literal_path(r"/in/a[1]{2}*?\x y") == r"/in/a\[1\]\{2\}\*\?\\x y"


def test_a_number_is_no_entry() -> None:
    check_entry_type("binary", FileFormat("csv"))
    with pytest.raises(IngestError, match="option 'column' is 'id', which is bigint"):
        check_entry_type("bigint", FileFormat("csv", column="id"))
