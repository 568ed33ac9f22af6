"""Every test of the repository checks the relations between the fields of Order and Outbox after every event."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from varlog.metarepo.ordering.order import Order
from varlog.metarepo.ordering.outbox import Outbox

EVENTS = (
    (Order, ("__init__", "apply", "keep_only", "learn", "rebase")),
    (Outbox, ("__init__", "begin", "follow", "resume", "add_rows", "add_topic", "next_message")),
)


@pytest.fixture(autouse=True)
def validated(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, names in EVENTS:
        for name in names:
            monkeypatch.setattr(owner, name, _validating(getattr(owner, name)))


def _validating(event: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(event)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = event(self, *args, **kwargs)
        self.validate()
        return result

    return run
