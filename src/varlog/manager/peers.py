"""Peers: the manager's questions to repository and storage nodes, each with a deadline and a typed answer."""

from __future__ import annotations

from typing import TypeVar

from varlog.model.errors import Unavailable
from varlog.rpc.messages import Message
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import Transport

CALL_TIMEOUT_S = 5.0

M = TypeVar("M", bound=Message)


class Peers:
    """One connection an address, made when it is needed and made again when it broke."""

    def __init__(self, transport: Transport, repository: str) -> None:
        self.repository = repository
        self._pool = ConnectionPool(transport, owner="manager")

    async def ask(
        self, address: str, request: Message, answer: type[M], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> M:
        """The answer of whoever listens at `address`; raises an error of the tree."""
        reply, _ = await self._pool.call(address, request, timeout_s=timeout_s)
        if not isinstance(reply, answer):
            raise Unavailable(
                f"{address} answered {type(request).__name__} with {type(reply).__name__}: versions differ?"
            )
        return reply

    async def ask_repository(
        self, request: Message, answer: type[M], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> M:
        """The same, of the metadata repository."""
        return await self.ask(self.repository, request, answer, timeout_s=timeout_s)

    async def close(self) -> None:
        await self._pool.close()
