"""Damaged messages: one number changes on the way, and nothing checks it."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from varlog.rpc.messages import Message

# A path to a number in a message: names of fields and places in tuples.
Steps = tuple[str | int, ...]


def damaged(message: Message, rng: random.Random) -> Message:
    """The message with one of its numbers changed; as it was where it has none, or the other value would be refused."""
    places = list(_numbers(message, ()))
    if not places:
        return message
    steps, value = places[rng.randrange(len(places))]
    other = value + 1 if value <= 0 or rng.random() < 0.5 else value - 1
    try:
        changed: Message = _replace(message, steps, other)
    except (ValueError, TypeError, msgspec.ValidationError):
        return message
    return changed


def _numbers(value: Any, steps: Steps) -> list[tuple[Steps, int]]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [(steps, value)]
    found: list[tuple[Steps, int]] = []
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            found += _numbers(getattr(value, name), (*steps, name))
    elif isinstance(value, tuple | list):
        for at, one in enumerate(value):
            found += _numbers(one, (*steps, at))
    return found


def _replace(value: Any, steps: Steps, number: int) -> Any:
    if not steps:
        return type(value)(number)
    first, *rest = steps
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value, **{str(first): _replace(getattr(value, str(first)), tuple(rest), number)}
        )
    parts = list(value)
    parts[int(first)] = _replace(parts[int(first)], tuple(rest), number)
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
