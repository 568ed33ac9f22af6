"""BatchReader: options and filters become partitions, and partitions rows.

Partitions in the driver, rows in tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa

from varlog.spark.options import ReadOptions, read_options
from varlog.spark.read.filters import selected
from varlog.spark.read.origin import origin_at
from varlog.spark.read.partition import LogPartition, Partition
from varlog.spark.read.planning_rules import read_pieces
from varlog.spark.read.resolve import Resolver
from varlog.spark.read.resolve_rules import Selection


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
