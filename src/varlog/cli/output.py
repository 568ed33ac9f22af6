"""Output of the commands: tables, JSON for programs, errors in one line.

Entries, names, addresses and errors are untrusted: before they reach a terminal, everything unprintable is escaped, and nothing is
interpreted as markup. Piped output is bytes or JSON, unchanged.

Exit codes: 0 success, 1 failure, 2 wrong usage.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from varlog.runtime.logging import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FAILED = 1
WRONG_USAGE = 2

T = TypeVar("T")


def complain(what: object) -> None:
    """One line on stderr that names the thing and the remedy."""
    text = escaped(" ".join(str(what).split()))
    print(f"varlog: error: {text or type(what).__name__}", file=sys.stderr)


def fail(what: object, code: int = FAILED) -> NoReturn:
    complain(what)
    raise typer.Exit(code)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work to its end. A VarlogError becomes one line and exit code 1 (an invalid request: 2)."""
    import uvloop

    from varlog.model.errors import InvalidRequest, UnknownLogStream, UnknownTopic, VarlogError

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except (UnknownTopic, UnknownLogStream) as error:
        fail(error)
    except InvalidRequest as error:
        fail(error, WRONG_USAGE)
    except BrokenPipeError:
        # The reader of our output has closed the pipe (`varlog tail … | head`). Python must not complain when it
        # flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except TimeoutError:
        fail("no answer in time: see `varlog status`")
    except (VarlogError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def show_progress(what: str) -> None:
    """The progress of long work, on a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r{what}", end="\033[K\r", file=sys.stderr, flush=True)


def print_json(value: object, *, flush: bool = False) -> None:
    print(json_line(value), flush=flush)


def json_line(value: object) -> str:
    """JSON in which every character is printable: the others are escaped as JSON allows, with the same meaning."""
    text = json.dumps(value, default=_plain, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _plain(value: object) -> object:
    """Objects by the names of their fields, also those that travel as arrays."""
    if isinstance(value, bytes):
        return readable(value)
    fields = getattr(value, "__struct_fields__", None)
    if fields is None:
        return str(value)
    return {name: getattr(value, name) for name in fields}


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table as wide as the terminal, or as wide as needed if there is none."""
    make_console().print(make_table(title, columns, rows))


def make_console() -> Console:
    """The console that tables are printed on."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=200, highlight=False)


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A column whose name begins with # is numeric."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(escaped(title)) if title else None,
        title_justify="left",
        header_style="bold",
        pad_edge=False,
        box=None,
    )
    for column in columns:
        numeric = column.startswith("#")
        table.add_column(
            Text(escaped(column.lstrip("#"))), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(escaped(str(cell))) for cell in row))
    return table


def readable(data: bytes) -> str:
    """An entry's bytes as text if they are text, otherwise escaped so that no byte is lost."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


def short_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
