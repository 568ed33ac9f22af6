"""ProxyAdmission: bounds what a proxy has in flight; beyond it, 429.

Appends, their bytes, subscriptions and connections are counted.

A client that waits in a queue inside the proxy cannot see it and cannot go elsewhere; one that is refused can. Bytes of a body
count as they arrive, never as a head announces them, and an append
counts once its body is complete: what was only announced costs nothing. No client address may have more than its share of
anything, so that one cannot keep out the others.
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
    """The address that a request or socket came from. Headers that name another one are ignored."""
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
            self._clients.pop(client, None)  # clients come and go, and leave nothing behind


class AppendReservation:
    """What one append counts for: its bytes as they arrive, then one append; released together."""

    __slots__ = ("_admission", "_client", "_counted", "size")

    def __init__(self, admission: ProxyAdmission, client: str) -> None:
        self._admission = admission
        self._client = client
        self._counted = False
        self.size = 0

    def add(self, size: int) -> None:
        """More bytes have arrived. TooBusy: together with those of others they are too many."""
        self._admission._add_bytes(self._client, size, alone=self._admission.append_bytes == self.size)
        self.size += size

    def count_append(self) -> None:
        """The body is complete: it counts as an append now. TooBusy: there are too many."""
        self._admission._add_append(self._client)
        self._counted = True

    def release(self) -> None:
        """The append has ended. Called once."""
        self._admission._release(self._client, self.size, self._counted)


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
    def reserve_append(self, client: str) -> Iterator[AppendReservation]:
        """One append whose body is about to be read, in flight until the block ends. TooBusy: nothing was done."""
        self._check(self._appends, client, 1)  # refuse early what would be refused anyway
        reservation = AppendReservation(self, client)
        try:
            yield reservation
        finally:
            reservation.release()

    def begin_append(self, size: int, client: str) -> Callable[[], None]:
        """One append whose body is complete, in flight until the returned function is called, once."""
        reservation = AppendReservation(self, client)
        try:
            reservation.add(size)
            reservation.count_append()
        except TooBusy:
            reservation.release()
            raise
        return reservation.release

    def subscribe(self, kind: str, client: str) -> Callable[[], None]:
        """One subscription, of a kind that the meters know. Call the result when it ends. TooBusy: there are too many."""
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
        """A connection, until `disconnect`. TooBusy: there are too many, and this one is not counted."""
        self._check(self._connections, client, 1)
        self._connections.add(client, 1)

    def disconnect(self, client: str) -> None:
        self._connections.add(client, -1)

    def _add_bytes(self, client: str, size: int, *, alone: bool) -> None:
        """A single append is admitted whatever its size: a body of the largest allowed size must get through."""
        if not alone:
            self._check(self._append_bytes, client, size)
        self._append_bytes.add(client, size)

    def _add_append(self, client: str) -> None:
        self._check(self._appends, client, 1)
        self._appends.add(client, 1)

    def _release(self, client: str, size: int, counted: bool) -> None:
        if size:
            self._append_bytes.add(client, -size)
        if counted:
            self._appends.add(client, -1)

    def _check(self, counter: _Counter, client: str, amount: int) -> None:
        bound = counter.over(client, amount)
        if bound is not None:
            self._meters.refused(counter.what)
            raise TooBusy(counter.what, bound)
