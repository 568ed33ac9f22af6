"""Found by Spark by its name's beginning: with varlog installed, `format("varlog")` works without a registration."""

from __future__ import annotations

from varlog.spark.source import VarlogDataSource


class DefaultSource(VarlogDataSource):
    """The data source "varlog"."""
