"""A user's SQL, checked before anything runs; temporary session settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from varlog.spark.failure import spark_failure
from varlog.spark.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType


def checked(rows: DataFrame, option: str, text: str) -> tuple[Column, DataType]:
    """The expression over these columns, and its type."""
    from pyspark.sql import functions as sql

    try:
        field = rows.selectExpr(f"({text}) AS found").schema.fields[0]
    except AnalysisException as error:
        raise OptionError(f"option '{option}' is {text!r}: {spark_failure(error).message}") from None
    return sql.expr(text), field.dataType


# --- temporary settings --------------------------------------------------------------------------------------------------


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str | None]) -> Iterator[None]:
    """The session has these settings inside the block; None: unset. The user's are restored afterwards."""
    before = {key: spark.conf.get(key, None) for key in wanted}
    _apply(spark, wanted)
    try:
        yield
    finally:
        _apply(spark, before)


def _apply(spark: SparkSession, wanted: Mapping[str, str | None]) -> None:
    for key, value in wanted.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)
