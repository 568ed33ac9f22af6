"""Log lines `message key=value …` through the standard logging package.

A value may come from a peer or a user: a topic's name, an error text, a path. So that no value can look like a line of its own,
or drive the terminal that shows it, everything that is not printable is escaped.
"""

from __future__ import annotations

import logging
from typing import Final

# A value of a log line is cut behind this many characters: a message of a peer may hold a MiB of text.
VALUE_CHARS_MAX: Final = 2000

# A library is silent until its user asks for its log; the commands set up a handler of their own.
logging.getLogger("varlog").addHandler(logging.NullHandler())


def get_logger(name: str) -> logging.Logger:
    """The logger of one part: varlog.<name>."""
    return logging.getLogger(f"varlog.{name}")


def logfmt(message: str, **facts: object) -> str:
    """`message key=value …` on one line. Values are quoted where they hold spaces, quotes or anything that is not printable."""
    parts = [escaped(message)]
    for key, value in facts.items():
        text = str(value)
        if len(text) > VALUE_CHARS_MAX:
            text = f"{text[:VALUE_CHARS_MAX]}… ({len(text)} characters)"
        plain = text.isprintable() and not (" " in text or '"' in text or "'" in text) and text
        parts.append(f"{key}={text}" if plain else f"{key}={text!r}")
    return " ".join(parts)


def escaped(text: str) -> str:
    r"""`text` on one line and harmless to a terminal: line breaks, control characters, escape sequences, marks that turn the
    direction of writing, and lone surrogates as \n, \x1b, \u202e. Text that is printable stays as it is, backslashes included."""
    if text.isprintable():
        return text
    # repr() of one character escapes exactly those that are not printable.
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class LineLimit:
    """At most `lines` of a kind within `per_s` seconds: what a peer can cause as often as it likes must not fill the log."""

    def __init__(self, lines: int = 10, per_s: float = 10.0) -> None:
        self._lines = lines
        self._per_s = per_s
        self._kinds: dict[
            str, tuple[float, int, int]
        ] = {}  # since when, how many were written, how many were not

    def allows(self, kind: str, now: float) -> bool:
        """Whether one more line of this kind may be written at `now`."""
        since, written, left_out = self._kinds.get(kind, (now, 0, 0))
        if now - since >= self._per_s:
            since, written = now, 0
        allowed = written < self._lines
        self._kinds[kind] = (since, written + allowed, left_out + (not allowed))
        return allowed

    def left_out(self, kind: str) -> int:
        """How many lines of this kind were not written since this was last asked."""
        since, written, left_out = self._kinds.get(kind, (0.0, 0, 0))
        self._kinds[kind] = (since, written, 0)
        return left_out


class LineFormatter(logging.Formatter):
    """One record, one line; the lines of a traceback are indented, so that none of them looks like a record."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        text = super().formatException(ei)  # type: ignore[arg-type]
        return "\n".join(f"    {escaped(line)}" for line in text.split("\n"))
