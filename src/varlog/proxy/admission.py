"""Admission: what a proxy has under way: appends, their bytes, and subscriptions; one too many is refused at once with 429.

Whoever waits in a line at the proxy cannot see it and cannot go elsewhere; whoever is refused can. The bytes of a body count from
before it is read, so that the memory of the proxy is bounded by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from varlog.proxy.errors import TooBusy
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.meters import ProxyMeters


class Admission:
    """What is under way in one proxy."""

    def __init__(self, limits: ProxyLimits, meters: ProxyMeters) -> None:
        self.appends = 0
        self.append_bytes = 0
        self.subscriptions = 0
        self._limits = limits
        self._meters = meters

    @contextmanager
    def append(self, size: int) -> Iterator[None]:
        """One append of at most so many bytes, under way as long as the block lasts. TooBusy: nothing of it was done."""
        release = self.begin_append(size)
        try:
            yield
        finally:
            release()

    def begin_append(self, size: int) -> Callable[[], None]:
        """One append, under way until what comes back is called, once.

        One that is alone is let in whatever its size: what a body may have must get through some time."""
        limits = self._limits
        if self.appends >= limits.appends_max:
            raise self._too_busy("appends", limits.appends_max)
        if self.appends and self.append_bytes + size > limits.append_bytes_max:
            raise self._too_busy("bytes of appends", limits.append_bytes_max)
        self.appends += 1
        self.append_bytes += size

        def release() -> None:
            self.appends -= 1
            self.append_bytes -= size

        return release

    def subscribe(self, kind: str) -> Callable[[], None]:
        """One subscription, of a kind that the meters know. Call what comes back when it is over; TooBusy: there are enough."""
        if self.subscriptions >= self._limits.subscriptions_max:
            raise self._too_busy("subscriptions", self._limits.subscriptions_max)
        self.subscriptions += 1
        self._meters.subscribed(kind)
        over = False

        def release() -> None:
            nonlocal over
            if not over:
                over = True
                self.subscriptions -= 1
                self._meters.unsubscribed(kind)

        return release

    def _too_busy(self, what: str, limit: int) -> TooBusy:
        self._meters.refused(what)
        return TooBusy(what, limit)
