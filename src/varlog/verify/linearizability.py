"""Linearizability: one order of overlapping calls that a model accepts.

Each call is placed between its begin and its end.

Wing and Gong's search with Lowe's memory of what was tried. A call without an answer may happen any time later, or never.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

from varlog.verify.recipe_history import RecipeCall

# The most steps of a search: a history that takes longer is left undecided, which is not a violation.
STEPS_MAX = 300_000


class Model(Protocol):
    """A sequential object: its first state, and the states that a call can lead to from a state. None: it cannot have happened
    there with the answer it got."""

    first: Hashable

    def step(self, state: Hashable, call: RecipeCall) -> Iterable[Hashable]: ...


def explain(calls: Sequence[RecipeCall], model: Model, steps_max: int = STEPS_MAX) -> str:
    """'' if there is such an order, or if it was not decided within `steps_max`; else a sentence about where it ends."""
    calls = sorted((call for call in calls if call.possible), key=lambda call: call.started)
    endless = max((call.ended or call.started for call in calls), default=0) + 1
    ends = [call.ended if call.done and call.ended is not None else endless for call in calls]
    must = sum(1 << at for at, end in enumerate(ends) if end < endless)
    tried: set[tuple[int, Hashable]] = set()
    waiting: list[tuple[int, Hashable]] = [(0, model.first)]
    farthest, stuck = -1, ""
    while waiting:
        placed, state = waiting.pop()
        if must & ~placed == 0:
            return ""
        if len(tried) > steps_max:
            return ""
        limit = _first_end(ends, placed)
        possible = [at for at, call in enumerate(calls) if not placed >> at & 1 and call.started < limit]
        # The ones that end first are tried first: the stack is last in, first out.
        for at in sorted(possible, key=lambda at: -ends[at]):
            for after in model.step(state, calls[at]):
                if (key := (placed | 1 << at, after)) not in tried:
                    tried.add(key)
                    waiting.append(key)
        done = (placed & must).bit_count()
        if done > farthest:
            farthest = done
            next_one = min(
                (at for at in possible if ends[at] < endless), key=lambda at: ends[at], default=None
            )
            stuck = f"in state {state}" + (f" comes {calls[next_one]}" if next_one is not None else "")
    return f"no order explains {must.bit_count()} calls: {farthest} can be placed, and then, {stuck}"


def _first_end(ends: list[int], placed: int) -> int:
    """When the first call that is not placed yet ended: whatever comes next began before."""
    return min(end for at, end in enumerate(ends) if not placed >> at & 1)


class CounterModel:
    """A number. add -> the new value, get -> the value."""

    first: Hashable = 0

    def step(self, state: Hashable, call: RecipeCall) -> Iterable[Hashable]:
        value = state if isinstance(state, int) else 0
        after = value + call.given if call.what == "add" else value
        return (after,) if not call.done or call.got == after else ()


class KeyModel:
    """One key of a map: None, or its value. Values are written once in a run, so that `revisions` knows the revision of each.

    put -> revision; get -> (value, revision) or None; delete -> revision, or None if there was nothing; cas (value, expected) ->
    revision, or None if the revision was not the expected one, 0 for nothing.
    """

    first: Hashable = None

    def __init__(self, calls: Iterable[RecipeCall]) -> None:
        self.revisions: dict[bytes, int] = {}
        for call in calls:
            if call.done and call.got is not None:
                if call.what == "get":
                    self.revisions[call.got[0]] = call.got[1]
                elif call.what in ("put", "cas") and (value := _written(call)) is not None:
                    self.revisions[value] = call.got

    def step(self, state: Hashable, call: RecipeCall) -> Iterable[Hashable]:
        value = state if isinstance(state, bytes) else None
        match call.what:
            case "get":
                found = None if value is None else (value, self.revisions.get(value, 0))
                return (state,) if not call.done or call.got == found else ()
            case "put":
                return (_written(call),) if not call.done or call.got is not None else ()
            case "delete":
                fits = not call.done or (call.got is None) == (value is None)
                return (None,) if fits else ()
            case _:
                return self._compare(value, call)

    def _compare(self, value: bytes | None, call: RecipeCall) -> Iterable[Hashable]:
        """A revision that was never returned to a client may or may not be the expected one."""
        expected = call.given[1]
        known = 0 if value is None else self.revisions.get(value)
        may_fit, may_miss = known in (None, expected), known is None or known != expected
        if may_fit and (not call.done or call.got is not None):
            yield _written(call)
        if may_miss and (not call.done or call.got is None):
            yield value


def _written(call: RecipeCall) -> bytes | None:
    value = call.given[0] if call.what == "cas" else call.given
    return value if isinstance(value, bytes) else None
