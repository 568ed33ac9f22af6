"""OpenFile: a file that stays open as long as somebody uses it, and closes by itself behind the last one.

A reader in one thread may hold a segment that a trim in another has just unlinked. Closing it under the reader would hand its
descriptor to the next file that is opened, and the reader would serve that file's bytes. So nobody closes a segment:
whoever needs it keeps a reference, and the last one to let go closes it.
"""

from __future__ import annotations

import contextlib

from varlog.runtime.disk import File


class OpenFile:
    """Owns one open file."""

    __slots__ = ("file",)

    def __init__(self, file: File) -> None:
        self.file = file

    def __del__(self) -> None:
        # A file that cannot be closed is of no more use to anybody; every write to it was synced, or raised before.
        with contextlib.suppress(Exception):
            self.file.close()
