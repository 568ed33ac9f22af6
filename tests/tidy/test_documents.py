"""Documents hold together: every link leads to a file and a heading, and a runbook quotes what the program prints."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/*.md"), *ROOT.glob("benchmarks/*.md")]
)
RUNBOOK = ROOT / "docs/operate/runbook.md"
RULES = ROOT / "packaging/prometheus/varlog-rules.yml"

_LINK = re.compile(r"\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
# Shorter pieces of a quotation are in every program.
_PIECE_CHARS_MIN = 10


def _prose(path: Path) -> str:
    """Without fenced blocks: what stands there is code."""
    return re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def headings(path: Path) -> set[str]:
    """The anchors of a page, as forges and the site make them."""
    lines = re.findall(r"^#+ (.*)$", _prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower().strip()).replace(" ", "-") for line in lines}


def broken_links(path: Path) -> list[str]:
    """Links of a page that lead to no file, or to no heading."""
    broken = []
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", _prose(path))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in headings(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    assert broken_links(path) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n[a](#one) [b](#two) [c](no.md) [d](page.md#one) [e](page.md#no) [f](https://g.h/#i)\n",
        "utf-8",
    )
    assert broken_links(page) == ["#two", "no.md", "page.md#no"]


def quoted_in(text: str) -> set[str]:
    """What the first cells of tables quote, in pieces: an ellipsis, a number and an upper-case word stand for anything,
    and a message may be put together at its marks."""
    cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    quotes = [quote for cell in cells for quote in re.findall(r"`([^`]+)`", cell)]
    pieces = [
        piece.strip(" '")
        for quote in quotes
        for piece in re.split(r"…|[:,;()]|\b[A-Z]{4,}\b|\b\d+\b|-?-[\w-]+", quote)
    ]
    return {piece for piece in pieces if len(piece) >= _PIECE_CHARS_MIN}


def _printed() -> str:
    """Every string of the program, one per line."""
    found = []
    for path in ROOT.glob("src/varlog/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_symptoms_of_the_runbook_are_words_of_the_program() -> None:
    printed = _printed()
    assert {piece for piece in quoted_in(RUNBOOK.read_text("utf-8")) if piece not in printed} == set()


def test_alerts_and_their_page_name_metrics_that_exist() -> None:
    known = set(re.findall(r"`(varlog_\w+)`", (ROOT / "docs/reference/metrics.md").read_text("utf-8")))
    known |= {f"{name}_bucket" for name in known if name.endswith("_seconds")}
    texts = [RULES, ROOT / "docs/operate/monitoring.md"]
    used = {name for path in texts for name in re.findall(r"\bvarlog_\w+", path.read_text("utf-8"))}
    assert used - known == set()
