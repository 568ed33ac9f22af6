"""Spark finds this package by its prefix: `format("varlog")` works without set-up."""

from __future__ import annotations

from varlog.spark.source import VarlogDataSource


class DefaultSource(VarlogDataSource):
    """The data source "varlog"."""
