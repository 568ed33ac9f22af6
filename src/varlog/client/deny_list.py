"""[A2 R2] PURE. DenyList: what failed lately comes last, until it is heard of again or its time is over (R-FAIL-2).

Failures count within a window; at the threshold the key is denied. Whenever it fails again after its time was over it is denied for
twice as long, up to a bound; its first success forgets everything. Denied means last, not never: that is the caller's part.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

THRESHOLD: Final = 2
WINDOW_S: Final = 10.0
DENIED_S_FIRST: Final = 1.0
DENIED_S_MAX: Final = 8.0


class _Record:
    __slots__ = ("denied_until", "failures", "last_failure", "next_denial_s")

    def __init__(self) -> None:
        self.failures = 0
        self.last_failure = 0.0
        self.denied_until = 0.0
        self.next_denial_s = DENIED_S_FIRST


class DenyList(Generic[K]):
    """Nodes, or streams, that failed lately. Times are the caller's, and only grow. False while there is nothing on it."""

    def __init__(self, threshold: int = THRESHOLD) -> None:
        self._threshold = threshold
        self._records: dict[K, _Record] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    def failed(self, key: K, now: float, *, surely: bool = False) -> None:
        """Count a failure; `surely`: one that leaves no doubt, and is enough by itself."""
        self._forget_old(now)
        record = self._records.setdefault(key, _Record())
        record.failures += self._threshold if surely else 1
        record.last_failure = now
        # What is under way while it is denied fails too: that is the same failure, seen again.
        if record.failures >= self._threshold and now >= record.denied_until:
            record.denied_until = now + record.next_denial_s
            record.next_denial_s = min(2 * record.next_denial_s, DENIED_S_MAX)

    def succeeded(self, key: K) -> None:
        self._records.pop(key, None)

    def denied(self, now: float) -> dict[K, float]:
        """Who is denied now, and until when."""
        self._forget_old(now)
        return {
            key: record.denied_until for key, record in self._records.items() if now < record.denied_until
        }

    def _forget_old(self, now: float) -> None:
        old = [
            key
            for key, record in self._records.items()
            if now >= max(record.denied_until, record.last_failure) + WINDOW_S
        ]
        for key in old:
            del self._records[key]
