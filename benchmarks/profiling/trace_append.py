"""The path of one append through the processes, step by step, in microseconds.

    python benchmarks/profiling/trace_append.py [--seconds 3] [-- options of varlog bench]

Runs the workload append-1 with every process tracing (all share the monotonic clock) and prints, for each step, the median
time since the client sent its request. Only what happens between a client's Append and its answer is looked at.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUN_S_MAX = 600
# A step that happens in fewer appends than this is not part of the typical way.
SHARE_MIN = 0.5

Event = tuple[int, str, str]


def role_of(command: str) -> str:
    """vmr, vmc, vsn-1 … or client."""
    if found := re.search(r"--storage-node-id=(\d+)", command):
        return f"vsn-{found[1]}"
    found = re.search(r"\b(vmr|vmc) start\b", command)
    return found[1] if found else "client"


def events_in(directory: Path) -> list[Event]:
    """(nanoseconds, process, what), of all processes, in order of time."""
    events: list[Event] = []
    for trace in directory.glob("*.trace"):
        role = role_of(trace.with_suffix(".command").read_text("utf-8"))
        for line in trace.read_text("utf-8").splitlines():
            at, _, what = line.partition(" ")
            events.append((int(at), role, what))
    return sorted(events)


def appends(events: list[Event]) -> Iterator[list[Event]]:
    """The events of each append, from the client's request to the client's answer."""
    under_way: list[Event] | None = None
    for event in events:
        _, role, what = event
        if role == "client" and what == "send Append":
            under_way = []
        if under_way is not None:
            under_way.append(event)
            if role == "client" and what == "receive AppendReply":
                yield under_way
                under_way = None


def steps(events: list[Event]) -> list[tuple[float, float, str, str]]:
    """(median µs since the request, 90th percentile, process, what) of each step, in order of time."""
    offsets: dict[tuple[str, str], list[float]] = {}
    count = 0
    for one in appends(events):
        count += 1
        seen: Counter[tuple[str, str]] = Counter()
        for at, role, what in one:
            seen[role, what] += 1
            number = seen[role, what]
            name = what if number == 1 else f"{what}, number {number}"
            offsets.setdefault((role, name), []).append((at - one[0][0]) / 1000)
    return sorted(
        (statistics.median(values), sorted(values)[int(len(values) * 0.9)], role, what)
        for (role, what), values in offsets.items()
        if len(values) >= count * SHARE_MIN
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", default="3")
    # By hand: argparse gives up on `--` behind options of its own.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    with tempfile.TemporaryDirectory(prefix="varlog-trace-") as scratch:
        environment = {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "src")]),
            "VARLOG_PROFILE": scratch,
            "VARLOG_PROFILE_MATCH": r"\b(vsn|vmr|vmc) start|import run; run\(\) bench",
            "VARLOG_PROFILE_KIND": "trace",
        }
        start = "from varlog.cli.main import run; run()"
        subprocess.run(
            [
                sys.executable,
                "-c",
                start,
                "bench",
                "-w",
                "append-1",
                "--seconds",
                arguments.seconds,
                *options,
            ],
            env=os.environ | environment,
            check=False,
            timeout=RUN_S_MAX,
        )
        sys.stdout.write(f"\n{'median':>8} {'p90':>8}   µs since the client sent its request\n")
        for middle, high, role, what in steps(events_in(Path(scratch))):
            sys.stdout.write(f"{middle:8.0f} {high:8.0f}   {role:7} {what}\n")


if __name__ == "__main__":
    main()
