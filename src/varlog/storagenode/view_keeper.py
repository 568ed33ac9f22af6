"""ViewKeeper: keeps the node's copy of the cluster's view on disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptReplica
from varlog.model.ids import ClusterUUID, LogStreamID, TopicID
from varlog.runtime.disk import Disk
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks
from varlog.runtime.worker import Worker
from varlog.storage.view_copy import (
    ViewCopy,
    decode_view_copy,
    read_view_copies,
    scrub_view_copy,
    write_view_copy,
)

_log = get_logger("session")


class ViewKeeper:
    """Written by the worker, one copy at a time; of those that arrive meanwhile the newest is next. No caller waits for it."""

    def __init__(self, disk: Disk, homes: Sequence[Path], worker: Worker, tasks: Tasks) -> None:
        self._disk = disk
        self._homes = tuple(homes)
        self._worker = worker
        self._tasks = tasks
        # The newest copy that is on disk, and its bytes.
        self.copy: ViewCopy | None = None
        self.content = b""
        # The bytes of a copy that may be on some disks and not on others, because its write failed.
        self._newest = b""
        self._next: tuple[ViewCopy, bytes] | None = None
        self._writing = False

    async def start(self) -> None:
        found = await self._worker.run(lambda: read_view_copies(self._disk, self._homes))
        if found:
            self.copy, self.content = found[0]

    @property
    def revision(self) -> int:
        return self.copy.view.revision if self.copy is not None else 0

    @property
    def projections(self) -> tuple[tuple[TopicID, Epoch, int], ...]:
        """Topic, epoch and the term of the repository that sent the copy."""
        if self.copy is None:
            return ()
        return tuple((found.topic, found.epoch, self.copy.term) for found in self.copy.view.projections)

    @property
    def largest_topic(self) -> TopicID:
        """The largest id that was given out when the copy was made."""
        return TopicID(self.copy.next_topic - 1 if self.copy is not None else 0)

    @property
    def largest_log_stream(self) -> LogStreamID:
        return LogStreamID(self.copy.next_log_stream - 1 if self.copy is not None else 0)

    def keep(self, content: bytes, cluster_uuid: ClusterUUID) -> None:
        """The repository's view has changed. A view that is older than the copy here comes from a repository that was restored from
        an older backup: the newer copy stays until the repository is past it."""
        try:
            copy = decode_view_copy(content, Path("session"))
        except CorruptReplica as damaged:
            _log.error(logfmt("the repository sent no copy of its view", why=damaged))
            return
        if copy.view.uuid != cluster_uuid:
            _log.error(logfmt("a copy of another cluster's view is not kept", cluster_uuid=copy.view.uuid))
        elif copy.view.revision < self.revision:
            _log.warning(
                logfmt(
                    "the repository's view is older than the copy here, which is kept",
                    theirs=copy.view.revision,
                    ours=self.revision,
                )
            )
        else:
            self._next = (copy, content)
            if not self._writing:
                self._writing = True
                _ = self._tasks.spawn("view copy", self._write())

    async def scrub_metadata(self) -> str:
        """Rewrite the copies that are not the newest one; returns which, or ''."""
        content = self._newest or self.content
        if not content or self._writing:
            return ""
        return await self._worker.run(partial(scrub_view_copy, self._disk, self._homes, content))

    async def _write(self) -> None:
        try:
            while (taken := self._next) is not None:
                self._next = None
                self._newest = taken[1]
                await self._worker.run(partial(write_view_copy, self._disk, self._homes, taken[1]))
                self.copy, self.content = taken
        except OSError as error:
            _log.warning(logfmt("the copy of the view cannot be written now", why=error))
        finally:
            self._writing = False
