"""Bar: a job's progress, live on a terminal (on stderr, so that --json can be piped), nothing at all elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

if TYPE_CHECKING:
    from varlog.spark.jobs.progress import Progress


class Bar:
    """One line, which each step takes over from the one before it."""

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
    """What a job is given to say how far it is."""
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
