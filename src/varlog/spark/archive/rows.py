"""Rows of archive files as record batches, row group by row group.

So memory stays flat.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

from varlog.client.arrow import schema
from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.archive_rules import ArchivedFile, range_text
from varlog.spark.archive.files import ArrowFiles

# The columns of a file; the topic is the name of its directory.
COLUMNS = ("glsn", "llsn", "log_stream", "timestamp", "data")

BATCH_ROWS = 1 << 16
BATCH_BYTES = 1 << 20


def rows_of(files: ArrowFiles, file: ArchivedFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    """Positions [begin, end) of a file, as `log.connector.range` returns them.

    Row i is position `file.begin + i`, which was checked when it was written: no search is needed, unless some have
    no row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with files.open(file.path) as opened, pq.ParquetFile(opened) as parquet:
            if parquet.metadata.num_rows != file.rows:
                raise PreconditionFailed(
                    f"archive {files.path}: {file.path} does not hold {range_text(file.begin, file.end)} any more"
                )
            if file.missing:
                yield from _rows_with(parquet, begin, end)
            else:
                yield from _rows_between(parquet, begin - file.begin, end - file.begin)
    except (OSError, pa.ArrowInvalid) as error:
        wrong = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise PreconditionFailed(
            f"archive {files.path}: {file.path}, which holds {range_text(file.begin, file.end)}, {wrong}"
        ) from error


def _rows_between(parquet: pq.ParquetFile, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Rows [first, last) of a file."""
    before = 0
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        if before < last and before + group.num_rows > first:
            at = before
            for batch in parquet.iter_batches(_batch_rows(group), [number], list(COLUMNS)):
                kept = batch.slice(
                    max(0, first - at), max(0, min(last, at + batch.num_rows) - max(first, at))
                )
                at += batch.num_rows
                if kept.num_rows:
                    yield _as_of_the_log(kept)
        before += group.num_rows


def _rows_with(parquet: pq.ParquetFile, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    """The rows at positions [begin, end) of a file in which some positions have none."""
    import pyarrow.compute as pc

    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        for batch in parquet.iter_batches(_batch_rows(group), [number], list(COLUMNS)):
            glsn = batch.column("glsn")
            if glsn[-1].as_py() < begin or glsn[0].as_py() >= end:
                continue
            kept = batch.filter(pc.and_(pc.greater_equal(glsn, begin), pc.less(glsn, end)))
            if kept.num_rows:
                yield _as_of_the_log(kept)


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    rows, size = int(group.num_rows), int(group.total_byte_size)
    return max(1, min(BATCH_ROWS, rows * BATCH_BYTES // max(1, size)))


def _as_of_the_log(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the columns and types of the log's own record batches."""
    import pyarrow as pa

    wanted = schema()
    columns = [batch.column(field.name).cast(field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
