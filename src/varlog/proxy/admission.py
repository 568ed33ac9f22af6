"""Admission: what a proxy has in flight: appends, their bytes, subscriptions and connections; one too many is refused with 429.

A client that waits in a queue inside the proxy cannot see it and cannot go elsewhere; one that is refused can. Bytes of a body
count as they arrive, never as a head announces them, and an append takes a place once all of its body is there: what was only
announced costs nothing. No client address may have more than its share of anything, so that one cannot keep out the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

from starlette.types import Scope

from varlog.proxy.errors import TooBusy
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.meters import ProxyMeters


def client_of(scope: Scope) -> str:
    """The address that a request or socket came from. Headers that name another one are not believed."""
    client = scope.get("client")
    return client[0] if client else ""


class _Counter:
    """How much there is of one thing, in total and per client. `share`: of the bound, for one client."""

    def __init__(self, what: str, bound: int, share: float) -> None:
        self.what = what
        self.bound = bound
        self.client_bound = max(1, ceil(bound * share))
        self.total = 0
        self._clients: dict[str, int] = {}

    def over(self, client: str, amount: int) -> int | None:
        """The bound that `amount` more of this client would exceed; None: there is room."""
        if self.total + amount > self.bound:
            return self.bound
        if self._clients.get(client, 0) + amount > self.client_bound:
            return self.client_bound
        return None

    def add(self, client: str, amount: int) -> None:
        self.total += amount
        left = self._clients.get(client, 0) + amount
        if left:
            self._clients[client] = left
        else:
            self._clients.pop(client, None)  # clients come and go: what is left of them is nothing


class AppendReservation:
    """The body of one append: its bytes as they arrive, then its place among the appends; all given back at once."""

    __slots__ = ("_admission", "_client", "_placed", "size")

    def __init__(self, admission: ProxyAdmission, client: str) -> None:
        self._admission = admission
        self._client = client
        self._placed = False
        self.size = 0

    def add(self, size: int) -> None:
        """This many bytes have arrived. TooBusy: they are too many together with those of others."""
        self._admission._add_bytes(self._client, size, alone=self._admission.append_bytes == self.size)
        self.size += size

    def place(self) -> None:
        """The body is complete: it is an append now. TooBusy: there are enough."""
        self._admission._add_append(self._client)
        self._placed = True

    def release(self) -> None:
        """It is over. Once."""
        self._admission._release(self._client, self.size, self._placed)


class ProxyAdmission:
    """What is in flight in one proxy."""

    def __init__(self, limits: ProxyLimits, meters: ProxyMeters) -> None:
        share = limits.client_share
        self._appends = _Counter("appends", limits.appends_max, share)
        self._append_bytes = _Counter("bytes of appends", limits.append_bytes_max, share)
        self._subscriptions = _Counter("subscriptions", limits.subscriptions_max, share)
        self._connections = _Counter("connections", limits.connections_max, share)
        self._meters = meters

    @property
    def appends(self) -> int:
        """Those whose body is complete."""
        return self._appends.total

    @property
    def append_bytes(self) -> int:
        """Of complete bodies and of those that arrive."""
        return self._append_bytes.total

    @property
    def subscriptions(self) -> int:
        return self._subscriptions.total

    @property
    def connections(self) -> int:
        return self._connections.total

    @contextmanager
    def arrive(self, client: str) -> Iterator[AppendReservation]:
        """One append whose body is about to be read, in flight as long as the block lasts. TooBusy: nothing of it was done."""
        self._check(self._appends, client, 1)  # if it is refused anyway, then before it was sent
        arrival = AppendReservation(self, client)
        try:
            yield arrival
        finally:
            arrival.release()

    def begin_append(self, size: int, client: str) -> Callable[[], None]:
        """One append that is all here, in flight until what comes back is called, once."""
        arrival = AppendReservation(self, client)
        try:
            arrival.add(size)
            arrival.place()
        except TooBusy:
            arrival.release()
            raise
        return arrival.release

    def subscribe(self, kind: str, client: str) -> Callable[[], None]:
        """One subscription, of a kind that the meters know. Call what comes back when it is over; TooBusy: there are enough."""
        self._check(self._subscriptions, client, 1)
        self._subscriptions.add(client, 1)
        self._meters.subscribed(kind)
        over = False

        def release() -> None:
            nonlocal over
            if not over:
                over = True
                self._subscriptions.add(client, -1)
                self._meters.unsubscribed(kind)

        return release

    def connect(self, client: str) -> None:
        """A connection, until `disconnect`. TooBusy: there are enough, and it does not count."""
        self._check(self._connections, client, 1)
        self._connections.add(client, 1)

    def disconnect(self, client: str) -> None:
        self._connections.add(client, -1)

    def _add_bytes(self, client: str, size: int, *, alone: bool) -> None:
        """One that is alone is let in whatever its size: what a body may have must get through some time."""
        if not alone:
            self._check(self._append_bytes, client, size)
        self._append_bytes.add(client, size)

    def _add_append(self, client: str) -> None:
        self._check(self._appends, client, 1)
        self._appends.add(client, 1)

    def _release(self, client: str, size: int, placed: bool) -> None:
        if size:
            self._append_bytes.add(client, -size)
        if placed:
            self._appends.add(client, -1)

    def _check(self, counter: _Counter, client: str, amount: int) -> None:
        bound = counter.over(client, amount)
        if bound is not None:
            self._meters.refused(counter.what)
            raise TooBusy(counter.what, bound)
