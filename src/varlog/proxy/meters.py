"""ProxyMeters: what one proxy counts of itself, shown at /metrics."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Requests without a route: their paths are unbounded, so they share one label.
NO_ROUTE: Final = "none"
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ProxyMeters:
    """One set per application: two of them in one process are counted apart."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "varlog_proxy_requests",
            "Responses by route and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "varlog_proxy_request_duration_seconds",
            "Time until the response began.",
            ["method", "route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._appended_entries = Counter(
            "varlog_proxy_appended_entries", "Entries appended through this proxy.", registry=registry
        )
        self._appended_bytes = Counter(
            "varlog_proxy_appended_bytes", "Bytes of these entries.", registry=registry
        )
        self._read_entries = Counter(
            "varlog_proxy_read_entries", "Entries sent to readers and subscribers.", registry=registry
        )
        self._read_bytes = Counter("varlog_proxy_read_bytes", "Bytes of these entries.", registry=registry)
        self._subscribers = Gauge(
            "varlog_proxy_subscriptions", "Open subscriptions.", ["kind"], registry=registry
        )
        self._dropped = Counter(
            "varlog_proxy_subscriptions_dropped",
            "Subscriptions that the proxy ended, by reason.",
            ["kind", "reason"],
            registry=registry,
        )
        self._refused = Counter(
            "varlog_proxy_requests_refused",
            "Requests refused because too much was in flight, by what exceeded its limit; overloaded: the log itself.",
            ["what"],
            registry=registry,
        )
        self._labelled: dict[tuple[str, ...], Any] = {}

    # --- counting -----------------------------------------------------------------------------------------------------

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request, counted when its response began."""
        key = (method, route, str(status))
        known = self._labelled.get(key)
        if known is None:
            known = self._labelled[key] = (self._requests.labels(*key), self._seconds.labels(method, route))
        counter, histogram = known
        counter.inc()
        histogram.observe(seconds)

    def appended(self, entries: int, size: int) -> None:
        """One acknowledged batch."""
        self._appended_entries.inc(entries)
        self._appended_bytes.inc(size)

    def read(self, entries: int, size: int) -> None:
        """Entries sent in one response or frame."""
        self._read_entries.inc(entries)
        self._read_bytes.inc(size)

    def subscribed(self, kind: str) -> None:
        """`kind`: events, socket or status."""
        self._subscribers.labels(kind).inc()

    def unsubscribed(self, kind: str) -> None:
        self._subscribers.labels(kind).dec()

    def dropped(self, kind: str, reason: str) -> None:
        """The proxy ended a subscription; `reason` is the name of a problem, such as too-slow."""
        self._dropped.labels(kind, reason).inc()

    def refused(self, what: str) -> None:
        """`what` exceeded its limit, such as appends."""
        self._refused.labels(what).inc()


class MeteredApp:
    """The outermost ASGI middleware: counts each response, and the time until it began."""

    def __init__(self, app: ASGIApp, meters: ProxyMeters) -> None:
        self._app = app
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = perf_counter()

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", NO_ROUTE)
                self._meters.answered(
                    _method(scope["method"]), route, message["status"], perf_counter() - begun
                )
            await send(message)

        await self._app(scope, receive, send_and_count)


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def _method(name: str) -> str:
    """Methods are unbounded as well."""
    return name if name in _METHODS else "other"
