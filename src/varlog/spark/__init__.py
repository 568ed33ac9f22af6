"""The log on Spark: the data source "varlog", and maintenance jobs.

Needs `pip install 'varlog[spark]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from varlog.spark.session import session

__all__ = ["register", "session"]


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("varlog")` and its like work in a session that did not find the source by itself."""
    from varlog.spark.source import VarlogDataSource

    spark.dataSource.register(VarlogDataSource)
