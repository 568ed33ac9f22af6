"""Attack surface: values from outside in log lines.

Before, a topic's name or an error text with a line break forged log lines, and one with an escape sequence controlled
the terminal that showed the log.
"""

from __future__ import annotations

import io
import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from varlog.runtime.logging import VALUE_CHARS_MAX, LineFormatter, escaped, logfmt

FORGED = "orders\n2026-11-18 00:00:00,000 INFO varlog.metarepo everything is fine"
CLEARS_THE_SCREEN = "\x1b[2J\x1b]0;owned\x07"
WRITES_BACKWARDS = "\u202egnp.exe"


def test_a_value_with_a_line_break_stays_on_its_line() -> None:
    assert logfmt("made", topic=FORGED).count("\n") == 0
    assert logfmt("made", topic="a\rb") == r"made topic='a\rb'"


def test_escape_sequences_and_writing_marks_reach_no_terminal() -> None:
    for text in (CLEARS_THE_SCREEN, WRITES_BACKWARDS, "\x9b2J", "\udc80"):
        line = logfmt("made", topic=text)
        assert line.isprintable()
        line.encode("utf-8")


def test_a_value_cannot_pretend_to_be_another_fact() -> None:
    assert logfmt("made", topic="a' level='critical", node=1) == "made topic=\"a' level='critical\" node=1"
    assert logfmt("made", topic="'a'") == "made topic=\"'a'\""


def test_plain_values_are_not_quoted() -> None:
    assert (
        logfmt("made", topic="주문-1", path=r"a\b", count=3, why="")
        == r"made topic=주문-1 path=a\b count=3 why=''"
    )


def test_the_message_itself_is_escaped() -> None:
    assert logfmt("lost\nconnection") == r"lost\nconnection"


def test_a_huge_value_is_truncated() -> None:
    assert len(logfmt("made", topic="x" * 1_000_000)) < VALUE_CHARS_MAX + 100


def test_lines_of_a_traceback_cannot_look_like_records() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    try:
        raise ValueError(f"{FORGED}{CLEARS_THE_SCREEN}")
    except ValueError:
        error = sys.exc_info()
    handler.handle(
        logging.LogRecord("varlog.rpc", logging.ERROR, "", 0, "failed\n2026-11-18 INFO forged", None, error)
    )
    lines = stream.getvalue().removesuffix("\n").split("\n")
    assert [line for line in lines if not line.startswith("    ")] == lines[:1]
    assert all(line.isprintable() for line in lines)


@given(st.text(st.characters()))
def test_whatever_is_escaped_is_one_printable_line(text: str) -> None:
    assert escaped(text).isprintable()
    assert logfmt("made", topic=text).isprintable()


@given(st.text(st.characters()).filter(str.isprintable))
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert escaped(text) == text
