"""ArchiveKeeper: one topic's archive as a job sees it: what is in it, and how a range gets in, once, whoever else tries."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from varlog.model.cluster import Topic
from varlog.spark.archive.archive_rules import (
    FORMAT_VERSION,
    HOLES_VERSION,
    ArchivedFile,
    Commit,
    Contents,
    check_same_topic,
    leftovers,
    range_name,
)
from varlog.spark.archive.files import HadoopFiles
from varlog.spark.archive.manifest import commit_name, data_of, encode_commit, more_contents
from varlog.spark.archive.writer import Explain, check_range, write_range


class ArchiveKeeper:
    """The only one who changes an archive. Several at once, in whatever processes, do not harm each other."""

    def __init__(self, spark: SparkSession, files: HadoopFiles, cluster: int, topic: Topic) -> None:
        self.files = files
        self.contents = Contents()
        self.written: list[Commit] = []
        self._spark = spark
        self._cluster = cluster
        self._topic = topic
        self.look()

    def look(self) -> None:
        """See what has been committed. Refuses an archive of another topic."""
        self.contents = more_contents(self.files, self._topic.name, self.contents)
        check_same_topic(self.contents, self._cluster, self._topic.topic, self._topic.name)

    def add(
        self, rows: DataFrame, begin: int, end: int, parts: int, last_checksum: int, explain: Explain
    ) -> None:
        """Positions [begin, end), which `rows` has, behind the archive's end; unless another keeper has added them meanwhile.
        `explain` is asked about those that have no row."""
        directory = f"{data_of(self._topic.name)}/{range_name(begin, end, uuid.uuid4().hex[:16])}"
        try:
            write_range(rows, self.files, directory, begin, end, parts)
            files = check_range(self._spark, self.files, directory, begin, end, explain)
            self.files.sync(directory, [file.path.rpartition("/")[2] for file in files])
        except Exception:
            with suppress(Exception):  # the first error is the one to tell; a later run cleans up
                self.files.delete(directory)
            raise
        # From here on the files may be the archive's, whatever fails: only who knows that they are not may delete them.
        if not self._commit(self._commit_of(files, begin, end, last_checksum)):
            self.files.delete(directory)

    def _commit_of(self, files: tuple[ArchivedFile, ...], begin: int, end: int, last_checksum: int) -> Commit:
        return Commit(
            self._cluster,
            self._topic.topic,
            self._topic.name,
            begin,
            end,
            sum(file.bytes for file in files),
            min(file.first_us for file in files),
            max(file.last_us for file in files),
            last_checksum,
            files,
            version=FORMAT_VERSION if all(file.missing == 0 for file in files) else HOLES_VERSION,
        )

    def _commit(self, commit: Commit) -> bool:
        """False if another keeper has taken the number: what it wrote is the archive."""
        name = commit_name(self._topic.name, self.contents.next_number)
        committed = self.files.write_new(name, encode_commit(commit))
        if committed:
            self.written.append(commit)
        self.look()
        return committed

    def clean(self) -> None:
        """Remove what dead and late attempts have left."""
        directory = data_of(self._topic.name)
        for name in leftovers(self.files.names(directory), self.contents):
            self.files.delete(f"{directory}/{name}")
