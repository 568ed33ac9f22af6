"""Pages of documentation as tests see them: blocks of code and how they are run."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind ("" if none is given), its contents, its line, and what the page shows as its output."""

    page: str
    language: str
    code: str
    line: int
    prints: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def page(name: str) -> str:
    """The text of a page, by its path from the root."""
    return (ROOT / name).read_text("utf-8")


def blocks(name: str) -> list[Block]:
    """All blocks of a page. A `text` block is the output of the one before it."""
    content = page(name)
    found: list[Block] = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", content, re.DOTALL | re.MULTILINE):
        language, code = match.groups()
        if language == "text" and found:
            found.append(replace(found.pop(), prints=code))
        else:
            found.append(Block(name, language, code, content.count("\n", 0, match.start()) + 2))
    return found


def broken_links(name: str) -> list[str]:
    """Links of a page that lead to no file, or to no heading of its own."""
    content = page(name)
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in content.splitlines()
        if line.startswith("#")
    }
    inside = [link for link in re.findall(r"\]\(#([^)]+)\)", content) if link not in headings]
    files = [link.partition("#")[0] for link in re.findall(r"\]\(([^)#:][^):]*)\)", content)]
    return inside + [link for link in files if not ((ROOT / name).parent / link).exists()]


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


async def run_typed(block: Block, names: dict[str, object], said: Callable[[str], str]) -> str:
    """Run a block as `python -m asyncio` does, where `await` stands outside of functions; returns what it prints.
    `said` is the page's expected output, adapted to this machine."""
    out = io.StringIO()
    # Lines as in the page, so that a traceback leads there.
    source = "\n" * (block.line - 1) + said(block.code)
    code = compile(source, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(out):
        returned = eval(code, names)
        if inspect.isawaitable(returned):
            async with asyncio.timeout(60):
                await returned
    return out.getvalue()
