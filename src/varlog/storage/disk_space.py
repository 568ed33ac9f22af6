"""DiskSpace: the free space of one volume. Appends leave a reserve of it, so that seals, trims and states find a place (R-SEAL-6).

A volume is *full* when less than the reserve is free, or when an append found no room; it is so until half as much again is
free, and what the append wanted. Should somebody else have eaten the reserve, a small ballast file makes room for
the few bytes that a seal or a trim must write: a trim that cannot be kept could never free anything.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from varlog.model.limits import KIB
from varlog.runtime.disk import Disk
from varlog.runtime.logging import get_logger, logfmt

BALLAST_NAME: Final = "ballast"
BALLAST_BYTES_MAX: Final = 256 * KIB

T = TypeVar("T")

_log = get_logger("storage")


def is_disk_full(error: BaseException) -> bool:
    """True for the errors of a file system, or a quota, that has no more room."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class DiskSpace:
    """One volume's, shared by the workers of the replicas on it. The event loop asks `full`: the kernel knows that without a
    look at the device."""

    def __init__(self, disk: Disk, directory: Path, *, reserve_bytes: int = 0, why: str = "") -> None:
        self.why = why or f"the disk is full: free space on {directory}"
        self._disk = disk
        self._directory = directory
        self._reserve_bytes = reserve_bytes
        self._wanted_bytes = 0
        self._full = False

    @property
    def full(self) -> bool:
        """True while appends would find no room; not at once false again when a little is free."""
        try:
            free = self._free_bytes()
        except OSError:
            return self._full  # the volume cannot be asked: its replicas will find out
        if free < self._reserve_bytes:
            self._full = True
        elif free >= self._reserve_bytes + max(self._reserve_bytes // 2, self._wanted_bytes):
            self._full, self._wanted_bytes = False, 0
        return self._full

    def grant(self, needed_bytes: int, wanted_bytes: int) -> int:
        """How much a segment may grow by: what it wants, or as much of it as leaves the reserve. OSError if it needs more."""
        spare = self._free_bytes() - self._reserve_bytes
        if spare < needed_bytes:
            self.mark_full(needed_bytes)
            raise OSError(errno.ENOSPC, self.why)
        if spare >= self._reserve_bytes // 2:
            self.keep_ballast()
        return max(needed_bytes, min(wanted_bytes, spare))

    def mark_full(self, needed_bytes: int = 0) -> None:
        """An append found no room."""
        self._full, self._wanted_bytes = True, max(self._wanted_bytes, needed_bytes)

    def can_spare(self, needed_bytes: int) -> bool:
        """Whether something that could as well wait may be written now."""
        return not self.full and self._free_bytes() - needed_bytes >= self._reserve_bytes

    def persist(self, write: Callable[[], T]) -> T:
        """Do a small write that must not fail for lack of room: once more if the ballast makes some. `write` may be done twice."""
        try:
            return write()
        except OSError as error:
            if not is_disk_full(error):
                raise
        self._drop_ballast()
        return write()

    def keep_ballast(self) -> None:
        """Make the ballast file, if there is none. A volume that has no room for it has none."""
        size, path = min(BALLAST_BYTES_MAX, self._reserve_bytes // 4), self._directory / BALLAST_NAME
        with contextlib.suppress(OSError):  # another worker was faster, or there is no room
            if size and not self._disk.exists(path):
                file = self._disk.open(path, create=True)
                try:
                    file.reserve(size)
                finally:
                    file.close()

    def _drop_ballast(self) -> None:
        path = self._directory / BALLAST_NAME
        with contextlib.suppress(OSError):  # it is gone already
            self._disk.remove(path)
            _log.warning(logfmt("the volume is full to the last byte: the ballast goes", path=path))

    def _free_bytes(self) -> int:
        return self._disk.free_bytes(self._directory)
