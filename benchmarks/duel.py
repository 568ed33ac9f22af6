"""Revisions side by side: a cluster of each is up at the same time, and short slices of one workload go to them by turns.

    python benchmarks/duel.py BEFORE AFTER [AFTER …] [-w append-1] [--slices 24] [--seconds 1] [-- options]

For steps of a few percent, where the whole rounds of compare.py lie further apart than that: what the machine does to one slice it
does to the next one, which is the other side's. Each revision (`.` is the working tree) has its own cluster, client and meter. The
table has, for each figure, the ratio of the medians against BEFORE and its 90 % interval (bootstrap over pairs of slices); one that
holds 1.00 is no difference. Processor time is that of all the side's processes. An idle cluster is silent, so it disturbs little.
A revision may name the interpreter that runs it (`.@/usr/bin/python3.12`), which must have what varlog needs installed.

Options behind `--`: ordering=sequenced, streams=N, replicas=N, entry_bytes=N, appenders=N, batch=N.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

from compare import source_of  # type: ignore[import-not-found] # its neighbour: this runs as a script

START_S_MAX = 60
SLICES_TO_WARM_UP = 2
RESAMPLES = 2000

# One side: reads "go" lines, answers each with the figures of one slice. It runs with its own revision's package alone.
SIDE = """
import asyncio, json, os, sys
from dataclasses import replace
from pathlib import Path
from importlib import import_module

def first_of(*places):
    # The first of these names that this revision has: they were called differently before.
    for module, _, name in (place.partition(":") for place in places):
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"this revision has none of {places}")

WORKLOADS = first_of("varlog.bench.catalogue:WORKLOADS", "varlog.cli.bench.catalogue:WORKLOADS")
Quiet = first_of("varlog.bench.context:QuietDisplay", "varlog.bench.context:Quiet", "varlog.cli.bench.progress:Quiet")
BenchContext = first_of(
    "varlog.bench.context:BenchContext", "varlog.cli.bench.bench_context:BenchContext", "varlog.cli.bench.stage:Stage"
)
target_for = first_of(
    "varlog.bench.context:target_for", "varlog.bench.context:ground_for",
    "varlog.cli.bench.bench_target:ground_for", "varlog.cli.bench.ground:ground_for",
)
Settings = first_of(
    "varlog.bench.context:BenchSettings", "varlog.bench.context:Settings", "varlog.cli.bench.settings:Settings"
)

def settings_of(data, options):
    fields, ordering = Settings.__dataclass_fields__, options.pop("ordering", "committed")
    if "ordering" in fields:
        from varlog.model.cluster import Ordering
        options["ordering"] = Ordering(ordering)
    elif "measure" in fields:
        options["measure"] = import_module(Settings.__module__).Measure(ordering)
    return Settings(data=Path(data), warm_up_s=0.2, **options)

def used_s(pids):
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")

async def main(data, name, options):
    workload = next(found for found in WORKLOADS if found.name == name)
    settings = settings_of(data, options)
    async with target_for(settings) as target:
        pids = [os.getpid(), *target.processes().values()]
        lines = asyncio.get_running_loop()
        print("ready", flush=True)
        while await lines.run_in_executor(None, sys.stdin.readline):
            before = used_s(pids)
            measured = await workload.run(BenchContext(settings, Quiet(), Path(data), f"bench-{name}", target))
            whole_s = settings.seconds + settings.warm_up_s
            calls = measured["calls"] / settings.seconds * whole_s
            measured["cpu_us_per_call"] = (used_s(pids) - before) / calls * 1e6
            print(json.dumps(measured), flush=True)

import uvloop
uvloop.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
"""

# Less is better; appends_per_s is the only rate.
FIGURES = ("p50_s", "p99_s", "appends_per_s", "cpu_us_per_call")


class Side:
    """One revision with its cluster."""

    def __init__(
        self, named: str, source: Path, data: Path, workload: str, options: dict[str, float | str]
    ) -> None:
        self.revision = named
        _, _, interpreter = named.partition("@")
        self.slices: list[dict[str, float]] = []
        data.mkdir()
        self._process = subprocess.Popen(
            [interpreter or sys.executable, "-c", SIDE, data, workload, json.dumps(options)],
            env=os.environ | {"PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._orders = cast(IO[str], self._process.stdin)
        self._answers = cast(IO[str], self._process.stdout)

    def wait_ready(self) -> None:
        if self._answers.readline().strip() != "ready":
            raise SystemExit(f"the cluster of {self.revision} did not start")

    def measure(self, *, counts: bool) -> None:
        self._orders.write("go\n")
        self._orders.flush()
        answer = self._answers.readline()
        if not answer:
            raise SystemExit(f"the benchmark of {self.revision} has ended")
        if counts:
            self.slices.append(json.loads(answer))

    def end(self) -> None:
        self._orders.close()
        try:
            self._process.wait(START_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def ratio_of(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """The ratio of the medians, and where 90 % of the ratios lie when the pairs of slices are resampled."""
    chance = random.Random(1)
    pairs = list(zip(before, after, strict=True))
    drawn = []
    for _ in range(RESAMPLES):
        sample = chance.choices(pairs, k=len(pairs))
        drawn.append(statistics.median(b for _, b in sample) / statistics.median(a for a, _ in sample))
    drawn.sort()
    ratio = statistics.median(after) / statistics.median(before)
    return ratio, drawn[RESAMPLES // 20], drawn[-RESAMPLES // 20]


def ratio_table(sides: Sequence[Side]) -> str:
    """The table."""
    lines = [f"{'revision':24} {'figure':16} {'median':>10} {'ratio':>7}   90 % interval"]
    for side in sides:
        for figure in FIGURES:
            values = [one[figure] for one in side.slices]
            line = f"{side.revision[-24:]:24} {figure:16} {_number(figure, statistics.median(values)):>10}"
            if side is not sides[0]:
                ratio, low, high = ratio_of([one[figure] for one in sides[0].slices], values)
                line += f" {ratio:7.3f}   {low:.3f} to {high:.3f}"
            lines.append(line)
    return "\n".join(lines) + "\n"


def _number(figure: str, value: float) -> str:
    return f"{value * 1e3:.3f} ms" if figure.endswith("_s") and figure[0] == "p" else f"{value:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revisions", nargs="+", metavar="REVISION")
    parser.add_argument("-w", "--workload", default="append-1")
    parser.add_argument("--slices", type=int, default=24, help="of each revision")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one slice")
    parser.add_argument("--data", type=Path, help="a directory on the disk to measure")
    # By hand: argparse gives up on `--` behind options of its own.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments = parser.parse_args(sys.argv[1:end])
    options: dict[str, float | str] = {"seconds": arguments.seconds}
    for name, _, value in (word.partition("=") for word in sys.argv[end + 1 :]):
        options[name] = int(value) if value.isdigit() else value
    with ExitStack() as stack:
        scratch = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="varlog-duel-", dir=arguments.data))
        )
        sides = []
        for number, revision in enumerate(arguments.revisions):
            source = stack.enter_context(source_of(revision.partition("@")[0]))
            side = Side(revision, source, scratch / str(number), arguments.workload, options)
            stack.callback(side.end)
            side.wait_ready()
            sides.append(side)
        for number in range(arguments.slices + SLICES_TO_WARM_UP):
            # There and back: a machine that gets slower or faster meanwhile favours nobody.
            for side in sides if number % 2 == 0 else reversed(sides):
                side.measure(counts=number >= SLICES_TO_WARM_UP)
        sys.stdout.write(ratio_table(sides))


if __name__ == "__main__":
    main()
