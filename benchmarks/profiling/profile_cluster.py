"""`varlog bench` with one of its processes under a profiler; prints where that process spent its processor time.

    python benchmarks/profiling/profile_cluster.py --process vsn-1|vmr|vmc|client [--kind sample|cprofile] [-- bench options]

The first storage node is the primary of the first stream. With `sample` percentages are of samples taken in the main
thread (the event loop) every 2 ms of processor time; with `cprofile` every call is counted, at the price of speed.
"""

from __future__ import annotations

import argparse
import os
import pstats
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUN_S_MAX = 1800


def pattern_of(process: str) -> str:
    """What the command line of that process looks like."""
    if process == "client":
        return r"import run; run\(\) bench"
    if process.startswith("vsn-"):
        return rf"\bvsn start .*--storage-node-id={int(process.removeprefix('vsn-'))}\b"
    return rf"\b{process} start\b"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--process", default="vsn-1")
    parser.add_argument(
        "--match", default="", help="a regular expression for the command line, instead of --process"
    )
    parser.add_argument("--kind", choices=("sample", "cprofile"), default="sample")
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--keep", type=Path, help="leave the profiles in this directory")
    # By hand: argparse gives up on `--` behind options of its own.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    with tempfile.TemporaryDirectory(prefix="varlog-profile-") as scratch:
        directory = arguments.keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        environment = {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "src")]),
            "VARLOG_PROFILE": str(directory),
            "VARLOG_PROFILE_MATCH": arguments.match or pattern_of(arguments.process),
            "VARLOG_PROFILE_KIND": arguments.kind,
        }
        start = "from varlog.cli.main import run; run()"
        subprocess.run(
            [sys.executable, "-c", start, "bench", *options],
            env=os.environ | environment,
            check=False,
            timeout=RUN_S_MAX,
        )
        for command in sorted(directory.glob("*.command")):
            sys.stdout.write(f"\n== {command.read_text('utf-8')[:200]}\n")
            show(command.with_suffix(".stacks"), command.with_suffix(".pstats"), arguments.top)


def show(stacks: Path, calls: Path, top: int) -> None:
    """One process's profile, whichever kind it is."""
    if stacks.exists():
        show_samples(stacks.read_text("utf-8"), top)
    elif calls.exists():
        pstats.Stats(str(calls), stream=sys.stdout).sort_stats("tottime").print_stats(top)
    else:
        sys.stdout.write("no profile: the process did not end cleanly\n")


def show_samples(text: str, top: int) -> None:
    """Where the samples fell: lines that ran, and functions that ran or waited for what they called."""
    own: Counter[str] = Counter()
    below: Counter[str] = Counter()
    used, *lines = text.splitlines()
    sys.stdout.write(f"{used}\n")
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] += int(count)
        for function in dict.fromkeys(frame.rpartition(":")[0] for frame in frames):
            below[function] += int(count)
    total = max(1, sum(own.values()))
    for title, counter in (("by line, itself", own), ("by function, with what it called", below)):
        sys.stdout.write(f"-- {title} ({total} samples)\n")
        for name, samples in counter.most_common(top):
            sys.stdout.write(f"{samples / total * 100:6.1f} %  {name}\n")


if __name__ == "__main__":
    main()
