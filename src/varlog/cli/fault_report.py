"""FaultDisplay and FaultAccount: what `varlog demo --faults` shows.

The display is live while it runs; the account at the end lists every acknowledged entry and the cost of every fault.
"""

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

from varlog.cli.demo_history import DENSE, FOLLOWED, ONCE, ORDERED, SURVIVES, UNCHANGED, DemoHistory

_BARS = " ▁▂▃▄▅▆▇█"
_EVENTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One process: its id while it runs, and what it does."""

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
    """One character per value. Zero is a blank; anything more has at least the lowest bar."""
    top = max(values, default=0.0)
    if top <= 0:
        return " " * len(values)
    return "".join(
        _BARS[0] if value <= 0 else _BARS[max(1, round(value / top * (len(_BARS) - 1)))] for value in values
    )


def fault_display(console: Console) -> FaultDisplay:
    """Live on a terminal, plain lines elsewhere."""
    return LivePicture(console) if console.is_terminal else PlainLines(console)


_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Killed:
    """One fault and what it cost."""

    what: str
    victim: str
    pause_s: float
    healed_s: float
    acknowledged_meanwhile: int


@dataclass(frozen=True, slots=True)
class FaultAccount:
    """`out_of_order`: violations of the order: gaps, positions that changed, entries before older ones, or a reader that saw
    something else. `junk`: positions of a sequenced topic that were filled."""

    acknowledged: int
    lost: int
    duplicated: int
    out_of_order: int
    refused: int
    unknown: int
    junk: int
    violations: tuple[str, ...]
    killed: tuple[Killed, ...]

    @property
    def holds(self) -> bool:
        return not (self.lost or self.duplicated or self.out_of_order)

    def rows(self) -> dict[str, int]:
        return {
            "acknowledged": self.acknowledged,
            "present": self.acknowledged - self.lost,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "out of order": self.out_of_order,
            "refused": self.refused,
            "outcome unknown": self.unknown,
        } | ({"junk positions": self.junk} if self.junk else {})

    def figures(self) -> dict[str, object]:
        """For programs."""
        faults = [
            {
                "killed": one.what,
                "process": one.victim,
                "longest_pause_s": round(one.pause_s, 3),
                "healed_s": round(one.healed_s, 3),
                "acknowledged_meanwhile": one.acknowledged_meanwhile,
            }
            for one in self.killed
        ]
        rows = {name.replace(" ", "_"): value for name, value in self.rows().items()}
        return {**rows, "faults": faults, "holds": self.holds, "violations": list(self.violations)}

    def show(self, console: Console) -> None:
        """For people."""
        console.print("", self._table(), "", sep="\n")
        for name, value in self.rows().items():
            console.print(f"  {name:16} {value:>10,}", highlight=False)
        for violation in self.violations:
            console.print(f"  [red]✗[/red] {violation}", soft_wrap=True)
        console.print(f"\n[bold]{'Nothing was lost.' if self.holds else 'Something is wrong.'}[/bold]\n")

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("killed", no_wrap=True)
        for column in ("process", "longest pause", "running again after", "acknowledged meanwhile"):
            table.add_column(column, justify="right")
        for one in self.killed:
            times = (f"{one.pause_s:.2f} s", f"{one.healed_s:.1f} s", f"{one.acknowledged_meanwhile:,}")
            table.add_row(one.what, one.victim, *times)
        return table


def account_of(history: DemoHistory, killed: Sequence[Killed]) -> FaultAccount:
    """What the clients saw, checked against what is in the log."""
    lost = history.violations(SURVIVES)
    doubled = history.violations(ONCE)
    out_of_order = [history.violations(checkers) for checkers in (DENSE, UNCHANGED, ORDERED, FOLLOWED)]
    found = [lost, doubled, *out_of_order]
    return FaultAccount(
        acknowledged=history.acknowledged,
        lost=len(lost),
        duplicated=len(doubled),
        out_of_order=sum(map(len, out_of_order)),
        refused=history.rejected,
        unknown=history.unknown,
        junk=history.junk,
        violations=tuple(violation for violations in found for violation in violations[:_SHOWN_MAX]),
        killed=tuple(killed),
    )
