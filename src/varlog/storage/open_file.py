"""OpenFile: a file that closes itself when its last user releases it.

A reader in one thread may use a segment that a trim in another has just unlinked. Closing it under the reader would give its
descriptor to the next file that is opened, and the reader would serve that file's bytes. So no one closes a segment: every user
keeps a reference, and the file is closed with the last one.

Another program may delete the file, or move an older copy over it, while it is open here. What is written then goes to a file
without a name, and is lost with the process. The open file still has everything, so it is written again under its name.
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
        # A file that cannot be closed is of no more use; every write to it was synced, or raised before.
        with contextlib.suppress(Exception):
            self.file.close()


def unlinked(path: Path) -> str:
    """The message about a file that lost its name while it was open."""
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
