"""SQL that a user gave: checked before anything runs, and refused by the option's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from varlog.spark.failure import failure_of
from varlog.spark.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def checked(rows: DataFrame, option: str, text: str) -> tuple[Column, DataType]:
    """The expression over these columns, and its type."""
    from pyspark.sql import functions as sql

    try:
        field = rows.selectExpr(f"({text}) AS found").schema.fields[0]
    except AnalysisException as error:
        raise OptionError(f"option '{option}' is {text!r}: {failure_of(error).message}") from None
    return sql.expr(text), field.dataType
