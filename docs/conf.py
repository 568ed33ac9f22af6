"""How Sphinx makes a site of these documents: `make docs`. They stay plain Markdown; what a site needs is added here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

project = "varlog"
html_title = "varlog"
extensions = ["myst_parser"]
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
# A forge draws these; the site shows their text.
lexers["mermaid"] = TextLexer()

exclude_patterns = ["conf.py"]
highlight_language = "text"  # a block without a language is a terminal
myst_heading_anchors = 4
myst_links_external_new_tab = True
# A link to a heading or a page that does not exist fails the build (-W).
nitpicky = True

DOCS = Path(__file__).parent.resolve()
_INDEXES = ("index", "decisions/index")


def _adapt(app: Any, name: str, source: list[str]) -> None:
    """Links to files of the repository outside of docs/ become plain words. The pages that an index links to, in its
    order, are the contents of the site."""
    folder = DOCS / Path(name).parent

    def inside(link: re.Match[str]) -> str:
        leaves = not (folder / link[2]).resolve().is_relative_to(DOCS)
        return link[1] if leaves else link[0]

    source[0] = re.sub(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]*)(?:#[^)]*)?\)", inside, source[0])
    if name in _INDEXES:
        for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
            source[0] += _contents(section.partition("\n")[0], re.findall(r"\]\(([\w/.-]+)\.md\)", section))


def _contents(caption: str, links: list[str]) -> str:
    """A table of contents for the side of the page; of an index without sections it has no caption."""
    options = ":hidden:\n" if caption.startswith("#") else f":hidden:\n:caption: {caption}\n"
    return f"\n```{{toctree}}\n{options}\n" + "\n".join(links) + "\n```\n" if links else ""


def setup(app: Any) -> None:
    app.connect("source-read", _adapt)
