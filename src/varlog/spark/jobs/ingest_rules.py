"""PURE. FileFormat: how files are read, and what of a row becomes an entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

# Our name of a format, and Spark's.
FORMATS = {"parquet": "parquet", "csv": "csv", "json": "json", "text": "text", "binary": "binaryFile"}
# A stream needs the columns of these: later files may differ from the present ones.
UNTYPED = ("csv", "json")
WHOLE_ROW = "to_json(struct(*))"

# How Spark cuts files into partitions, the same on every machine: by these numbers and the files alone, not by
# the number of cores. Files are listed individually and in order, because those of equal size stay in the order of the list.
SPLIT_BYTES = 32 * 1024 * 1024
PINNED_SPLITS: Mapping[str, str | None] = {
    "spark.sql.files.maxPartitionBytes": str(SPLIT_BYTES),
    "spark.sql.files.openCostInBytes": str(4 * 1024 * 1024),
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.maxPartitionNum": None,
}

ColumnField = tuple[str, str]  # a column's name, and its type as Spark prints it


class IngestError(ValueError):
    """Something that cannot be ingested as requested: the message names the option."""


@dataclass(frozen=True, slots=True, order=True)
class SourceFile:
    """A file as it was when it was listed: a file that was changed is another one."""

    path: str
    size: int
    modified_us: int


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How files are read, and how a row becomes an entry."""

    format: str
    options: tuple[tuple[str, str], ...] = ()
    schema: str = ""
    column: str = ""
    expression: str = ""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise IngestError(f"option 'format' is {self.format!r}: it must be one of {', '.join(FORMATS)}")
        if self.column and self.expression:
            raise IngestError("give either option 'column' or 'expression', not both")


def entry_expression(fields: Sequence[ColumnField], reading: FileFormat) -> str:
    """SQL for the entry of a row: the option's, else the only column if it is text or bytes, else the row as JSON."""
    if reading.expression:
        return reading.expression
    if reading.column:
        return _quoted(_column(fields, reading.column))
    if reading.format == "binary":
        return "content"
    plain = [name for name, kind in fields if is_entry_type(kind)]
    if len(fields) == 1 and plain:
        return _quoted(plain[0])
    if reading.format == "text":  # beside columns that come from directory names
        return "value"
    return WHOLE_ROW


def is_entry_type(kind: str) -> bool:
    return kind == "binary" or kind.startswith(("string", "varchar", "char"))


def check_entry_type(kind: str, reading: FileFormat) -> None:
    """The chosen expression must be text or bytes: a number could be formatted in several ways, and only the caller knows which."""
    if not is_entry_type(kind):
        option, chosen = (
            ("expression", reading.expression) if reading.expression else ("column", reading.column)
        )
        raise IngestError(
            f"option '{option}' is {chosen!r}, which is {kind}: an entry is string or binary; try "
            f'--expression "cast({chosen} as string)", or leave it out for the row as JSON'
        )


def writer_name(topic: str, reading: FileFormat, files: Sequence[SourceFile]) -> str:
    """The same for the same files read the same way into the same topic: a repeated run continues, or finds it done."""
    identity = [topic, reading.format, reading.schema, reading.column, reading.expression]
    identity += [f"{key.lower()}={value}" for key, value in sorted(reading.options)]
    identity += [f"{file.path}\0{file.size}\0{file.modified_us}" for file in sorted(files)]
    identity.append(f"{SPLIT_BYTES}")
    return "ingest-" + blake2b("\1".join(identity).encode(), digest_size=8).hexdigest()


def literal_path(path: str) -> str:
    """A path in which nothing is a pattern."""
    return "".join(f"\\{letter}" if letter in "\\*?[]{}" else letter for letter in path)


def _column(fields: Sequence[ColumnField], wanted: str) -> str:
    """Spark ignores case."""
    for name, _ in fields:
        if name.lower() == wanted.lower():
            return name
    raise IngestError(
        f"option 'column' is {wanted!r}: the columns are {', '.join(name for name, _ in fields)}"
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
