"""Message: the base of all messages, and the two replies that any request can get"""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages."""


class Done(Message, frozen=True):
    """The answer when there is nothing to say but yes."""


class Failure(Message, frozen=True):
    """The answer when it failed: an error of the tree, by its code and facts (see error_codes.py)."""

    code: int
    facts: tuple[Any, ...]
