"""Settings of a session that hold for a while: a job's own, and afterwards the user's again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str | None]) -> Iterator[None]:
    """Inside, the session has these; None: not set."""
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
