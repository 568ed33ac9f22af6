"""Log lines for people and programs: `message key=value …` through the standard logging package."""

from __future__ import annotations

import logging

# A library is silent until its user asks for its log; the commands set up a handler of their own.
logging.getLogger("varlog").addHandler(logging.NullHandler())


def get_logger(name: str) -> logging.Logger:
    """The logger of one part: varlog.<name>."""
    return logging.getLogger(f"varlog.{name}")


def told(message: str, **facts: object) -> str:
    """`message key=value …`, values quoted where they hold spaces."""
    parts = [message]
    for key, value in facts.items():
        text = str(value)
        parts.append(f"{key}={text!r}" if " " in text or not text else f"{key}={text}")
    return " ".join(parts)
