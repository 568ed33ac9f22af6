"""Progress: what the bench is doing now, live on a terminal, nothing at all elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Display(Protocol):
    """Takes what happens, step by step."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, what: str) -> None:
        """A new step: a workload, a raw measurement, the start of the cluster."""
        ...

    def advance(self, fraction: float, now: str = "") -> None:
        """How far the step is, and what it shows at the moment."""
        ...

    def result(self, line: str) -> None:
        """A step's outcome, kept above the bar."""
        ...


class Quiet:
    """For pipes, files and tests."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, what: str) -> None:
        return None

    def advance(self, fraction: float, now: str = "") -> None:
        return None

    def result(self, line: str) -> None:
        return None


class Live:
    """One bar on a terminal. It writes to stderr, so that --json can be piped while somebody watches."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=5,  # drawing takes processor time from what is measured
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, what: str) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=1.0, now="")

    def advance(self, fraction: float, now: str = "") -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=min(fraction, 1.0), now=now)

    def result(self, line: str) -> None:
        self._bar.console.print(line, highlight=False, markup=False)


def display_for(console: Console) -> Display:
    """Live where somebody watches."""
    return Live(console) if console.is_terminal else Quiet()
