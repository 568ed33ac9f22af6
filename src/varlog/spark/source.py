"""VarlogDataSource: the entry point of Spark's data source "varlog".

Its columns, readers and writers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

from varlog.spark.columns import READ_SCHEMA


class VarlogDataSource(DataSource):
    """Instances live in Python processes of Spark; everything passed between them is picklable."""

    @classmethod
    def name(cls) -> str:
        return "varlog"

    def schema(self) -> StructType | str:
        return READ_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from varlog.spark.read.reader import BatchReader

        return BatchReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from varlog.spark.write.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from varlog.spark.write.writer import stream_writer

        return stream_writer(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from varlog.spark.options import read_options
        from varlog.spark.stream.stream_reader import StreamReader

        return StreamReader(read_options(self.options, stream=True))
