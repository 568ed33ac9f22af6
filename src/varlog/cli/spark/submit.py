"""The program that spark-submit runs: `spark-submit [its options] …/varlog/cli/spark/submit.py JOB [options]`.

The jobs are the same as with `varlog spark JOB`; master, memory and cores are spark-submit's to say. `varlog spark --launcher`
prints where this file is.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    # Python puts the folder of its program first on the path; the modules here are not meant to be found by their short names.
    if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    from varlog.cli.spark import spark

    spark(prog_name="varlog spark")


if __name__ == "__main__":
    main()
