"""LeaderClient: calls whichever of several addresses leads.

Follows NotLeader, skips addresses that do not answer, and remembers the one that did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from varlog.model.errors import NotLeader, Unavailable
from varlog.rpc.messages import Message
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import CallTimeout, ConnectionLost

# Dialling one of several that is switched off, or cut off, must not use up the time that the others need.
DIAL_S: Final = 1.0


def addresses_of(text: str) -> tuple[str, ...]:
    """`host:port,host:port,…` in order, each once."""
    return tuple(dict.fromkeys(part for found in text.split(",") if (part := found.strip())))


class LeaderClient:
    """`addresses` are the configured ones; others are learned from the view and from NotLeader errors."""

    def __init__(self, pool: ConnectionPool, addresses: str) -> None:
        self._pool = pool
        self._given = addresses_of(addresses) or (addresses,)
        self._known = self._given
        self._asked = self._given[0]

    @property
    def address(self) -> str:
        """The one that is called next: the one that answered last."""
        return self._asked

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._known

    def __str__(self) -> str:
        return ",".join(self._given)

    def learn(self, addresses: Iterable[str]) -> None:
        """The present addresses of all of them; configured ones stay known."""
        self._known = tuple(dict.fromkeys((*self._given, *addresses)))

    async def call(self, request: Message, *, timeout_s: float) -> Message:
        """The leader's answer, or an error of the tree. An address that certainly did not accept the request is skipped.

        A request that was sent and not answered is not sent to another one: it may have been carried out. The caller
        knows whether sending it twice is harmless, and the next call goes elsewhere.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        untried = dict.fromkeys((self._asked, *self._known))
        while True:
            address = self._asked
            untried.pop(address, None)
            try:
                return await self._call(address, request, deadline)
            except NotLeader as error:
                follow = error.leader if error.leader in untried or error.leader not in self._known else ""
                last: Unavailable = error
            except ConnectionLost as error:
                follow, last = "", error
                if error.sent:
                    untried = {}
            except CallTimeout as error:
                follow, last, untried = "", error, {}
                if len(self._known) > 1:
                    self._pool.drop(address)  # it hangs: later calls are better served elsewhere
            if follow:
                self._known = tuple(dict.fromkeys((*self._known, follow)))
                self._asked = follow
            else:
                self._asked = next(iter(untried), None) or self._after(address)
            if not (follow or untried) or loop.time() >= deadline:
                raise last

    async def _call(self, address: str, request: Message, deadline: float) -> Message:
        loop = asyncio.get_running_loop()
        left_s = deadline - loop.time()
        connection = await self._pool.get(address, min(left_s, DIAL_S) if len(self._known) > 1 else left_s)
        answer, _ = await connection.call(request, timeout_s=deadline - loop.time())
        return answer

    def _after(self, address: str) -> str:
        """The next one in turn."""
        known = self._known
        return known[(known.index(address) + 1) % len(known)] if address in known else known[0]
