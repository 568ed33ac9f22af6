"""Patches of production code by its text: a planted bug is the line it changes.

A patch whose line no longer exists fails loudly.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType
from typing import Any

from varlog.model.cluster import Ordering
from varlog.testing.sim.core.plan import FaultKind
from varlog.testing.sim.recipes.plan import Work


@dataclass(frozen=True)
class Mutant:
    """One planted bug: what is wrong, in a sentence, and the lines it changes (target, old text, new text). Runs without the faults
    that it `needs`, or without users of the `recipe` that it is in, cannot show it, and are not searched."""

    name: str
    wrong: str
    edits: tuple[tuple[str, str, str], ...]
    needs: tuple[FaultKind, ...] = ()
    ordering: Ordering = Ordering.COMMITTED  # of the runs that can show it
    recipe: Work | None = None
    gray_watch: bool = False  # only where one node is slow, and nothing else happens

    def plant(self) -> None:
        for target, old, new in self.edits:
            edit(target, old, new)


class PatchGone(Exception):
    """The production code moved: the planted bug must be moved after it."""


def edit(target: str, old: str, new: str) -> None:
    """Replace `old` by `new` in the source of `target` ("module:function" or "module:Class.method"), for this process."""
    module_name, _, path = target.partition(":")
    module = import_module(module_name)
    owner: Any = module
    *parents, name = path.split(".")
    try:
        for parent in parents:
            owner = getattr(owner, parent)
        present = inspect.getattr_static(owner, name)
    except AttributeError:
        raise PatchGone(f"{target} is gone: move the planted bug to where its code is now") from None
    function = _function(present)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(old) != 1:
        raise PatchGone(
            f"{target} has the text {old!r} {source.count(old)} times, not once: move the planted bug to where it is now"
        )
    flags = __future__.annotations.compiler_flag
    code = compile(source.replace(old, new), f"<planted in {target}>", "exec", flags=flags, dont_inherit=True)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    changed = made[name]
    setattr(owner, name, changed)
    if not parents:
        _replace_imported(present, changed)


def _function(present: Any) -> FunctionType:
    """The plain function behind a method, class method or property."""
    if isinstance(present, property):
        present = present.fget
    present = getattr(present, "__func__", present)
    if not isinstance(present, FunctionType):
        raise PatchGone(f"{present!r} is no function")
    return present


def _replace_imported(old: Any, new: Any) -> None:
    """Modules that imported the function by name have their own reference to it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("varlog."):
            for key, value in list(vars(module).items()):
                if value is old:
                    setattr(module, key, new)
