"""ServerGroup and Journal: what the workloads need from a system: servers and streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

# Gets the payloads that were read, some at a time. Only a test asks for them: a benchmark counts.
Keep = Callable[[Sequence[bytes]], None]


class PeerMissing(Exception):
    """A peer cannot be run on this machine; the text says what to install."""


class Journal(Protocol):
    """A client with its connections open, and one stream or several of this turn's own. `caller` is the number of the appender."""

    @property
    def batch_ways(self) -> tuple[str, ...]:
        """How a batch can be appended, the usual one first."""
        ...

    @property
    def read_ways(self) -> tuple[str, ...]:
        """How a stream can be read from its start, the usual one first."""
        ...

    def append(self, caller: int, payload: bytes) -> Awaitable[object]:
        """One entry; done when the system says that it is there."""
        ...

    def append_batch(self, caller: int, payloads: Sequence[bytes], way: str) -> Awaitable[object]:
        """Many entries into one stream; done when all of them are there."""
        ...

    async def read(self, count: int, way: str, keep: Keep | None = None) -> int:
        """The first `count` entries of the first stream, each as a Python object (or as `way` says); how many came."""
        ...


class ServerGroup(Protocol):
    """The servers of one or several systems."""

    async def start(self) -> None:
        """Until they answer. If one does not start, none is left running."""
        ...

    async def stop(self) -> None: ...

    def pids(self) -> list[int]:
        """Of every server process: whose processor time counts."""
        ...

    def journal(
        self, system: str, topic: str, *, streams: int, callers: int
    ) -> AbstractAsyncContextManager[Journal]:
        """Fresh streams and a client for `callers` appenders; the streams are deleted at the end."""
        ...
