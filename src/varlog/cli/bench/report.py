"""Report: everything one run found, as a table, as Markdown rows and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from varlog.cli.bench.conditions import Conditions
from varlog.cli.bench.figures import format_mb_s, format_ms
from varlog.cli.bench.raw import DEFINITION, RawLimits, combined
from varlog.cli.bench.workload import Result

# Grows when a field changes its meaning, so that a stored result can be read later.
JSON_VERSION = 1

_HEADINGS = ("workload", "measured", "against the raw limit", "target", "met")


@dataclass(frozen=True, slots=True)
class Report:
    """Conditions, raw limits (each round) and results."""

    conditions: Conditions
    rounds: tuple[RawLimits, ...]
    results: tuple[Result, ...]
    took_s: float

    @property
    def raw(self) -> RawLimits:
        return combined(self.rounds)

    @property
    def all_measured(self) -> bool:
        return all(result.measured for result in self.results)

    def as_json(self) -> str:
        return json.dumps(
            {
                "version": JSON_VERSION,
                "conditions": self.conditions.as_json(),
                "raw": self.raw.as_json(),
                "raw_rounds": [one.as_json() for one in self.rounds],
                "results": [result.as_json() for result in self.results],
                "took_s": self.took_s,
            },
            indent=2,
        )

    def raw_line(self) -> str:
        raw = self.raw
        return (
            f"raw limits, median of {len(self.rounds)} rounds: 1 KiB write+fdatasync p50 {format_ms(raw.sync_p50_s)}, "
            f"p99 {format_ms(raw.sync_p99_s)}; 1 MiB write+fdatasync {format_mb_s(raw.write_bytes_per_s)}; "
            f"loopback {format_mb_s(raw.loopback_bytes_per_s)}"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """One a result, in the columns of the table."""
        return [
            (
                result.title,
                result.summary,
                f"{result.ratio:.2f} of {result.against}" if result.ratio is not None else "–",
                result.target,
                _met(result),
            )
            for result in self.results
        ]

    def markdown(self) -> str:
        """Rows for docs/benchmarks.md, with their conditions above."""
        lines = [
            *(f"- {line}" for line in self.conditions.lines()),
            f"- {self.raw_line()}",
            f"- {DEFINITION}",
            "",
        ]
        lines += [_markdown_row(_HEADINGS), _markdown_row(["---"] * len(_HEADINGS))]
        lines += [_markdown_row(row) for row in self.rows()]
        return "\n".join(lines)

    def show(self, console: Console) -> None:
        """The table for people."""
        for line in (*self.conditions.lines(), self.raw_line(), DEFINITION):
            console.print(line, highlight=False, style="dim", soft_wrap=True, markup=False)
        table = Table(show_lines=True)
        for heading in _HEADINGS:
            table.add_column(heading, overflow="fold")
        for row in self.rows():
            table.add_row(*row, style=None if row[-1] != "no" else "red")
        console.print(table)
        console.print(f"took {self.took_s:.0f} s", highlight=False, style="dim")


def _met(result: Result) -> str:
    if result.met is None:
        return result.note or "–"
    return ("yes" if result.met else "no") + (f" ({result.note})" if result.note else "")


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
