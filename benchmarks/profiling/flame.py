"""A flame graph out of sampled stacks: a plain SVG without scripts; a browser shows each box's name and share under the mouse.

    python benchmarks/profiling/flame.py STACKS OUT.svg [--title TEXT] [--drop PATTERN …]

STACKS has one stack a line, outermost frame first, `a;b;c 42`: what profile_cluster.py keeps of a process, and what
`py-spy record -f raw` writes. Boxes on top of a box are what it called; the width is the share of the samples, not time's course.
"""

from __future__ import annotations

import argparse
import html
import re
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

WIDTH = 1200
ROW = 17
FONT = 11
# Narrower boxes say nothing, and would be most of the file.
SHARE_MIN = 0.002
# Calls of one function from several lines of another are one box.
LINE = re.compile(r":\d+(?=\))")


@dataclass
class Box:
    """One function, as called by the boxes below it."""

    count: int = 0
    called: dict[str, Box] = field(default_factory=dict)

    def depth(self, least: int) -> int:
        return 1 + max((box.depth(least) for box in self.called.values() if box.count >= least), default=0)


def boxes_of(lines: list[str], drop: re.Pattern[str] | None) -> Box:
    """All stacks in one tree. A stack in which a frame matches `drop` is left out: a thread that only waits, for instance."""
    root = Box()
    for line in lines:
        stack, _, count = line.rstrip().rpartition(" ")
        if not stack or not count.isdigit() or (drop is not None and drop.search(stack)):
            continue
        box = root
        box.count += int(count)
        for frame in LINE.sub("", stack).split(";"):
            box = box.called.setdefault(frame, Box())
            box.count += int(count)
    return root


def colour(name: str) -> str:
    """One for each file."""
    file = name.rpartition("(")[2]
    return f"hsl({crc32(file.encode()) % 360}, 60%, 75%)"


def drawn(root: Box, title: str) -> str:
    least = max(1, int(root.count * SHARE_MIN))
    height = (root.depth(least) + 2) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="{FONT}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fdfdfa"/>',
        f'<text x="6" y="{FONT + 2}">{html.escape(title)}: {root.count} samples</text>',
    ]
    _draw(root, 0.0, height - ROW, root.count, least, parts)
    return "\n".join([*parts, "</svg>", ""])


def _draw(box: Box, left: float, bottom: int, total: int, least: int, parts: list[str]) -> None:
    for name, inner in sorted(box.called.items()):
        if inner.count < least:
            continue
        width = inner.count / total * WIDTH
        shown = html.escape(name[: int(width / (FONT * 0.62))]) if width > 3 * FONT else ""
        parts.append(
            f"<g><title>{html.escape(name)}: {inner.count / total:.1%}</title>"
            f'<rect x="{left:.1f}" y="{bottom - ROW}" width="{max(width - 0.5, 0.3):.1f}" height="{ROW - 1}" '
            f'fill="{colour(name)}"/><text x="{left + 2:.1f}" y="{bottom - 5}">{shown}</text></g>'
        )
        _draw(inner, left, bottom - ROW, total, least, parts)
        left += width


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stacks", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--title", default="")
    parser.add_argument("--drop", default="", help="leave out stacks in which this pattern is found")
    arguments = parser.parse_args()
    drop = re.compile(arguments.drop) if arguments.drop else None
    root = boxes_of(arguments.stacks.read_text("utf-8").splitlines(), drop)
    arguments.out.write_text(drawn(root, arguments.title or arguments.stacks.name), "utf-8")


if __name__ == "__main__":
    main()
