"""ConnectionGuard: which connections a server keeps, and how long.

A peer can be any process. What it can make a server do is bounded before anything it sends is trusted: the number of
connections in total and per host, the bytes of frames that are not whole yet over all connections, and the time until a
hello has arrived or a frame is whole. No I/O and no clock: the server reports what happens, and closes the connections
that are returned to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from varlog.model.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_HOST_MAX,
    FRAME_TIMEOUT_S,
    HELLO_TIMEOUT_S,
    UNREAD_BYTES_MAX,
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The bounds of one server."""

    connections_max: int = CONNECTIONS_MAX
    connections_per_host_max: int = CONNECTIONS_PER_HOST_MAX
    unread_bytes_max: int = UNREAD_BYTES_MAX
    hello_timeout_s: float = HELLO_TIMEOUT_S
    frame_timeout_s: float = FRAME_TIMEOUT_S


class Guarded(Protocol):
    """What the guard needs of a connection."""

    @property
    def known(self) -> bool:
        """Whether the peer said hello."""
        ...

    @property
    def reading_paused(self) -> bool:
        """Whether this end has paused reading."""
        ...


@dataclass(slots=True)
class Unfinished:
    """A frame that is not whole yet."""

    held_bytes: int
    since: float  # when it began, or when reading was last paused


C = TypeVar("C", bound=Guarded)


@dataclass
class ConnectionGuard(Generic[C]):
    """The connections of one server, and what each of them holds."""

    limits: ConnectionLimits
    unread_bytes: int = 0  # the sum of held_bytes over `unfinished`
    admitted: dict[C, tuple[str, float]] = field(default_factory=dict)  # the peer's host, and since when
    per_host: dict[str, int] = field(
        default_factory=dict
    )  # of `admitted`; "" is this machine, by a local socket
    unfinished: dict[C, Unfinished] = field(default_factory=dict)  # the one that began first is the first

    def admit(self, connection: C, host: str, now: float) -> str:
        """Accept a new connection, or return which bound it would break. A local socket is not bounded per host: its
        peer is the same user, and all local processes are one host."""
        if len(self.admitted) >= self.limits.connections_max:
            return f"this server has {self.limits.connections_max} connections, which is its bound"
        count = self.per_host.get(host, 0)
        if host and count >= self.limits.connections_per_host_max:
            return f"{host} has {self.limits.connections_per_host_max} connections here, which is the bound for one host"
        self.admitted[connection] = (host, now)
        self.per_host[host] = count + 1
        return ""

    def leave(self, connection: C) -> None:
        """It is closed."""
        self.set_held(connection, 0, 0.0)
        host, _ = self.admitted.pop(connection, ("", 0.0))
        left = self.per_host.get(host, 0) - 1
        if left > 0:
            self.per_host[host] = left
        else:
            self.per_host.pop(host, None)

    def set_held(self, connection: C, held_bytes: int, now: float) -> C | None:
        """Record how much memory the unfinished frame of a connection occupies. Returns the connection to be closed if
        all occupy too much: the one whose frame began first, because frames of an honest peer are soon whole."""
        frame = self.unfinished.get(connection)
        if frame is not None:
            self.unread_bytes += held_bytes - frame.held_bytes
            frame.held_bytes = held_bytes
            if held_bytes == 0:
                del self.unfinished[connection]
        elif held_bytes:
            self.unread_bytes += held_bytes
            self.unfinished[connection] = Unfinished(held_bytes, now)
        if self.unread_bytes > self.limits.unread_bytes_max:
            return next(iter(self.unfinished))
        return None

    def overdue(self, now: float) -> list[tuple[C, str]]:
        """The connections whose time is up, and why."""
        limits = self.limits
        found = [
            (connection, f"it did not say hello within {limits.hello_timeout_s:g} s")
            for connection, (_, since) in self.admitted.items()
            if not connection.known and now - since > limits.hello_timeout_s
        ]
        for connection, frame in self.unfinished.items():
            if connection.reading_paused:
                frame.since = now
            elif connection.known and now - frame.since > limits.frame_timeout_s:
                found.append((connection, f"its frame was not whole after {limits.frame_timeout_s:g} s"))
        return found
