"""A topic for one test, as its users see it, and the commands that they give."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import varlog
from varlog.cli.spark import common
from varlog.cli.spark import spark as command_group
from varlog.testing.tcp_cluster import WAIT_S


class LiveTopic:
    """A topic of a cluster: appended to in batches, read back whole. Positions begin at `first`."""

    def __init__(self, address: str, name: str, streams: int = 2) -> None:
        self.address = address
        self.name = name
        with varlog.admin(address, timeout_s=WAIT_S) as admin:
            self.first = admin.create_topic(name, streams=streams).first
        self.log = varlog.connect(address, name, create=False, timeout_s=WAIT_S)
        self.appended = 0

    @property
    def source(self) -> dict[str, str]:
        return {"address": self.address, "topic": self.name}

    def append(self, count: int, batch: int = 10) -> None:
        """Entries that say which they are."""
        for begin in range(self.appended, self.appended + count, batch):
            end = min(begin + batch, self.appended + count)
            self.log.append_batch([f"entry {number}".encode() for number in range(begin, end)])
        self.appended += count

    def entries(self, begin: int | None = None) -> list[varlog.Entry]:
        """All that is there, in order."""
        oldest = max(self.log.trimmed() + 1, int(self.log.topic.first))
        return entries_of(self.log, oldest if begin is None else begin)


def entries_of(log: varlog.Log, begin: int) -> list[varlog.Entry]:
    return [entry for part in log.subscribe_lists(begin, log.tail() + 1) for entry in part]


def as_rows(entries: Iterable[varlog.Entry]) -> list[tuple[int, int, bytes]]:
    """What a copy keeps of each entry."""
    return [(entry.glsn, entry.time_us, entry.data) for entry in entries]


def run_command(spark: SparkSession, patch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    """The report of `varlog spark …`, run in the session of the tests, which it does not stop."""

    @contextmanager
    def session(*given: object, **named: object) -> Iterator[SparkSession]:
        yield spark

    patch.setattr(common, "_session", session)
    done = CliRunner().invoke(command_group, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    plain = CliRunner().invoke(command_group, [*arguments, "--dry-run"])
    assert plain.exit_code == 0, plain.output
    return report
