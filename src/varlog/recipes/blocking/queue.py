"""Queue and Claim without async."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from varlog.client.blocking import Log
from varlog.model.batch import Buffer
from varlog.recipes.blocking.core import SyncFacade, call
from varlog.recipes.core.lease_rules import TTL_S
from varlog.recipes.core.replicated import TIMEOUT_S
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.queue import queue
from varlog.recipes.queue import queue as claim
from varlog.recipes.queue.queue import QueueSize


class Claim:
    """One item of a queue. `with` completes it at the end, or releases it if the work raised. The log's loop sends its
    heartbeats meanwhile."""

    def __init__(self, log: Log, inner: claim.Claim) -> None:
        self._log = log
        self._run = log.connector.run
        self._inner = inner
        self.number = inner.number
        self.body = inner.body
        self.deliveries = inner.deliveries
        self.token = inner.token

    @property
    def held(self) -> bool:
        """No other claim has it now, by our own clock."""
        return call(self._log, lambda: self._inner.held)

    @property
    def lost(self) -> bool:
        """Another claim has it, or may."""
        return call(self._log, self._inner.lost.is_set)

    def done(self, *, timeout_s: float | None = None) -> None:
        """The item is done, for good. ClaimLost: it is not, and another consumer has it or will."""
        self._run(self._inner.done(timeout_s=timeout_s))

    def release(self, *, timeout_s: float | None = None) -> None:
        """Return the item to the queue, in its old place: another consumer gets it."""
        self._run(self._inner.release(timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))


class Queue(SyncFacade[queue.Queue]):
    """The queue of one name in a topic. At least once: an item whose consumer is lost is delivered again, to another."""

    def __init__(
        self,
        log: Log,
        *,
        name: str = "queue",
        who: str = "",
        snapshots: Snapshots | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        opening = queue.Queue.open(
            log.connector.asynchronous, name=name, who=who, snapshots=snapshots, timeout_s=timeout_s
        )
        super().__init__(log, opening)

    def put(self, body: Buffer, *, timeout_s: float | None = None) -> int:
        """To the end; returns the item's number."""
        return self._run(self._inner.put(body, timeout_s=timeout_s))

    def put_all(self, bodies: Iterable[Buffer], *, timeout_s: float | None = None) -> list[int]:
        """To the end, all of them or none, one behind the other."""
        return self._run(self._inner.put_all(bodies, timeout_s=timeout_s))

    def take(self, *, ttl_s: float = TTL_S, timeout_s: float | None = None) -> Claim:
        """Claim the first item that is ready; wait for one if there is none, as long as it takes (or TimeoutError).

        `ttl_s`: if the consumer sends no heartbeat for this long, another one gets the item.
        """
        return Claim(self._log, self._run(self._inner.take(ttl_s=ttl_s, timeout_s=timeout_s)))

    def take_now(self, *, ttl_s: float = TTL_S) -> Claim | None:
        """Claim the first item that is ready, or None if there is none."""
        taken = self._run(self._inner.take_now(ttl_s=ttl_s))
        return None if taken is None else Claim(self._log, taken)

    def size(self, *, stale: bool = False, timeout_s: float | None = None) -> QueueSize:
        """How many items there are now. `stale`: as far as it is applied here, without asking."""
        return self._run(self._inner.size(stale=stale, timeout_s=timeout_s))
