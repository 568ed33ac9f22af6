"""How many entries a second the metadata repository orders, emulated: thousands of log streams on nodes that keep no data.

    python -m benchmarks.ordering.scale [--streams 64,256,1024] [--rate 15000] [--copies 3] [--json] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

import uvloop

from benchmarks.ordering.emulation import Emulation, Figures
from benchmarks.ordering.load import Load


def measured(load: Load, processes: int, data: Path | None) -> Figures:
    with tempfile.TemporaryDirectory(prefix="varlog-ordering-", dir=data) as directory:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Emulation(load, Path(directory), processes).run())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=lambda told: [int(one) for one in told.split(",")], default=[64, 256, 1024, 4096])
    parser.add_argument("--rate", type=float, default=15_000.0)
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--interval-ms", type=float, default=20.0)
    parser.add_argument("--per-node", type=int, default=64)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for streams in options.streams:
        load = Load(
            streams, options.copies, options.rate, options.interval_ms, options.per_node, options.topics, 1.0, options.seconds
        )
        figures = measured(load, options.processes, options.data)
        sys.stdout.write(json.dumps(figures.as_json()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
