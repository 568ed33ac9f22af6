"""Kills processes of a cluster under load: how long appends pause, and how many fail.

    python -m benchmarks.faults                      the committed ordering, about two minutes
    python -m benchmarks.faults --ordering both      both orderings, in one run
    python -m benchmarks.faults --json > faults.json for the plot: python benchmarks/faults/plot.py faults.json docs/faults.svg

The replicated metadata repository needs etcd: pip install 'varlog[test-etcd]'.
"""

from __future__ import annotations

from benchmarks.command import Benchmark, options, run_benchmark
from benchmarks.faults.catalogue import FAULTS
from benchmarks.faults.kill import STREAMS


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ordering", choices=FAULTS, default="committed", help="of the topics [committed]")
    chosen = parser.parse_args()
    run_benchmark(Benchmark(FAULTS[chosen.ordering], streams=STREAMS), chosen)


if __name__ == "__main__":
    main()
