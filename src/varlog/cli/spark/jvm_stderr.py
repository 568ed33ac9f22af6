"""hushed(): what Java says on stderr is kept aside while nobody needs it, and shown when Spark does not start."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

LINES_SHOWN = 5


class CapturedStderr:
    """What was written instead of to stderr; the file has no name, and is gone with the last process that writes to it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - Java writes to it as long as it lives

    def fileno(self) -> int:
        return self._file.fileno()

    def last(self) -> str:
        """Its end, without Java's frames: why a Java that did not start gave up."""
        self._file.seek(0)
        lines = [line.strip() for line in self._file.read().decode("utf-8", "replace").splitlines()]
        return " ".join([line for line in lines if not line.startswith(("at ", "WARNING: "))][-LINES_SHOWN:])


@contextmanager
def capture_jvm_stderr() -> Iterator[CapturedStderr]:
    """Processes that are started inside the block write their stderr aside for good; this one has its own back behind it."""
    captured = CapturedStderr()
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(captured.fileno(), 2)
    try:
        yield captured
    finally:
        os.dup2(kept, 2)
        os.close(kept)
