"""`varlog`: the command tree.

Commands import what they need when they run, so that `varlog --help` is quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from varlog.cli import admin, cursors, log
from varlog.cli.bench import bench_command
from varlog.cli.demo import demo
from varlog.cli.dump import dump
from varlog.cli.proxy import proxy
from varlog.cli.recipe import recipe
from varlog.cli.recover import backup
from varlog.cli.spark import spark
from varlog.cli.status import status
from varlog.cli.topic import topic
from varlog.cli.up import up

app = typer.Typer(
    help="A strongly consistent, replicated, totally ordered log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"varlog {version('varlog')}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


_RUN, _USE, _KEEP, _LOOK = "Run a cluster", "Use a log", "Administer a cluster", "Measure and inspect"

app.command(rich_help_panel=_RUN)(up)
app.command(rich_help_panel=_RUN)(proxy)
app.command(rich_help_panel=_RUN)(demo)
for _command in (log.append, log.read, log.tail, log.trim):
    app.command(rich_help_panel=_USE)(_command)
app.command(rich_help_panel=_KEEP)(status)
app.add_typer(topic, name="topic", rich_help_panel=_KEEP)
app.add_typer(admin.node, name="node", rich_help_panel=_KEEP)
app.add_typer(admin.stream, name="stream", rich_help_panel=_KEEP)
app.add_typer(cursors.reader, name="reader", rich_help_panel=_KEEP)
app.add_typer(cursors.writer, name="writer", rich_help_panel=_KEEP)
app.add_typer(recipe, name="recipe", rich_help_panel=_KEEP)
app.command(rich_help_panel=_KEEP)(backup)
app.add_typer(spark, name="spark", rich_help_panel=_USE)
app.command("bench", rich_help_panel=_LOOK)(bench_command)
app.command(rich_help_panel=_LOOK)(dump)


def run() -> None:
    """The entry point. Exit codes: 0 success, 1 failure, 2 wrong usage."""
    app(prog_name="varlog")


if __name__ == "__main__":
    run()
