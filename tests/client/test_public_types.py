"""The public API has no type of the wire in its signatures: messages can change without users noticing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import get_args, get_type_hints

import pytest

import varlog
from varlog import aio
from varlog.client import blocking
from varlog.client.admin import Admin
from varlog.client.blocking import BlockingConnector
from varlog.client.connector import Connector, TailingReader
from varlog.client.log import Log
from varlog.client.node_client import NodeClient
from varlog.client.writers.idempotent import IdempotentWriter
from varlog.client.writers.positioned import PositionedWriter

CLASSES = (
    Log,
    Admin,
    Connector,
    TailingReader,
    NodeClient,
    IdempotentWriter,
    PositionedWriter,
    blocking.Log,
    blocking.Admin,
    BlockingConnector,
)
FUNCTIONS = (varlog.open, varlog.connect, varlog.admin, aio.open, aio.connect, aio.admin)


def public_functions(kind: type) -> Iterator[Callable[..., object]]:
    for name, member in inspect.getmembers(kind):
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function):
            yield function


def types_in(found: object, seen: set[type]) -> None:
    """`found`, what it is made of, and the fields of those that are ours."""
    for part in get_args(found):
        types_in(part, seen)
    if isinstance(found, type) and found not in seen:
        seen.add(found)
        if found.__module__.startswith("varlog.model"):
            for field in get_type_hints(found).values():
                types_in(field, seen)


@pytest.mark.parametrize(
    "function", FUNCTIONS, ids=lambda function: f"{function.__module__}.{function.__name__}"
)
def test_a_public_function_has_no_type_of_the_wire(function: Callable[..., object]) -> None:
    check(function)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_public_method_has_no_type_of_the_wire(kind: type) -> None:
    found = list(public_functions(kind))
    assert found
    for function in found:
        check(function)


def check(function: Callable[..., object]) -> None:
    import pyarrow

    names = {"pa": pyarrow, "Log": blocking.Log, "Admin": blocking.Admin}
    own = getattr(function, "__globals__", {})
    hints = get_type_hints(
        function, localns={name: found for name, found in names.items() if name not in own}
    )
    assert "return" in hints
    seen: set[type] = set()
    for hint in hints.values():
        types_in(hint, seen)
    assert [found for found in seen if found.__module__.startswith("varlog.rpc")] == []
