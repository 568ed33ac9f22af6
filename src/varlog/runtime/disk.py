"""Disk and File: synchronous access to storage; OsDisk is the real one.

The simulator's disk loses what was not synced.

What OsDisk makes is its user's alone: files 0600, directories 0700, whatever the umask.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from varlog.model.batch import Buffer
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.process import unfilled

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

_log = get_logger("disk")


class File(Protocol):
    """One open file. Offsets are explicit: there is no cursor."""

    path: Path

    def write_at(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers back to back from `offset` on, whole, or raise OSError."""
        ...

    def sync(self) -> None:
        """Make everything written survive a power loss (fdatasync: data, and the size if it grew). An error is final."""
        ...

    def read_at(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer only at the end of the file."""
        ...

    def read_cached(self, size: int, offset: int) -> Buffer | None:
        """As read_at if no disk access is needed for it, else None. Never waits."""
        ...

    def reserve(self, size: int) -> None:
        """Make the file at least `size` long with its blocks allocated; new bytes read as zero."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file, for real: the bytes behind are gone once synced."""
        ...

    def size(self) -> int: ...

    def is_linked(self) -> bool:
        """Whether `path` leads to this very file. A file that was deleted, or that another one was moved over, can be
        used while it is open, and is gone with the process."""
        ...

    def close(self) -> None: ...


class FileLock(Protocol):
    """A lock on a file that this process has; released when the process ends."""

    def is_linked(self) -> bool:
        """As of a File: another process can lock the path if it is not."""
        ...

    def release(self) -> None: ...


class Disk(Protocol):
    """The file system. Renames and new names survive a power loss only after `sync_directory`."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing. `create` makes an empty file and fails if one exists."""
        ...

    def read_file(self, path: Path) -> bytes: ...

    def replace_file(self, path: Path, content: bytes) -> None:
        """Put `content` at `path` atomically and durably: after a crash it is the old or the new one, whole."""
        ...

    def rename(self, old: Path, new: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def make_directory(self, path: Path) -> None:
        """Make it and its parents, durably; it may exist already."""
        ...

    def make_private(self, path: Path) -> int:
        """Remove the access of others to a file, or to a directory and everything in it, where it is ours; how many changed."""
        ...

    def remove_tree(self, path: Path) -> None: ...

    def list(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def exists(self, path: Path) -> bool: ...

    def is_directory(self, path: Path) -> bool: ...

    def is_writable(self, path: Path) -> bool: ...

    def free_bytes(self, path: Path) -> int:
        """How much may still be written on the file system of `path`, which exists."""
        ...

    def sync_directory(self, path: Path) -> None: ...

    def lock(self, path: Path) -> FileLock:
        """Take an exclusive lock, or raise BlockingIOError if another process has it."""
        ...


class OsFile:
    """A file of the operating system."""

    def __init__(self, path: Path, *, create: bool, synced: bool, read_only: bool = False) -> None:
        self.path = path
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
        flags |= os.O_CREAT | os.O_EXCL if create else 0
        self._fd = os.open(path, flags, FILE_MODE)
        self._synced = synced

    def write_at(self, buffers: Sequence[Buffer], offset: int) -> None:
        total = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, offset)
        while written < total:
            # A short write is legal (a signal, a nearly full disk): continue from there, and let the next call raise.
            rest = memoryview(b"".join(buffers))[written:]
            step = os.pwrite(self._fd, rest, offset + written)
            if step == 0:
                raise OSError(errno.EIO, "the disk takes no more bytes", str(self.path))
            written += step

    def sync(self) -> None:
        if self._synced:
            os.fdatasync(self._fd)

    def read_at(self, size: int, offset: int) -> bytes:
        parts = []
        while size > 0:
            part = os.pread(self._fd, size, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_cached(self, size: int, offset: int) -> Buffer | None:
        buffer = unfilled(size)
        try:
            got = os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError:
            return None
        return buffer if got == size else None

    def reserve(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def is_linked(self) -> bool:
        return _is_linked(self._fd, self.path)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsLock:
    """flock on an open file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def is_linked(self) -> bool:
        return _is_linked(self._fd, self._path)

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsDisk:
    """The file system of this machine. `synced=False` never waits for the device: fast, and a power loss may lose the tail.
    `read_only` opens files for reading alone, so that no write permission is needed."""

    def __init__(self, *, synced: bool = True, read_only: bool = False) -> None:
        self._synced = synced
        self._read_only = read_only

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        return OsFile(path, create=create, synced=self._synced, read_only=self._read_only)

    def read_file(self, path: Path) -> bytes:
        return path.read_bytes()

    def replace_file(self, path: Path, content: bytes) -> None:
        fresh = path.with_name(path.name + ".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            if self._synced:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(fresh, path)
        self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def make_directory(self, path: Path) -> None:
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        for made in reversed(missing):
            made.mkdir(DIRECTORY_MODE, exist_ok=True)
        path.mkdir(DIRECTORY_MODE, exist_ok=True)  # raises where it is no directory
        for made in missing:
            self.sync_directory(made.parent)

    def make_private(self, path: Path) -> int:
        changed = sum(map(_restrict, (path, *_below(path))))
        if changed:
            _log.warning(
                logfmt("others could reach files of ours, and cannot any more", path=path, changed=changed)
            )
        return changed

    def remove_tree(self, path: Path) -> None:
        for root, directories, files in os.walk(path, topdown=False):
            for name in files:
                os.unlink(Path(root, name))
            for name in directories:
                os.rmdir(Path(root, name))
        os.rmdir(path)
        self.sync_directory(path.parent)

    def list(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def is_writable(self, path: Path) -> bool:
        # access() says yes to root on a read-only mount's mode bits, so try it: that is what the node will do.
        if not os.access(path, os.W_OK | os.X_OK):
            return False
        probe = path / f".varlog-probe-{os.getpid()}"
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.unlink(probe)
        except OSError:
            return False
        return True

    def free_bytes(self, path: Path) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def sync_directory(self, path: Path) -> None:
        if not self._synced:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path) -> OsLock:
        return OsLock(path)


def _is_linked(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False


def make_ours_private(disk: Disk, directory: Path, ours: str) -> None:
    """As make_private for a directory that its user chose: only names that match `ours`, unless there are no others. It
    may hold more than a log."""
    names = disk.list(directory)
    found = [name for name in names if re.fullmatch(ours, name)]
    for path in [directory] if len(found) == len(names) else [directory / name for name in found]:
        disk.make_private(path)


def _below(path: Path) -> Iterator[Path]:
    """Everything in a directory; symbolic links are not followed."""
    for root, directories, files in os.walk(path):
        for name in (*directories, *files):
            yield Path(root, name)


def _restrict(path: Path) -> bool:
    """Leave access to the owner alone. Not where it is another user's, a symbolic link, or a directory that all share (/tmp)."""
    try:
        found = os.lstat(path)
        private = found.st_uid != os.geteuid() or not found.st_mode & 0o077
        if private or stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
            return False
        os.chmod(path, stat.S_IMODE(found.st_mode) & 0o700)
    except FileNotFoundError:  # it was removed meanwhile
        return False
    return True
