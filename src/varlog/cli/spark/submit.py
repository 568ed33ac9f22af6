"""The program that spark-submit runs: `spark-submit … submit.py JOB [options]`.

The jobs are the same as with `varlog spark JOB`; set master, memory and cores with spark-submit. `varlog spark --launcher`
prints the path of this file.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    # Python puts the directory of its program first on the path; the modules here must not be importable by their short names.
    if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    from varlog.cli.spark import spark

    spark(prog_name="varlog spark")


if __name__ == "__main__":
    main()
