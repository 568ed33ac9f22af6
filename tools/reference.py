"""Reference pages of docs/reference, rendered from the code.

`make reference` writes them, and a test of the tree fails when one is stale. Each page has one function here, or in
reference_api (HTTP, metrics, Python); each returns the whole page as Markdown.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from varlog.cli import main as varlog_cli
from varlog.cli import serve
from varlog.model import errors, limits

WIDTH = 120
GENERATED = "<!-- Rendered from the code by `make reference`: do not edit. -->"

# The modules whose docstrings are the definition of a format, in the order of the page.
FORMATS: Mapping[str, tuple[str, ...]] = {
    "On the wire": ("varlog.rpc.framing", "varlog.model.batch"),
    "On the disk of a storage node, both orderings": (
        "varlog.storage.cluster_file",
        "varlog.storage.witness_file",
        "varlog.storage.view_copy",
    ),
    "Committed ordering": (
        "varlog.storage.committed.segment",
        "varlog.storage.committed.row_file",
        "varlog.storage.committed.state_file",
    ),
    "Sequenced ordering": (
        "varlog.storage.sequenced.page_segment",
        "varlog.storage.sequenced.sidecar",
        "varlog.storage.sequenced.unit_state",
    ),
    "Metadata repository": (
        "varlog.metarepo.records",
        "varlog.metarepo.store.sqlite",
        "varlog.metarepo.store.journal",
        "varlog.metarepo.store.layout",
    ),
}

_TAGS = re.compile(r"^\[[A-Z0-9 ]+\] ")


def page(title: str, introduction: str, *parts: str) -> str:
    """A whole document."""
    paragraphs = [f"# {title}", GENERATED, textwrap.fill(introduction, WIDTH, break_on_hyphens=False)]
    return "\n\n".join([*paragraphs, *parts]) + "\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(escape_cell(text) for text in line) + " |" for line in lines)


def escape_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def anchor(name: str) -> str:
    return name.replace(" ", "-")


# --- commands -----------------------------------------------------------------------------------------------------------


def cli() -> str:
    """Every command with its arguments and options."""
    programs: dict[str, typer.Typer] = {
        "varlog": varlog_cli.app,
        "vsn": serve.vsn,
        "vmr": serve.vmr,
        "vmc": serve.vmc,
        "vseq": serve.vseq,
    }
    found = [
        command
        for name, program in programs.items()
        for command in _commands(name, typer.main.get_command(program))
    ]
    overview = table(
        ("command", "what it does"),
        [(f"[`{name}`](#{anchor(name)})", _first_sentence(command.help or "")) for name, command in found],
    )
    parts = [_command(name, command) for name, command in found]
    introduction = (
        "`varlog` is for users and operators; `vsn`, `vmr`, `vmc` and `vseq` are the servers of a cluster. Every "
        "command has `--help`, which is not repeated below."
    )
    return page("Commands", introduction, overview, *parts)


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands below one. They are read by their fields: some versions of typer have a click of their own."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for word, one in below.items():
        if not one.hidden:
            yield from _commands(f"{name} {word}", one)


def _command(name: str, command: Any) -> str:
    parameters = [found for found in command.params if not getattr(found, "hidden", False)]
    arguments = [_argument(found) for found in parameters if found.param_type_name == "argument"]
    paragraphs = [
        textwrap.fill(part, WIDTH, break_on_hyphens=False)
        for part in inspect.cleandoc(command.help or "").split("\n\n")
    ]
    parts = [f"## {name}", f"```text\n{' '.join([name, '[OPTIONS]', *arguments])}\n```", *paragraphs]
    rows = [_parameter(found) for found in parameters]
    return "\n\n".join([*parts, table(("argument or option", "default", "meaning"), rows)] if rows else parts)


def _argument(found: Any) -> str:
    name = str(found.metavar or found.name.upper()).strip("{}[]")
    many = "..." if found.nargs == -1 else ""
    return f"{name}{many}" if found.required else f"[{name}]{many}"


def _parameter(found: Any) -> tuple[str, str, str]:
    if found.param_type_name == "argument":
        return f"`{_argument(found)}`", "", found.help or ""
    value = "" if found.is_flag else f" {found.metavar or 'VALUE'}"
    shown = "required" if found.required else _default(found.default)
    variable = f" Also the environment variable `{found.envvar}`." if isinstance(found.envvar, str) else ""
    return (
        f"`{', '.join([*found.opts, *found.secondary_opts])}{value}`",
        shown,
        f"{found.help or ''}{variable}",
    )


def _default(value: object) -> str:
    plain = isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
    return f"`{value}`" if plain else ""


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


# --- errors -------------------------------------------------------------------------------------------------------------


def error_tree() -> str:
    """Every error with what it means, its HTTP status and its remedy."""
    rows = [
        (f"{'· ' * depth}`{kind.__name__}`", inspect.getdoc(kind) or "", *_answer(kind))
        for kind, depth in _below(errors.VarlogError)
    ]
    introduction = (
        "All errors are in one tree: an error says what is known, carries its facts as fields, and has one remedy. "
        "Catch the branch whose remedy is yours: below `Rejected` nothing is in the log; after `OutcomeUnknown` it may be. "
        "The status and the remedy are those of the HTTP proxy; in Python the message of the error says the same."
    )
    return page("Errors", introduction, table(("error", "what is known", "HTTP", "remedy"), rows))


def _below(kind: type[errors.VarlogError], depth: int = 0) -> Iterator[tuple[type[errors.VarlogError], int]]:
    yield kind, depth
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _below(below, depth + 1)


def _answer(kind: type[errors.VarlogError]) -> tuple[str, str]:
    from varlog.proxy.problem import problem_of

    if kind is errors.StartupError:
        return "", "The message names the thing and the remedy."
    facts = [0] * (
        len(inspect.signature(kind).parameters) if kind.__init__ is not errors.VarlogError.__init__ else 0
    )
    problem = problem_of(kind(*facts))
    return str(problem.status), problem.remedy


# --- limits -------------------------------------------------------------------------------------------------------------


def bounds() -> str:
    """Every constant of model.limits, with the comment above it."""
    rows: list[tuple[str, str, str]] = []
    comment: list[str] = []
    for line in inspect.getsource(limits).splitlines():
        constant = re.match(r"([A-Z_]+) = ", line)
        if line.startswith("#"):
            comment.append(line[1:].strip())
        elif constant and constant[1] not in _UNITS:
            # A constant without a comment of its own belongs to the one above it.
            rows.append((f"`{constant[1]}`", _value(constant[1]), " ".join(comment) or "″"))
            comment = []
    introduction = "Every bound of varlog is in `src/varlog/model/limits.py`; a name ends with its unit."
    return page("Limits", introduction, table(("limit", "value", "what it bounds"), rows))


_UNITS = {"KIB": limits.KIB, "MIB": limits.MIB, "GIB": limits.GIB}


def _value(name: str) -> str:
    value = getattr(limits, name)
    if "BYTES" in name:
        unit = next((unit for unit in ("GIB", "MIB", "KIB") if value % _UNITS[unit] == 0), None)
        return f"{value // _UNITS[unit]} {unit[0]}iB" if unit else f"{value:,} bytes"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


# --- formats ------------------------------------------------------------------------------------------------------------


def formats() -> str:
    """The docstrings of the modules that define formats."""
    parts = []
    for title, modules in FORMATS.items():
        parts.append(f"## {title}")
        for name in modules:
            source = import_module(name).__file__ or ""
            docstring = ast.get_docstring(ast.parse(Path(source).read_text("utf-8"))) or ""
            parts += [f"### `{name}`", *_paragraphs(_TAGS.sub("", docstring))]
    introduction = (
        "Integers are little-endian unless a table says otherwise. Each format has a version number and a golden file in "
        "`tests/golden`, which every later version has to read; see [upgrade](../operate/upgrade.md)."
    )
    return page("Formats on the wire and on disk", introduction, *parts)


def _paragraphs(docstring: str) -> list[str]:
    """Prose wrapped, tables as they are."""
    found = []
    for part in docstring.split("\n\n"):
        is_table = part.startswith("    ") or re.search(r"\S {2,}\S", part)
        found.append(
            f"```text\n{textwrap.dedent(part)}\n```"
            if is_table
            else textwrap.fill(part, WIDTH, break_on_hyphens=False)
        )
    return found


def pages() -> dict[str, Callable[[], str]]:
    """What renders each page of docs/reference."""
    from tools import reference_api

    return {
        "cli.md": cli,
        "errors.md": error_tree,
        "limits.md": bounds,
        "formats.md": formats,
        "http.md": reference_api.http,
        "metrics.md": reference_api.metrics,
        "python.md": reference_api.python,
    }


def main() -> int:
    """Write every page."""
    directory = Path("docs/reference")
    for name, render in pages().items():
        path, rendered = directory / name, render()
        old = path.read_text("utf-8") if path.exists() else ""
        if rendered != old:
            path.write_text(rendered, "utf-8")
        print(f"reference: {path} {'is up to date' if rendered == old else 'rewritten'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
