"""DiskSpace: the free space of one volume, and its reserve (R-SEAL-6).

Appends leave a reserve, so that seals, trims and states can still be written. A volume is *full* when less than the reserve is
free, or when an append found no space; it stays full until half as much again is free, and what the append needed. If another
program has used up the reserve, a small ballast file makes space for the few bytes of a seal or a trim: a trim that could not be
written could never free anything.
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
    """True for the errors of a file system, or a quota, without free space."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class DiskSpace:
    """One volume's free space, shared by the workers of the replicas on it. The event loop asks `full`, which the kernel knows
    without reading the device."""

    def __init__(self, disk: Disk, directory: Path, *, reserve_bytes: int = 0, why: str = "") -> None:
        self.why = why or f"the disk is full: free space on {directory}"
        self._disk = disk
        self._directory = directory
        self._reserve_bytes = reserve_bytes
        self._wanted_bytes = 0
        self._full = False

    @property
    def full(self) -> bool:
        """True while appends would find no space; with a margin, so that it does not change with every file."""
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
        """How much a segment may grow: as much as it wants, or what leaves the reserve. Raises OSError if it needs more than
        that."""
        spare = self._free_bytes() - self._reserve_bytes
        if spare < needed_bytes:
            self.mark_full(needed_bytes)
            raise OSError(errno.ENOSPC, self.why)
        if spare >= self._reserve_bytes // 2:
            self.keep_ballast()
        return max(needed_bytes, min(wanted_bytes, spare))

    def mark_full(self, needed_bytes: int = 0) -> None:
        """Record that an append found no space."""
        self._full, self._wanted_bytes = True, max(self._wanted_bytes, needed_bytes)

    def can_spare(self, needed_bytes: int) -> bool:
        """Whether something that could as well wait may be written now."""
        return not self.full and self._free_bytes() - needed_bytes >= self._reserve_bytes

    def persist(self, write: Callable[[], T]) -> T:
        """Do a small write that must not fail for lack of space: again after the ballast was removed. `write` may run twice."""
        try:
            return write()
        except OSError as error:
            if not is_disk_full(error):
                raise
        self._drop_ballast()
        return write()

    def keep_ballast(self) -> None:
        """Create the ballast file, if there is none. A volume that has no space for it has none."""
        size, path = min(BALLAST_BYTES_MAX, self._reserve_bytes // 4), self._directory / BALLAST_NAME
        with contextlib.suppress(OSError):  # another worker was faster, or there is no space
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
            _log.warning(logfmt("the volume is completely full: the ballast is removed", path=path))

    def _free_bytes(self) -> int:
        return self._disk.free_bytes(self._directory)
