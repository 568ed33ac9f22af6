"""validate_after_events: has state machines check themselves after every event.

A machine's `validate` checks the relations between its fields; production code does not call it, because it would run for every
batch. Within this context it runs after each public method, also after one that raised: a refused event leaves a valid state.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def validate_after_events(*machines: type[Any]) -> Iterator[None]:
    """Within, every public method of these classes ends with `validate`."""
    events = [
        (machine, name, method)
        for machine in machines
        for name, method in vars(machine).items()
        if inspect.isfunction(method) and name != "validate" and not name.startswith("_")
    ]
    try:
        for machine, name, method in events:
            setattr(machine, name, _validated(method))
        yield
    finally:
        for machine, name, method in events:
            setattr(machine, name, method)


def _validated(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def event(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        finally:
            self.validate()

    return event
