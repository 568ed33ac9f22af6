"""Prints the table of harms, and renders its page of the documentation.

python -m varlog.testing.harm_report DIRECTORY PAGE
"""

from __future__ import annotations

import sys
from pathlib import Path

from varlog.testing.harm_table import as_markdown, as_text, read_results, wrong


def main(directory: Path, page: Path) -> int:
    cells = read_results(directory)
    if not cells:
        print(f"no results of the table of harms in {directory}")
        return 0
    print(as_text(cells))
    page.write_text(as_markdown(cells), "utf-8")
    bugs = [found for found in map(wrong, cells) if found]
    print(f"{len(cells)} cells, {len(bugs)} of them wrong; {page}")
    return 1 if bugs else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
