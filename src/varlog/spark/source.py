"""VarlogDataSource: what Spark calls "varlog": its columns, and the makers of its readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

from varlog.spark.columns import READ_SCHEMA


class VarlogDataSource(DataSource):
    """Instances live in Python processes of Spark's own; all that crosses between them is picklable."""

    @classmethod
    def name(cls) -> str:
        return "varlog"

    def schema(self) -> StructType | str:
        return READ_SCHEMA
