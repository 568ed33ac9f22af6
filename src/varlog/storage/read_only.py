"""ReadOnlyDisk: a Disk for the dump, on which every change raises."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from varlog.model.batch import Buffer
from varlog.runtime.disk import Disk, File, FileLock


def _refuse(path: Path) -> NoReturn:
    raise PermissionError(f"{path} is read-only here")


class ReadOnlyDisk:
    """Another disk, without its changes. Files are read whole, so that files without write permission can be read as well;
    with `whole_files=False` they are opened on the other disk, and read piece by piece."""

    def __init__(self, disk: Disk, *, whole_files: bool = True) -> None:
        self._disk = disk
        self._whole_files = whole_files

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            _refuse(path)
        return ReadOnlyFile(path, self._disk.read_file(path)) if self._whole_files else self._disk.open(path)

    def read_file(self, path: Path) -> bytes:
        return self._disk.read_file(path)

    def replace_file(self, path: Path, content: bytes) -> None:
        _refuse(path)

    def rename(self, old: Path, new: Path) -> None:
        _refuse(old)

    def remove(self, path: Path) -> None:
        _refuse(path)

    def make_directory(self, path: Path) -> None:
        _refuse(path)

    def make_private(self, path: Path) -> int:
        _refuse(path)

    def remove_tree(self, path: Path) -> None:
        _refuse(path)

    def list(self, path: Path) -> builtins.list[str]:
        return self._disk.list(path)

    def exists(self, path: Path) -> bool:
        return self._disk.exists(path)

    def is_directory(self, path: Path) -> bool:
        return self._disk.is_directory(path)

    def is_writable(self, path: Path) -> bool:
        return False

    def free_bytes(self, path: Path) -> int:
        return self._disk.free_bytes(path)

    def sync_directory(self, path: Path) -> None:
        _refuse(path)

    def lock(self, path: Path) -> FileLock:
        return _refuse(path)


class ReadOnlyFile:
    """The content of a file when it was opened."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self._content = content

    def read_at(self, size: int, offset: int) -> bytes:
        return self._content[offset : offset + size]

    def read_cached(self, size: int, offset: int) -> Buffer | None:
        return self.read_at(size, offset)

    def size(self) -> int:
        return len(self._content)

    def is_linked(self) -> bool:
        return True  # nothing is written through it

    def close(self) -> None:
        self._content = b""

    def write_at(self, buffers: Sequence[Buffer], offset: int) -> None:
        _refuse(self.path)

    def sync(self) -> None:
        _refuse(self.path)

    def reserve(self, size: int) -> None:
        _refuse(self.path)

    def truncate(self, size: int) -> None:
        _refuse(self.path)
