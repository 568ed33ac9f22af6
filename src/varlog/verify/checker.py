"""Checker: the interface of one property of a history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from varlog.verify.history import History


class Checker(ABC):
    """One property. `law` says where it is written; `check` yields one sentence for each violation. `beyond`: it holds also where
    copies were harmed beyond what replication survives."""

    law: ClassVar[str]
    beyond: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def check(self, history: History) -> Iterator[str]: ...
