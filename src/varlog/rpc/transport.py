"""Transport: the contract of connections that TCP, memory and simulation keep.

Frames of one connection arrive in the order they were sent, each once, until the connection breaks; then `on_close`
is called once and every call in flight ends in ConnectionLost. Handlers run in the event loop, in arrival order, and
must not block; one that has to wait keeps its Call and answers later, so that no task is made per request.

A payload that was handed over to be sent must not be changed any more: it may be sent from where it is. A payload
that arrives is the receiver's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from varlog.model.batch import Buffer
from varlog.model.errors import Unavailable
from varlog.rpc.messages import Message


class ConnectionLost(Unavailable):
    """The connection broke, or was never made (`sent` is False: the request certainly did not arrive)."""

    def __init__(self, what: str, sent: bool = True) -> None:
        super().__init__(what)
        self.sent = sent


class CallTimeout(Unavailable):
    """No answer in time; the request may still be carried out, unless `sent` is False: it never left."""

    def __init__(self, what: str, sent: bool = True) -> None:
        super().__init__(what)
        self.sent = sent


class Call(Protocol):
    """A request that waits for its answer. Answer it once; answering after the connection broke does nothing."""

    def reply(self, message: Message, payload: Buffer = b"") -> None: ...

    def fail(self, error: BaseException) -> None:
        """Answer with an error of the tree; any other exception is sent as Unavailable and logged."""
        ...

    @property
    def connection(self) -> Connection: ...


# (call, message, payload): `call` is None for a one-way message. `payload` is the receiver's own, to be written to.
Handler = Callable[[Call | None, Message, bytearray], None]


class Connection(Protocol):
    """One ordered, two-way connection."""

    @property
    def peer(self) -> str:
        """The other end, as shown in logs."""
        ...

    @property
    def closed(self) -> bool: ...

    async def call(
        self, request: Message, payload: Buffer = b"", *, timeout_s: float
    ) -> tuple[Message, bytearray]:
        """The answer, or its error: an error of the tree raised by the other side, ConnectionLost or CallTimeout."""
        ...

    def send(self, message: Message, payload: Buffer = b"") -> None:
        """One way, in order, no answer. Raises ConnectionLost if the connection is closed."""
        ...

    async def wait_writable(self) -> None:
        """Return once less than the write limit waits to be sent (back-pressure); ConnectionLost if it breaks."""
        ...

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back once when the connection is closed by either side, or at once if it is closed already."""
        ...

    def close(self) -> None: ...


class Server(Protocol):
    """A listening address."""

    @property
    def address(self) -> str:
        """host:port, with the real port where 0 was asked for."""
        ...

    async def close(self) -> None:
        """Stop listening and close every connection."""
        ...


class Transport(Protocol):
    """How processes reach each other."""

    @property
    def corrupt_frames(self) -> int:
        """Frames that came with a wrong checksum since it was made; each ended its connection."""
        ...

    async def connect(self, address: str, *, handler: Handler | None = None, timeout_s: float) -> Connection:
        """A new connection; ConnectionLost(sent=False) if nobody listens. `handler` handles what comes without a request."""
        ...

    async def serve(self, address: str, make_handler: Callable[[Connection], Handler]) -> Server:
        """Listen at host:port (port 0: any free one). StartupError names the address if it cannot be had."""
        ...
