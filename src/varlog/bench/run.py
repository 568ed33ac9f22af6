"""Run: raw limits, workloads, raw limits again; and the Report of all of it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from varlog.bench.context import BenchContext, BenchSettings, BenchTarget, Display, target_for
from varlog.bench.figures import format_mb_s, format_ms
from varlog.bench.machine import DEFINITION, Conditions, RawLimits, combined, conditions_of, measure_raw
from varlog.bench.workload import Workload, WorkloadPlace, WorkloadResult, failed, judged
from varlog.model.cluster import Ordering
from varlog.model.errors import VarlogError

RAW_S = 3.0
QUICK_RAW_S = 1.0


class BenchRun:
    """One run over the chosen workloads. `note`: how they are measured, for the conditions in the report."""

    def __init__(
        self, settings: BenchSettings, workloads: Sequence[Workload], display: Display, note: str = ""
    ) -> None:
        self._settings = settings
        self._workloads = workloads
        self._display = display
        self._how = f". {note}" if note else ""
        self._rounds: list[RawLimits] = []
        self._quiet = True
        self._results: list[WorkloadResult] = []

    async def report(self) -> BenchReport:
        """Run everything. The data directory must exist; the caller removes what is created in it."""
        started = time.perf_counter()
        settings = self._settings
        conditions = conditions_of(
            settings.data,
            where=settings.where,
            sync="fdatasync before every answer unless a row says otherwise; "
            f"each workload measured for {settings.seconds:g} s{self._how}",
        )
        self._quiet = conditions.quiet
        async with AsyncExitStack() as stack:
            self._measure_raw()
            bench_target: BenchTarget | None = None
            for workload in self._workloads:
                if bench_target is None and workload.place is not WorkloadPlace.DISK:
                    self._display.begin("starting the cluster")
                    bench_target = await stack.enter_async_context(target_for(settings))
                await self._measure(workload, bench_target)
        # Once more without the cluster's processes: they are idle before, but not free of cost on a small machine.
        self._measure_raw()
        return BenchReport(
            conditions, tuple(self._rounds), tuple(self._results), time.perf_counter() - started
        )

    def _measure_raw(self) -> None:
        self._display.begin("raw limits")
        seconds = QUICK_RAW_S if self._settings.quick else RAW_S
        # This blocks the event loop on purpose: nothing else of this process may run at the same time.
        self._rounds.append(measure_raw(self._settings.data, seconds))

    async def _measure(self, workload: Workload, bench_target: BenchTarget | None) -> None:
        if workload.place is WorkloadPlace.IN_TURNS and self._settings.embedded:
            self._results.append(failed(workload, "needs a cluster: it measures work of several processes"))
            return
        if workload.place is WorkloadPlace.CLUSTER and (bench_target is None or not bench_target.processes()):
            self._results.append(failed(workload, "needs a cluster that the bench has started itself"))
            return
        if workload.beside_raw:
            self._measure_raw()
        self._display.begin(workload.title)
        directory = self._settings.data / f"workload-{workload.name}"
        directory.mkdir()
        context = BenchContext(
            self._settings, self._display, directory, f"bench-{workload.name}", bench_target
        )
        try:
            measured = await workload.run(context)
        except (VarlogError, OSError, ExceptionGroup) as error:
            why = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in expected(error))
            self._results.append(failed(workload, why))
            self._display.result(f"{workload.title}: not measured: {why}")
            return
        if workload.beside_raw:
            self._measure_raw()
        beside = combined(self._rounds[-2:] if workload.beside_raw else self._rounds)
        result = judged(
            workload,
            measured,
            beside,
            applies=self._applies(workload),
            note=self._note(workload),
            series=context.series,
        )
        self._results.append(result)
        self._display.result(f"{result.title}: {result.summary}")

    def _applies(self, workload: Workload) -> bool:
        return not self._note(workload)

    def _note(self, workload: Workload) -> str:
        """Why the target does not apply to what was measured, or nothing."""
        settings = self._settings
        if settings.own_load:
            return "another load than the target's"
        if settings.embedded and workload.place is WorkloadPlace.LOG:
            return "embedded: the target is a cluster's"
        if settings.ordering is Ordering.SEQUENCED and workload.place in (
            WorkloadPlace.LOG,
            WorkloadPlace.CLUSTER,
        ):
            return "the target is the committed ordering's"
        if (workload.beside_raw or workload.place is WorkloadPlace.IN_TURNS) and not self._quiet:
            return "other work had the cores"
        return workload.quick_note if settings.quick else ""


def expected(error: Exception) -> list[Exception]:
    """What a log or a disk may raise, unpacked from exception groups; anything else is a bug and is raised."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    _, bugs = error.split((VarlogError, OSError))
    if bugs is not None:
        raise bugs
    return [leaf for inner in error.exceptions for leaf in expected(inner)]


# Report: everything one run found, as a table, as Markdown rows and as JSON.

# Grows when a field changes its meaning, so that a stored result can be read later.
JSON_VERSION = 1

_HEADINGS = ("workload", "measured", "against the raw limit", "target", "met")


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Conditions, raw limits (each round) and results."""

    conditions: Conditions
    rounds: tuple[RawLimits, ...]
    results: tuple[WorkloadResult, ...]
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
        """One per result, in the columns of the table."""
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
        """Print the table."""
        for line in (*self.conditions.lines(), self.raw_line(), DEFINITION):
            console.print(line, highlight=False, style="dim", soft_wrap=True, markup=False)
        table = Table(show_lines=True)
        for heading in _HEADINGS:
            table.add_column(heading, overflow="fold")
        for row in self.rows():
            table.add_row(*row, style=None if row[-1] != "no" else "red")
        console.print(table)
        console.print(f"took {self.took_s:.0f} s", highlight=False, style="dim")


def _met(result: WorkloadResult) -> str:
    if result.met is None:
        return result.note or "–"
    return ("yes" if result.met else "no") + (f" ({result.note})" if result.note else "")


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
