"""Code map: renders docs/internals/codemap.md from the modules' docstrings.

It is the tree of modules, layer by layer, with the first docstring line of each. `make codemap` renders it, and a test
fails when it is stale.
`LAYERS` is also the table that the layer tests enforce: what is drawn is what holds.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

BEGIN = "<!-- codemap:begin -->"
END = "<!-- codemap:end -->"

# The files beside the packages are the public API and count as one unit, whose name is this.
PUBLIC = "public"

# From the bottom up. A unit imports only units of the layers before its own: two in one layer do not know each other.
LAYERS: Sequence[Sequence[str]] = (
    ("model",),
    ("runtime",),
    ("storage", "rpc"),
    ("reconfiguration",),
    ("storagenode", "metarepo", "sequencer", "manager", "client"),
    (PUBLIC,),
    ("recipes",),
    ("localcluster", "verify", "proxy", "spark"),
    ("bench",),
    ("cli",),
    ("testing",),
)

PACKAGE = Path(__file__).parents[1] / "src" / "varlog"


class CodemapError(Exception):
    """The map cannot be drawn; the message says which file to fix."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the map: a module or a package, and what it says of itself."""

    depth: int
    name: str
    says: str

    @property
    def label(self) -> str:
        return "  " * self.depth + self.name


def first_docstring_line(module: Path) -> str:
    """What a module says of itself; a module that says nothing is an error."""
    if not module.is_file():
        raise CodemapError(f"{module.parent} has no __init__.py, and so no line in the code map")
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if not docstring:
        raise CodemapError(f"{module} has no docstring: its first line is its line in the code map")
    return docstring.splitlines()[0]


def render_codemap(package: Path) -> str:
    """The whole map of `package` as text."""
    lines: list[_Line] = [_Line(0, f"{package.name}/", first_docstring_line(package / "__init__.py"))]
    for layer in LAYERS:
        for unit in layer:
            if unit == PUBLIC:
                lines += _modules(package, 1)
            elif (package / unit).is_dir():
                lines += _tree(package / unit, 1)
    width = max(len(line.label) for line in lines) + 2
    return "\n".join(f"{line.label:<{width}}{line.says}" for line in lines)


def update_codemap(text: str, package: Path) -> str:
    """`text` with the map between its two markers made new."""
    return replace_between(text, BEGIN, END, f"```text\n{render_codemap(package)}\n```\n")


def replace_between(text: str, begin: str, end: str, rendered: str) -> str:
    """`text` with `rendered` in place of what stands between the lines `begin` and `end`."""
    head, begins, rest = text.partition(begin)
    _, ends, tail = rest.partition(end)
    if not begins or not ends:
        raise CodemapError(f"the markers {begin} and {end} are missing")
    return f"{head}{begin}\n{rendered}{end}{tail}"


def _tree(directory: Path, depth: int) -> Iterator[_Line]:
    yield _Line(depth, f"{directory.name}/", first_docstring_line(directory / "__init__.py"))
    yield from _modules(directory, depth + 1)
    for below in sorted(directory.iterdir()):
        # A directory without Python is data, or a cache.
        if below.is_dir() and any(below.rglob("*.py")):
            yield from _tree(below, depth + 1)


def _modules(directory: Path, depth: int) -> Iterator[_Line]:
    for module in sorted(directory.glob("*.py")):
        if module.name != "__init__.py":
            yield _Line(depth, module.name, first_docstring_line(module))


def main() -> int:
    """Rewrite the map in place."""
    parser = argparse.ArgumentParser(prog="python -m tools.codemap", description=main.__doc__)
    parser.add_argument("document", nargs="?", type=Path, default=Path("docs/internals/codemap.md"))
    document: Path = parser.parse_args().document
    try:
        old = document.read_text(encoding="utf-8")
        new = update_codemap(old, PACKAGE)
    except (CodemapError, OSError) as problem:
        print(f"codemap: {document}: {problem}", file=sys.stderr)
        return 1
    if new != old:
        document.write_text(new, encoding="utf-8")
    print(f"codemap: {document} {'is up to date' if new == old else 'rewritten'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
