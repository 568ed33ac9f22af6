"""MemoryStore: the metadata store of tests and simulations; etcd's keys in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from varlog.metarepo.store.base import DeleteItem, Fenced, OpenedStore, PutItem, SoleStore, StoreChange
from varlog.metarepo.store.keyspace import (
    Condition,
    Created,
    DeleteKeys,
    KeyOperation,
    LeaseGone,
    NoAnswer,
    PutKey,
    StoredKey,
    TransactionResult,
)
from varlog.metarepo.store.replicated import LEASE_S, ReplicatedStore
from varlog.model.errors import Unavailable
from varlog.model.invariant import invariant
from varlog.runtime.environment import Environment
from varlog.runtime.tasks import Tasks


async def _at_once() -> None:
    """No delay."""


class MemoryMetadata:
    """The contents: pass the same object to the next store to restart on it.

    `before_commit` and `after_commit` are awaited around the one point in time at which a commit takes effect: a caller cancelled
    in the first has changed nothing, one cancelled in the second has changed everything without knowing it.

    `keys` is what repositories that share it see instead of `items` (InMemoryReplicatedStore); `held_until(host)` is the time, of
    the loop, until which nothing passes between them and that host.
    """

    def __init__(
        self,
        *,
        before_commit: Callable[[], Awaitable[None]] = _at_once,
        after_commit: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        self.items: dict[str, bytes] = {}
        self.term = 0
        self.keys = MemoryKeys()
        self.held_until: Callable[[str], float] = lambda host: 0.0
        self.before_commit = before_commit
        self.after_commit = after_commit


class MemoryStore(SoleStore):
    """One opening of a MemoryMetadata."""

    def __init__(self, metadata: MemoryMetadata, *, place: str = "memory") -> None:
        self._metadata = metadata
        self._place = place
        self._term = 0

    @property
    def place(self) -> str:
        return self._place

    async def open(self, address: str = "") -> OpenedStore:
        await self._metadata.before_commit()
        self._metadata.term += 1
        self._term = self._metadata.term
        opened = OpenedStore(self._term, dict(sorted(self._metadata.items.items())))
        await self._metadata.after_commit()
        return opened

    async def commit(self, changes: Sequence[StoreChange]) -> None:
        if not self._term:
            raise Unavailable(f"{self._place} is not open")
        await self._metadata.before_commit()
        if self._term != self._metadata.term:
            raise Fenced(
                f"{self._place} was opened again, in term {self._metadata.term}: term {self._term} is over"
            )
        self._metadata.items = _changed(self._metadata.items, changes)
        await self._metadata.after_commit()

    async def close(self) -> None:
        self._term = 0


def _changed(items: dict[str, bytes], changes: Sequence[StoreChange]) -> dict[str, bytes]:
    items = dict(items)
    for change in changes:
        if isinstance(change, PutItem):
            items[change.key] = change.value
        elif isinstance(change, DeleteItem):
            items.pop(change.key, None)
        else:
            for key in [key for key in items if change.begin <= key < change.end]:
                del items[key]
    return items


# MemoryKeys: the keys, revisions and leases that etcd's members agree on, in memory, for simulations and tests. Leases end by the
# loop's time.

# The limits of etcd itself.
ETCD_OPERATIONS_MAX: Final = 128
ETCD_BYTES_MAX: Final = 1_572_864


@dataclass(slots=True)
class _Granted:
    ttl_s: float
    ends_at: float


class MemoryKeys:
    """Shared by all callers. Each call happens at one point in time."""

    def __init__(self) -> None:
        self.revision = 1
        self._found: dict[str, StoredKey] = {}
        self._leases: dict[int, _Granted] = {}
        self._next_lease = 1
        self._changed: dict[asyncio.Future[None], None] = {}

    def transact(
        self, conditions: Sequence[Condition], operations: Sequence[KeyOperation], otherwise: Sequence[str]
    ) -> TransactionResult:
        self._expire()
        _check_as_etcd_does(operations)
        if not all(map(self._holds, conditions)):
            found = {key: self._found[key] for key in otherwise if key in self._found}
            return TransactionResult(False, self.revision, found)
        if any(isinstance(one, PutKey) and one.lease and one.lease not in self._leases for one in operations):
            raise LeaseGone("the lease is gone")
        self.revision += 1
        for operation in operations:
            self._do(operation)
        self._notify()
        return TransactionResult(True, self.revision)

    def range(self, begin: str, end: str) -> list[StoredKey]:
        self._expire()
        return [self._found[key] for key in sorted(self._found) if begin <= key < end]

    def grant(self, ttl_s: float) -> tuple[int, float]:
        number = self._next_lease
        self._next_lease += 1
        self._leases[number] = _Granted(ttl_s, asyncio.get_running_loop().time() + ttl_s)
        return number, ttl_s

    def renew(self, lease: int) -> float:
        self._expire()
        granted = self._leases.get(lease)
        if granted is None:
            return 0.0
        granted.ends_at = asyncio.get_running_loop().time() + granted.ttl_s
        return granted.ttl_s

    def revoke(self, lease: int) -> None:
        self._expire()
        self._end(lease)

    def depose(self) -> None:
        """Delete the leader's key immediately, as the end of its lease would."""
        for key in [key for key in self._found if key.endswith("/leader")]:
            self.transact([], [DeleteKeys(key, key + "\0")], [])

    def changed_after(self, key: str, revision: int) -> bool:
        self._expire()
        found = self._found.get(key)
        return found is None or found.modified > revision

    def next_end(self) -> float:
        """When the next lease ends, unless it is renewed."""
        return min((granted.ends_at for granted in self._leases.values()), default=float("inf"))

    def listen(self, future: asyncio.Future[None]) -> None:
        self._changed[future] = None
        future.add_done_callback(lambda done: self._changed.pop(future, None))

    def _holds(self, condition: Condition) -> bool:
        found = self._found.get(condition.key)
        if found is None:
            return condition.revision == 0
        return condition.revision == (found.created if isinstance(condition, Created) else found.modified)

    def _do(self, operation: KeyOperation) -> None:
        if isinstance(operation, PutKey):
            old = self._found.get(operation.key)
            created = old.created if old is not None else self.revision
            self._found[operation.key] = StoredKey(
                operation.key, operation.value, created, self.revision, operation.lease
            )
        else:
            for key in [key for key in self._found if operation.begin <= key < operation.end]:
                del self._found[key]

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for lease in [lease for lease, granted in self._leases.items() if granted.ends_at <= now]:
            self._end(lease)

    def _end(self, lease: int) -> None:
        if self._leases.pop(lease, None) is not None:
            self.revision += 1
            for key in [key for key, found in self._found.items() if found.lease == lease]:
                del self._found[key]
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, {}
        for future in changed:
            if not future.done():
                future.set_result(None)


