"""Message: the base of all messages, and the two replies of any request."""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages."""


class Done(Message, frozen=True):
    """The reply of a request that was carried out and has no result."""


class Failure(Message, frozen=True):
    """The reply of a request that failed: an error of the tree, by its code and facts (see error_codes.py)."""

    code: int
    facts: tuple[Any, ...]
