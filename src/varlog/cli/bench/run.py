"""The run: raw limits, workloads, raw limits again; a figure is compared with those measured right beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from varlog.cli.bench.bench_context import BenchContext
from varlog.cli.bench.bench_target import BenchTarget, ground_for
from varlog.cli.bench.conditions import conditions_of
from varlog.cli.bench.progress import Display
from varlog.cli.bench.raw import RawLimits, combined, measure_raw
from varlog.cli.bench.report import Report
from varlog.cli.bench.settings import Settings
from varlog.cli.bench.spark_side import DEFINITION as SPARK_DEFINITION
from varlog.cli.bench.workload import Place, Result, Workload, failed, judged
from varlog.model.cluster import Ordering
from varlog.model.errors import VarlogError

RAW_S = 3.0
QUICK_RAW_S = 1.0


class Run:
    """One run over the chosen workloads."""

    def __init__(self, settings: Settings, workloads: Sequence[Workload], display: Display) -> None:
        self._settings = settings
        self._workloads = workloads
        self._display = display
        self._rounds: list[RawLimits] = []
        self._quiet = True
        self._results: list[Result] = []

    async def report(self) -> Report:
        """Run everything. The data directory must exist; what is made in it is the caller's to remove."""
        started = time.perf_counter()
        settings = self._settings
        conditions = conditions_of(
            settings.data,
            where=settings.where,
            sync="fdatasync before every answer unless a row says otherwise; "
            f"each workload measured for {settings.seconds:g} s{self._spark()}",
        )
        self._quiet = conditions.quiet
        async with AsyncExitStack() as stack:
            self._measure_raw()
            ground: BenchTarget | None = None
            for workload in self._workloads:
                if ground is None and workload.place is not Place.DISK:
                    self._display.begin("starting the cluster")
                    ground = await stack.enter_async_context(ground_for(settings))
                await self._measure(workload, ground)
        # Once more without the cluster's processes: they are idle before, but not free of cost on a small machine.
        self._measure_raw()
        return Report(conditions, tuple(self._rounds), tuple(self._results), time.perf_counter() - started)

    def _spark(self) -> str:
        """How Spark is measured, if it is."""
        spark = any(workload.place is Place.SPARK for workload in self._workloads)
        return f" a side. {SPARK_DEFINITION}" if spark else ""

    def _measure_raw(self) -> None:
        self._display.begin("raw limits")
        seconds = QUICK_RAW_S if self._settings.quick else RAW_S
        # This blocks the loop, on purpose: nothing else of this process may run beside it.
        self._rounds.append(measure_raw(self._settings.data, seconds))

    async def _measure(self, workload: Workload, ground: BenchTarget | None) -> None:
        if workload.place is Place.SPARK and self._settings.embedded:
            self._results.append(failed(workload, "needs a cluster: Spark's tasks are other processes"))
            return
        if workload.place is Place.BOTH and self._settings.embedded:
            self._results.append(failed(workload, "needs a cluster: it is about the ways between processes"))
            return
        if workload.place is Place.CLUSTER and (ground is None or not ground.processes()):
            self._results.append(failed(workload, "needs a cluster that the bench has started itself"))
            return
        if workload.beside_raw:
            self._measure_raw()
        self._display.begin(workload.title)
        directory = self._settings.data / f"workload-{workload.name}"
        directory.mkdir()
        stage = BenchContext(self._settings, self._display, directory, f"bench-{workload.name}", ground)
        try:
            measured = await workload.run(stage)
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
            series=stage.series,
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
        if settings.embedded and workload.place is Place.LOG:
            return "embedded: the target is a cluster's"
        if settings.ordering is Ordering.SEQUENCED and workload.place in (Place.LOG, Place.CLUSTER):
            return "the target is the committed ordering's"
        if (workload.beside_raw or workload.place in (Place.SPARK, Place.BOTH)) and not self._quiet:
            return "other work had the cores"
        if settings.quick and workload.name == "open":
            return "quick: a smaller replica than the target's"
        if settings.quick and workload.place is Place.SPARK:
            return "quick: the start of the tasks is most of it"
        return ""


def expected(error: Exception) -> list[Exception]:
    """What a log or a disk may raise, out of the groups that hold it; anything else is a bug and is raised."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    _, bugs = error.split((VarlogError, OSError))
    if bugs is not None:
        raise bugs
    return [leaf for inner in error.exceptions for leaf in expected(inner)]
