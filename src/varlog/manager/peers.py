"""Peers: requests to repository and nodes, with deadline and typed reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from varlog.model.errors import Unavailable, VarlogError
from varlog.rpc.leader import LeaderClient
from varlog.rpc.messages import GetViewReply, Message
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import Transport

CALL_TIMEOUT_S = 5.0

M = TypeVar("M", bound=Message)


class Peers:
    """One connection per address, opened on demand and reopened when it breaks. `on_lost` is called with the address of a
    connection that breaks, so that a dead process is noticed immediately."""

    def __init__(
        self, transport: Transport, repository: str, on_lost: Callable[[str], None] = lambda address: None
    ) -> None:
        self._pool = ConnectionPool(transport, owner="manager", on_lost=on_lost)
        self.repository = LeaderClient(self._pool, repository)

    async def ask(
        self, address: str, request: Message, answer: type[M], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> M:
        """The reply of the process at `address`. Raises VarlogError."""
        reply, _ = await self._pool.call(address, request, timeout_s=timeout_s)
        return _expected(address, request, reply, answer)

    async def ask_all(self, addresses: Sequence[str], request: Message) -> list[VarlogError | None]:
        """Send the request to all of them concurrently; the error of each, or None."""

        async def ask(address: str) -> VarlogError | None:
            try:
                await self.ask(address, request, Message)
            except VarlogError as error:
                return error
            return None

        return list(await asyncio.gather(*(ask(address) for address in addresses)))

    async def ask_repository(
        self, request: Message, answer: type[M], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> M:
        """The reply of the leading metadata repository. Raises VarlogError."""
        reply = await self.repository.call(request, timeout_s=timeout_s)
        if isinstance(reply, GetViewReply):
            self.repository.learn(reply.view.repositories)
        return _expected(self.repository.address, request, reply, answer)

    async def close(self) -> None:
        await self._pool.close()


def _expected(address: str, request: Message, reply: Message, answer: type[M]) -> M:
    if not isinstance(reply, answer):
        raise Unavailable(
            f"{address} answered {type(request).__name__} with {type(reply).__name__}: versions differ?"
        )
    return reply
