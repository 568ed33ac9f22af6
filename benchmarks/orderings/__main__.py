"""The sequenced ordering against the committed one: appends, reads and the sequencer.

    python -m benchmarks.orderings

One cluster, a topic of each ordering, the same load on both in turns.
The faults of both: python -m benchmarks.faults --ordering both.
"""

from __future__ import annotations

from benchmarks.command import Benchmark, options, run_benchmark
from benchmarks.orderings.catalogue import EVERYTHING

NOTE = "A committed and a sequenced topic in turns; figures are medians of the turns"


def main() -> None:
    run_benchmark(Benchmark(EVERYTHING, note=NOTE), options(__doc__).parse_args())


if __name__ == "__main__":
    main()
