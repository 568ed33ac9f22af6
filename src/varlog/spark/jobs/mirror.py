"""mirror(): copies a topic to another cluster exactly once.

Positions, bytes and times are kept. Once, or continuously. The mirror's progress is the end of its topic: a checkpoint that was
lost, or written before its batch, costs only a comparison with existing entries.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

import varlog
from varlog.model.errors import PreconditionFailed, Trimmed
from varlog.model.ids import NAME_CHARACTERS_MAX
from varlog.spark.archive.archive_rules import range_text
from varlog.spark.jobs.copy_target import check_last, create_target, find_target, write_copy
from varlog.spark.jobs.progress import Progress, java_ended, silent

BATCH_RECORDS = 500_000
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """Positions [begin, end) are mirrored, `rows_written` of them by this run (in a dry run: would be); `behind` are not yet."""

    topic: str
    to_topic: str
    reader: str
    begin: int
    end: int
    rows_written: int
    behind: int
    dry_run: bool


def mirror(
    spark: SparkSession,
    address: str,
    topic: str,
    to_address: str,
    to_topic: str,
    *,
    checkpoint: str = "",
    continuous: bool = True,
    batch_records: int = BATCH_RECORDS,
    stop: threading.Event | None = None,
    progress: Progress = silent,
    dry_run: bool = False,
) -> MirrorReport:
    """Copy `topic` to `to_topic`, which is created with one log stream: until `stop` is set (or Ctrl-C), or what exists now.

    `checkpoint` is where Spark records the progress of the query; "" is a temporary directory, which works as well. On the source
    the mirror is a named reader: its lag is in `varlog status`, and a trim can respect it.
    """
    with varlog.connect(address, topic, create=False) as source:
        if source.topic.sequenced:
            raise PreconditionFailed(
                f"topic {topic!r} is sequenced: junk positions have no entry, and a mirror has one at each. Archive "
                "it (`varlog spark archive`), or read it and write its rows to a committed topic"
            )
        first = max(source.trimmed() + 1, source.topic.first)
        make = find_target if dry_run else create_target
        if make(to_address, to_topic, first) is None:
            return _report(source, None, (to_address, to_topic), first, dry_run=True)
        with varlog.connect(to_address, to_topic, create=False) as target:
            begin = _next_position(source, target)
            if not dry_run:
                run = _Mirroring(spark, (address, topic), (to_address, to_topic), source, target, begin)
                run.until(stop or threading.Event(), checkpoint, continuous, batch_records, progress)
            return _report(source, target, (to_address, to_topic), begin, dry_run=dry_run)


def _next_position(source: varlog.Log, target: varlog.Log) -> int:
    """Where the mirror continues. Refuses one that cannot: with foreign entries, or behind what is trimmed."""
    newest, oldest = target.tail(), max(source.trimmed() + 1, source.topic.first)
    if newest > source.tail():
        raise PreconditionFailed(
            f"topic {target.topic.name!r} goes up to position {newest}, and {source.topic.name!r} only to {source.tail()}: others "
            "have written to it; mirror into a topic that does not exist yet"
        )
    if newest + 1 < oldest:
        raise PreconditionFailed(
            f"{range_text(newest + 1, oldest)} of topic {source.topic.name!r} were trimmed before they were "
            "mirrored: mirror into a "
            "topic that does not exist yet"
        )
    if newest >= target.topic.first:
        try:
            entry = source.read(newest)
        except Trimmed:
            return newest + 1
        check_last(target, entry.data, entry.time_us)
    return newest + 1


class _Mirroring:
    """One run: a streaming query whose batches are written in order."""

    def __init__(
        self,
        spark: SparkSession,
        source_at: tuple[str, str],
        target_at: tuple[str, str],
        source: varlog.Log,
        target: varlog.Log,
        begin: int,
    ) -> None:
        self._spark = spark
        self._source_at = source_at
        self._target_at = target_at
        self._source = source
        self._target = target
        self._begin = begin
        self._checked = False

    def until(
        self,
        stop: threading.Event,
        checkpoint: str,
        continuous: bool,
        batch_records: int,
        progress: Progress,
    ) -> None:
        self._checked = not checkpoint  # without one the query begins where the mirror ends
        with _checkpoint(checkpoint) as place:
            query = self._started(place, continuous, batch_records)
            try:
                self._watch(query, stop, progress)
            except KeyboardInterrupt:
                return
            except Exception:
                if not (stop.is_set() and java_ended(self._spark)):
                    raise
            finally:
                with suppress(Exception):
                    query.stop()
        # The query itself reports it when it begins the next batch, which may never come.
        self._source.set_reader(mirror_reader(*self._target_at), self._target.tail())

    def _started(self, checkpoint: str, continuous: bool, batch_records: int) -> StreamingQuery:
        address, topic = self._source_at
        source = {
            "address": address,
            "topic": topic,
            "startingOffsets": str(self._begin),
            "maxRecordsPerTrigger": str(batch_records),
            "reader": mirror_reader(*self._target_at),
        }
        rows = self._spark.readStream.format("varlog").options(**source).load()
        writing = rows.writeStream.foreachBatch(self._write).option("checkpointLocation", checkpoint)
        return (writing if continuous else writing.trigger(availableNow=True)).start()

    def _watch(self, query: StreamingQuery, stop: threading.Event, progress: Progress) -> None:
        while query.isActive and not stop.wait(POLL_S):
            progress(f"mirroring {self._source_at[1]}", self._target.tail(), self._source.tail())
        if (error := query.exception()) is not None:
            raise error

    def _write(self, batch: DataFrame, number: int) -> None:
        if not self._checked:
            self._check_begin(batch)
        write_copy(batch.repartition(1), *self._target_at)

    def _check_begin(self, batch: DataFrame) -> None:
        """A checkpoint may be of another target: a mirror that begins behind the end of this one would have a hole."""
        first = batch.agg({"glsn": "min"}).collect()[0][0]
        if first is not None and first > self._target.tail() + 1:
            raise PreconditionFailed(
                f"the checkpoint is at position {first}, and topic {self._target_at[1]!r} at {self._target.tail() + 1}: it is "
                "of another mirror; leave it out, and the mirror continues where its topic ends"
            )
        self._checked = True


@contextmanager
def _checkpoint(path: str) -> Iterator[str]:
    if path:
        yield path
        return
    temporary = tempfile.mkdtemp(prefix="varlog-mirror-")
    try:
        yield f"file:{temporary}"
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _report(
    source: varlog.Log, target: varlog.Log | None, target_at: tuple[str, str], begin: int, *, dry_run: bool
) -> MirrorReport:
    newest = source.tail()
    end = begin if target is None else target.tail() + 1
    first = begin if target is None else int(target.topic.first)
    return MirrorReport(
        source.topic.name,
        target_at[1],
        mirror_reader(*target_at),
        first,
        end,
        newest + 1 - begin if dry_run else end - begin,
        newest + 1 - end,
        dry_run,
    )


def mirror_reader(to_address: str, to_topic: str) -> str:
    """The mirror's name among the source's readers: one per copy."""
    return f"mirror:{to_topic}@{to_address}"[:NAME_CHARACTERS_MAX]
