"""OpenFile: a file that stays open as long as somebody uses it, and closes by itself behind the last one.

A reader in one thread may hold a segment that a trim in another has just unlinked. Closing it under the reader would hand its
descriptor to the next file that is opened, and the reader would serve that file's bytes. So nobody closes a segment:
whoever needs it keeps a reference, and the last one to let go closes it.

Another program may delete the file, or move an older copy over it, while it is open here. What is written goes to a file without a
name from then on, and is gone with the process. The open one still has everything, so it is written again under its name.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from varlog.model.limits import MIB
from varlog.runtime.disk import Disk, File

_COPY_BYTES: Final = 4 * MIB


class OpenFile:
    """Owns one open file."""

    __slots__ = ("file",)

    def __init__(self, file: File) -> None:
        self.file = file

    def __del__(self) -> None:
        # A file that cannot be closed is of no more use to anybody; every write to it was synced, or raised before.
        with contextlib.suppress(Exception):
            self.file.close()


def unlinked(path: Path) -> str:
    """Of a file that lost its name while it was open, what is told of it."""
    return f"{path} was deleted or replaced while it was open, and is written again"


def relinked(disk: Disk, opened: OpenFile, size: int) -> OpenFile | None:
    """A copy of the first `size` bytes, durable and under the file's name, if that name does not lead to the open file any more;
    None if it does. In the worker that alone writes to the file. OSError: the name leads to what it led to before."""
    if opened.file.is_linked():
        return None
    path = opened.file.path
    fresh = path.with_name(path.name + ".new")
    disk.make_directory(path.parent)
    if disk.exists(fresh):
        disk.remove(fresh)
    copy = OpenFile(disk.open(fresh, create=True))
    for offset in range(0, size, _COPY_BYTES):
        copy.file.write_at([opened.file.read_at(min(_COPY_BYTES, size - offset), offset)], offset)
    copy.file.sync()
    disk.rename(fresh, path)
    disk.sync_directory(path.parent)
    return OpenFile(disk.open(path))
