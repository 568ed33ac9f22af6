"""InMemoryReplicatedStore: the replicated store over keys in memory.

For simulations and tests: requests take time, and hosts can be cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from varlog.metarepo.store.keyspace import Condition, KeyOperation, NoAnswer, StoredKey, TransactionResult
from varlog.metarepo.store.memory import MemoryMetadata
from varlog.metarepo.store.replicated import LEASE_S, ReplicatedStore
from varlog.runtime.environment import Environment
from varlog.runtime.tasks import Tasks

T = TypeVar("T")


class MemoryKeyspace:
    """One process's access to the keys. A process that is disconnected or has waited too long gets no answer, and its
    request may be carried out later."""

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
        """Requests in flight arrive all the same."""

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
    """One repository's access to metadata that several share. `address` is where it listens; its host may be disconnected."""

    def __init__(
        self, metadata: MemoryMetadata, environment: Environment, address: str, *, lease_s: float = LEASE_S
    ) -> None:
        host = address.rpartition(":")[0] or address
        keyspace = MemoryKeyspace(metadata, host, attempt_s=lease_s / 4)
        super().__init__(keyspace, environment, prefix="varlog/", lease_s=lease_s, address=address)