def _check_as_etcd_does(operations: Sequence[KeyOperation]) -> None:
    puts = [operation for operation in operations if isinstance(operation, PutKey)]
    keys = [put.key for put in puts]
    invariant(len(operations) <= ETCD_OPERATIONS_MAX, "a transaction has at most 128 operations")
    invariant(sum(len(put.value) for put in puts) < ETCD_BYTES_MAX, "a transaction has at most 1.5 MiB")
    invariant(len(keys) == len(dict.fromkeys(keys)), "a transaction puts a key once")
    for delete in [operation for operation in operations if isinstance(operation, DeleteKeys)]:
        invariant(
            not any(delete.begin <= key < delete.end for key in keys),
            "a transaction does not put what it deletes",
        )


# InMemoryReplicatedStore: the replicated store over keys in memory.
#
# For simulations and tests: requests take time, and hosts can be disconnected.

T = TypeVar("T")


class MemoryKeyspace:
    """One process's access to the keys. A process that is disconnected or has waited too long gets no answer, and its request may
    be executed later."""

    def __init__(self, metadata: MemoryMetadata, host: str, attempt_s: float) -> None:
        self._metadata = metadata
        self._keys = metadata.keys
        self._host = host
        self._attempt_s = attempt_s
        self._requests = Tasks(f"keyspace of {host}", lambda name, error: None)

    @property
    def place(self) -> str:
        return "memory"

    async def transact(
        self,
        conditions: Sequence[Condition],
        operations: Sequence[KeyOperation],
        otherwise: Sequence[str] = (),
    ) -> TransactionResult:
        return await self._ask(lambda: self._keys.transact(conditions, operations, otherwise))

    async def range(self, begin: str, end: str) -> list[StoredKey]:
        return await self._ask(lambda: self._keys.range(begin, end))

    async def grant(self, ttl_s: float) -> tuple[int, float]:
        return await self._ask(lambda: self._keys.grant(ttl_s))

    async def renew(self, lease: int) -> float:
        return await self._ask(lambda: self._keys.renew(lease))

    async def revoke(self, lease: int) -> None:
        await self._ask(lambda: self._keys.revoke(lease))

    async def wait_change(self, key: str, after: int, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self._keys.changed_after(key, after) and loop.time() < deadline:
            changed: asyncio.Future[None] = loop.create_future()
            self._keys.listen(changed)
            until = min(deadline, self._keys.next_end())
            await asyncio.wait([changed], timeout=until - loop.time())
            _ = changed.cancel()
        await self._travel()

    async def close(self) -> None:
        """Requests in flight still arrive."""

    async def _ask(self, question: Callable[[], T]) -> T:
        asking = self._requests.spawn("ask", self._asked(question))
        done, _ = await asyncio.wait([asking], timeout=self._attempt_s)
        if not done:
            raise NoAnswer(f"no answer within {self._attempt_s:g} s")
        answer: T = asking.result()
        return answer

    async def _asked(self, question: Callable[[], T]) -> T:
        await self._travel()
        await self._metadata.before_commit()
        answer = question()
        await self._metadata.after_commit()
        await self._travel()
        return answer

    async def _travel(self) -> None:
        loop = asyncio.get_running_loop()
        while (held_s := self._metadata.held_until(self._host) - loop.time()) > 0:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(held_s)


class InMemoryReplicatedStore(ReplicatedStore):
    """One repository's access to shared metadata. It listens at `address`, whose host may be disconnected."""

    def __init__(
        self, metadata: MemoryMetadata, environment: Environment, address: str, *, lease_s: float = LEASE_S
    ) -> None:
        host = address.rpartition(":")[0] or address
        keyspace = MemoryKeyspace(metadata, host, attempt_s=lease_s / 4)
        super().__init__(keyspace, environment, prefix="varlog/", lease_s=lease_s, address=address)
