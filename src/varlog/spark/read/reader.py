"""BatchReader: options and filters become partitions, and partitions rows.

Partitions in the driver, rows in tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from varlog.model.lsn import LSN_MAX
from varlog.spark.options import ReadOptions, read_options
from varlog.spark.read.origin import origin_at
from varlog.spark.read.partition import LogPartition, Partition
from varlog.spark.read.planning_rules import read_pieces
from varlog.spark.read.resolve import Resolver
from varlog.spark.read.resolve_rules import Interval, Selection

if TYPE_CHECKING:
    import pyarrow as pa


class _PushFilters:
    """A reader's method `pushFilters`, which Spark calls if spark.sql.python.filterPushdown.enabled is set.

    Where it is not, and by default it is not, Spark refuses to use a reader that has this method at all, though it reads
    the same rows without. It knows such a reader by the function behind the method: this one shows that of readers without.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.select(filters)


class BatchReader(DataSourceReader):
    """Created in the driver, pickled, and used by every task."""

    def __init__(self, options: Mapping[str, str]) -> None:
        found = read_options(options, stream=False)
        # Tasks may run in another directory than the driver.
        path = os.path.abspath(found.where.path) if found.where.path else ""
        self._options = replace(found, where=replace(found.where, path=path))
        self._selection = Selection()
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def select(self, filters: list[Filter]) -> list[Filter]:
        """Read only what the filters select; returns the filters that are left to Spark."""
        self._selection, left = selected(filters)
        return left

    def partitions(self) -> list[InputPartition]:
        options = self._options
        resolver = _resolver(options, self._selection)
        found = read_pieces(
            resolver.ranges(),
            partitions_min=options.partitions_min,
            records_max=options.partition_records_max,
        )
        live = [
            LogPartition(
                options.where, piece, time=resolver.time, fail_on_data_loss=options.fail_on_data_loss
            )
            for piece in found
        ]
        return [*resolver.archived, *live]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, Spark invents a partition without a value.
        return partition.read() if isinstance(partition, Partition) else iter(())


def _resolver(options: ReadOptions, selection: Selection) -> Resolver:
    origin = origin_at(options.where)
    if not options.archive:
        return Resolver(origin, options, selection)
    from varlog.spark.archive.reader import ArchivedResolver

    return ArchivedResolver(origin, options, selection)


# Filters that Spark pushes down, as ranges of topic, glsn, log_stream, timestamp.
#
# A filter that is taken is applied exactly, so Spark does not apply it again; every other one is handed back.

COLUMNS = ("topic", "glsn", "llsn", "log_stream", "timestamp", "data")
# Up to this many positions are looked up individually. A longer list is read as one range, and filtered by Spark.
POSITIONS_MAX = 16

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def selected(filters: Sequence[Filter]) -> tuple[Selection, list[Filter]]:
    """The selection of the filters that are handled here, and the filters that are left to Spark."""
    selection, left = Selection(), []
    for one in filters:
        taken = _selection(one)
        if taken is None:
            left.append(one)
        else:
            selection = selection.and_(taken[0])
            if not taken[1]:
                left.append(one)
    return selection, left


def _selection(one: Filter) -> tuple[Selection, bool] | None:
    """The selection of a filter, and whether it is exact; None if it cannot be used here."""
    column: tuple[str, ...] = getattr(one, "attribute", ())
    if len(column) != 1 or column[0] not in COLUMNS:
        return None
    name = column[0]
    if isinstance(one, IsNotNull):
        return Selection(), True  # no column is ever null
    if isinstance(one, IsNull) or (isinstance(one, EqualNullSafe) and one.value is None):
        return Selection(empty=True), True
    if name in ("topic", "log_stream"):
        return _of_set(name, one)
    if name == "glsn":
        return _of_positions(one)
    return _of_time(one) if name == "timestamp" else None


def _of_set(name: str, one: Filter) -> tuple[Selection, bool] | None:
    if name == "topic":
        topics = _values(one, str)
        return (Selection(topics=frozenset(topics)), True) if topics is not None else None
    streams = _values(one, int)
    return (Selection(log_streams=frozenset(streams)), True) if streams is not None else None


def _of_positions(one: Filter) -> tuple[Selection, bool] | None:
    values = _values(one, int)
    if values is not None and len(values) > POSITIONS_MAX:
        return Selection(positions=((min(values), max(values) + 1),)), False
    if values is not None:
        return Selection(positions=tuple((value, value + 1) for value in sorted(set(values)))), True
    interval = _interval(one, lambda value: value if isinstance(value, int) else None)
    return (Selection(positions=(interval,)), True) if interval is not None else None


def _of_time(one: Filter) -> tuple[Selection, bool] | None:
    values = _values(one, datetime)
    if values is not None and len(values) == 1:
        time_us = _time_us(values[0])
        return (Selection(time=(time_us, time_us + 1)), True) if time_us is not None else None
    interval = _interval(one, _time_us)
    return (Selection(time=interval), True) if interval is not None else None


def _values(one: Filter, kind: type[T]) -> list[T] | None:
    """The values that the column must be one of."""
    if isinstance(one, EqualTo | EqualNullSafe):
        wanted = [one.value]
    elif isinstance(one, In):
        wanted = [value for value in one.value if value is not None]  # nothing equals null
    else:
        return None
    values = [value for value in wanted if isinstance(value, kind) and not isinstance(value, bool)]
    return values if values and len(values) == len(wanted) else None


def _interval(one: Filter, number: Callable[[object], int | None]) -> Interval | None:
    """The half-open range of numbers that a comparison selects."""
    value = number(getattr(one, "value", None))
    if value is None:
        return None
    if isinstance(one, GreaterThan):
        return value + 1, LSN_MAX
    if isinstance(one, GreaterThanOrEqual):
        return value, LSN_MAX
    if isinstance(one, LessThan):
        return -LSN_MAX, value
    return (-LSN_MAX, value + 1) if isinstance(one, LessThanOrEqual) else None


def _time_us(value: object) -> int | None:
    """Microseconds since 1970. A time without a zone is not a value of this column."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)
