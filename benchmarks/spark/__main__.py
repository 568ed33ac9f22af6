"""Spark on a topic against Spark on Parquet: read, write, stream, audit, memory.

    python -m benchmarks.spark                       about five minutes

Needs Spark: pip install 'varlog[spark]'.
"""

from __future__ import annotations

from benchmarks.command import Benchmark, options, run_benchmark
from benchmarks.spark.catalogue import SPARK
from benchmarks.spark.session import DEFINITION, prepare_session, stop

STREAMS = 2


def main() -> None:
    benchmark = Benchmark(SPARK, STREAMS, DEFINITION, prepare_session)
    try:
        run_benchmark(benchmark, options(__doc__).parse_args())
    finally:
        stop()


if __name__ == "__main__":
    main()
