"""FaultAccount: what `varlog demo --faults` says at the end: every acknowledged entry accounted for, every fault with its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from varlog.cli.demo import History, judge
from varlog.model.entry import Entry

_TOLD_MAX = 5


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
    """`out_of_order`: against the order of an appender, with a gap, or not as the reader saw it that followed. `given_up`:
    positions of a sequenced topic that hold nothing, and say so."""

    acknowledged: int
    lost: int
    doubled: int
    out_of_order: int
    refused: int
    unknown: int
    given_up: int
    violations: tuple[str, ...]
    killed: tuple[Killed, ...]

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.out_of_order)

    def rows(self) -> dict[str, int]:
        return {
            "acknowledged": self.acknowledged,
            "present": self.acknowledged - self.lost,
            "lost": self.lost,
            "doubled": self.doubled,
            "out of order": self.out_of_order,
            "refused": self.refused,
            "outcome unknown": self.unknown,
        } | ({"given up": self.given_up} if self.given_up else {})

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
        for column in ("process", "longest pause", "all runs again after", "acknowledged meanwhile"):
            table.add_column(column, justify="right")
        for one in self.killed:
            times = (f"{one.pause_s:.2f} s", f"{one.healed_s:.1f} s", f"{one.acknowledged_meanwhile:,}")
            table.add_row(one.what, one.victim, *times)
        return table


def account_of(
    history: History,
    entries: list[Entry],
    newest: int,
    followed: list[bytes],
    killed: Sequence[Killed],
    filled: frozenset[int] = frozenset(),
) -> FaultAccount:
    """What the clients were told, against what is in the log."""
    verdicts = judge(history, entries, newest, followed, filled)
    lost, gaps, doubled, disordered, unlike = [len(verdict.violations) for verdict in verdicts]
    return FaultAccount(
        acknowledged=len(history.acknowledged),
        lost=lost,
        doubled=doubled,
        out_of_order=gaps + disordered + unlike,
        refused=len(history.refused),
        unknown=len(history.unknown),
        given_up=len(filled),
        violations=tuple(found for verdict in verdicts for found in verdict.violations[:_TOLD_MAX]),
        killed=tuple(killed),
    )
