"""`--help` shows every help text whole: rich takes text in square brackets that begins with a letter for markup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.text import Text

from varlog.cli import main, serve

PROGRAMS = {"varlog": main.app, "vsn": serve.vsn, "vmr": serve.vmr, "vmc": serve.vmc, "vseq": serve.vseq}


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {word}", below)


def _help_texts() -> Iterator[tuple[str, str]]:
    """Every command, argument and option with its help."""
    for program, app in PROGRAMS.items():
        for name, command in _commands(program, typer.main.get_command(app)):
            yield name, command.help or ""
            for parameter in command.params:
                yield f"{name} {parameter.opts[0]}", getattr(parameter, "help", None) or ""


def test_no_help_text_loses_words_to_markup() -> None:
    lost = {where: text for where, text in _help_texts() if Text.from_markup(text).plain != text}
    assert lost == {}


@pytest.mark.parametrize("text", ["Log stream [any that runs].", "[stream]"])
def test_the_check_sees_text_that_markup_hides(text: str) -> None:
    assert Text.from_markup(text).plain != text
