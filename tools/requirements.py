"""Requirements: the rules in docs/reference and the tests that cite them.

A test proves a rule when the docstring of the test function, or of an invariant of a state machine, cites it. Nothing
else in `tests/` cites rules: a citation anywhere else would look like a proof and assert nothing.
`make requirements` renders the list of tests; a test of the tree fails when it is stale.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.codemap import CodemapError, replace_between

BEGIN = "<!-- proofs:begin -->"
END = "<!-- proofs:end -->"

CITATION = re.compile(r"\bR-[A-Z]+-\d+\b")
_RULE = re.compile(r"^- \*\*(R-[A-Z]+-\d+)\*\* (.*?)(?=^- |^#|\Z)", re.MULTILINE | re.DOTALL)
_NOT_BUILT = "Not built yet."


@dataclass(frozen=True, slots=True)
class Rule:
    """One requirement, as the document states it."""

    number: str
    sentence: str

    @property
    def built(self) -> bool:
        return not self.sentence.endswith(_NOT_BUILT)


@dataclass(frozen=True, slots=True)
class Citation:
    """One place in a file that names a rule."""

    rule: str
    path: str
    line: int
    test: str = ""  # the test that proves the rule; empty where the citation proves nothing

    def __str__(self) -> str:
        return f"{self.path}:{self.line} cites {self.rule}"


def rules_in(document: str) -> list[Rule]:
    """The rules of a document, in its order."""
    return [Rule(number, " ".join(text.split())) for number, text in _RULE.findall(document)]


def citations_in(path: str, source: str) -> list[Citation]:
    """Every citation of a file, line by line, with the test whose docstring it stands in."""
    lines: dict[int, str] = {}
    for function in _functions(ast.parse(source)):
        if _proves(function) and ast.get_docstring(function):
            docstring = function.body[0]
            lines |= dict.fromkeys(range(docstring.lineno, (docstring.end_lineno or 0) + 1), function.name)
    return [
        Citation(found, path, number, lines.get(number, ""))
        for number, line in enumerate(source.splitlines(), 1)
        for found in CITATION.findall(line)
    ]


def citations_under(root: Path, files: Iterable[Path]) -> list[Citation]:
    """Every citation of these files; paths are relative to `root`."""
    return [
        citation
        for file in files
        for citation in citations_in(file.relative_to(root).as_posix(), file.read_text("utf-8"))
    ]


def render_proofs(rules: Iterable[Rule], citations: Iterable[Citation]) -> str:
    """Each rule with the tests that prove it."""
    proofs: dict[str, dict[str, set[str]]] = {}
    for citation in citations:
        if citation.test:
            proofs.setdefault(citation.rule, {}).setdefault(citation.path, set()).add(citation.test)
    lines: list[str] = []
    for rule in rules:
        lines += [f"### Tests of {rule.number}", ""]
        if not rule.built:
            lines += [_NOT_BUILT, ""]
            continue
        for path, tests in sorted(proofs.get(rule.number, {}).items()):
            lines += [f"- `{path}`", *(f"    - `{test}`" for test in sorted(tests))]
        lines.append("")
    return "\n".join(lines)


def update_document(document: str, citations: Iterable[Citation]) -> str:
    """`document` with the list of tests between its markers rendered from `citations`."""
    return replace_between(document, BEGIN, END, "\n" + render_proofs(rules_in(document), citations))


def test_files(root: Path) -> list[Path]:
    return sorted((root / "tests").rglob("*.py"))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _proves(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    return function.name.startswith("test_") or "invariant()" in decorators


def main() -> int:
    """Rewrite the list of tests in place."""
    parser = argparse.ArgumentParser(prog="python -m tools.requirements", description=main.__doc__)
    parser.add_argument("document", nargs="?", type=Path, default=Path("docs/reference/requirements.md"))
    document: Path = parser.parse_args().document
    root = Path.cwd()
    try:
        old = document.read_text("utf-8")
        new = update_document(old, citations_under(root, test_files(root)))
    except (CodemapError, OSError, SyntaxError) as problem:
        print(f"requirements: {document}: {problem}", file=sys.stderr)
        return 1
    if new != old:
        document.write_text(new, "utf-8")
    print(f"requirements: {document} {'is up to date' if new == old else 'rewritten'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
