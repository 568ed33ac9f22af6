"""What `varlog demo --faults` shows: live on a terminal (processes, throughput, the manager), plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_BARS = " ▁▂▃▄▅▆▇█"
_EVENTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One process: is it there, and what is it at."""

    name: str
    pid: int | None
    doing: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment of the cluster."""

    processes: Sequence[ProcessLine] = ()
    rates: Sequence[float] = ()
    acknowledged: int = 0
    now: str = ""


class FaultDisplay(Protocol):
    """Takes what happens."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, what: str) -> None:
        """Something happened: it stays to be seen."""
        ...

    def event(self, what: str) -> None:
        """The manager did something."""
        ...

    def show(self, scene: Scene) -> None:
        """How it is at the moment."""
        ...


class PlainLines:
    """For pipes and files: what happens, one line each, with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, what: str) -> None:
        self._console.print(f"{monotonic() - self._begun:5.1f} s  {what}", markup=False, soft_wrap=True)

    def event(self, what: str) -> None:
        self.say(f"  manager: {what}")

    def show(self, scene: Scene) -> None:
        return None


@dataclass
class LivePicture:
    """For a terminal: one picture that changes in place."""

    console: Console
    begun: float = field(default_factory=monotonic)
    _scene: Scene = field(default_factory=Scene)
    _events: deque[str] = field(default_factory=lambda: deque(maxlen=_EVENTS_SHOWN))

    def __post_init__(self) -> None:
        # Few pictures a second: drawing takes processor time from the cluster.
        self._live = Live(console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, what: str) -> None:
        """Above the picture: there it stays, as in a pipe."""
        line = f"{monotonic() - self.begun:5.1f} s  {what}"
        self._live.console.print(line, markup=False, highlight=False)

    def event(self, what: str) -> None:
        self._events.append(f"{monotonic() - self.begun:5.1f} s  {what}")

    def show(self, scene: Scene) -> None:
        self._scene = scene
        self._live.update(picture(scene, list(self._events), self.console.width))


def picture(scene: Scene, events: Sequence[str], width: int) -> Group:
    """The picture of one moment."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("process", "pid", "state"):
        table.add_column(column)
    for line in scene.processes:
        if line.pid is None:
            table.add_row(line.name, "", "killed", style="bold red")
        else:
            table.add_row(line.name, str(line.pid), line.doing or "runs")
    newest = scene.rates[-1] if scene.rates else 0.0
    return Group(
        Text(""),
        Text(scene.now, style="bold"),
        table,
        Text(""),
        Text(f"{newest:8,.0f} appends/s  {scene.acknowledged:,} acknowledged"),
        Text(sparkline(scene.rates[-max(width - 2, 10) :]), style="green"),
        Text("\n".join(["manager", *(f"  {event}" for event in events)]), style="dim"),
    )


def sparkline(values: Sequence[float]) -> str:
    """One character a value; a blank is nothing at all, anything more has at least the lowest bar."""
    top = max(values, default=0.0)
    if top <= 0:
        return " " * len(values)
    return "".join(
        _BARS[0] if value <= 0 else _BARS[max(1, round(value / top * (len(_BARS) - 1)))] for value in values
    )


def fault_display(console: Console) -> FaultDisplay:
    """Live where somebody watches."""
    return LivePicture(console) if console.is_terminal else PlainLines(console)
