"""A Spark job on the terminal: its progress bar, and Java's captured stderr."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

if TYPE_CHECKING:
    from varlog.spark.jobs.progress import Progress


class Bar:
    """One line, which shows the current step."""

    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._task is None or what != self._what:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task, self._what = self._bar.add_task(what, total=None), what
        self._bar.update(self._task, completed=done, total=total or None)


@contextmanager
def bar(*, quiet: bool) -> Iterator[Progress]:
    """A callback for the progress of a job."""
    from varlog.spark.jobs.progress import silent

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield silent
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with RichProgress(*columns, console=console, transient=True, refresh_per_second=5) as live:
        yield Bar(live)


# Of Java's stderr, where Spark does not start.
LINES_SHOWN = 5


class CapturedStderr:
    """A nameless file that replaces stderr; it is deleted with the last process that has it open."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - Java writes to it as long as it lives

    def fileno(self) -> int:
        return self._file.fileno()

    def last(self) -> str:
        """Its last lines without stack frames: why Java did not start."""
        self._file.seek(0)
        lines = [line.strip() for line in self._file.read().decode("utf-8", "replace").splitlines()]
        return " ".join([line for line in lines if not line.startswith(("at ", "WARNING: "))][-LINES_SHOWN:])


@contextmanager
def capture_jvm_stderr() -> Iterator[CapturedStderr]:
    """Processes started inside the block write their stderr to the file for good; this process gets its own back afterwards."""
    captured = CapturedStderr()
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(captured.fileno(), 2)
    try:
        yield captured
    finally:
        os.dup2(kept, 2)
        os.close(kept)
