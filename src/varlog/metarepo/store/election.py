"""LeaderElection: how one repository becomes leader, and the lease behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from varlog.metarepo.store.base import Fenced
from varlog.metarepo.store.keyspace import (
    Condition,
    Created,
    KeyOperation,
    Keyspace,
    NoAnswer,
    PutKey,
    StoredKey,
    TransactionResult,
)
from varlog.model.errors import Unavailable
from varlog.model.lease import held_for_s
from varlog.runtime.environment import Environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

RETRY_S: Final = 0.05
# Revoking a lease only saves the next leader a wait: it is not worth a longer timeout.
REVOKE_S: Final = 1.0
# Makes the first key after all keys of a folder, which end in "/".
AFTER_SLASH: Final = "0"

T = TypeVar("T")

_log = get_logger("metarepo")


class LeaderElection:
    """`prefix` is the folder of this cluster. Everything that it writes is bound to its lease, and deleted with it."""

    def __init__(self, keyspace: Keyspace, environment: Environment, prefix: str, lease_s: float) -> None:
        self.leader = ""
        self.repositories: tuple[str, ...] = ()
        self.leader_key = f"{prefix}leader"
        self._keyspace = keyspace
        self._environment = environment
        self._candidates = f"{prefix}candidate/"
        self._lease_s = lease_s
        self._lease: ElectionLease | None = None
        self._keeping: Tasks | None = None
        self._repositories_changed = asyncio.Event()
        self._logged_trouble = ""

    @property
    def holds(self) -> bool:
        """Whether the lease cannot have ended yet, by this process's clock."""
        return self._lease is not None and self._lease.holds

    def lose(self, why: str) -> None:
        if self._lease is not None:
            self._lease.lose(why)

    async def wait_lost(self) -> str:
        return await self._lease.wait_lost() if self._lease is not None else "there is no lease"

    # --- begin and end ---------------------------------------------------------------------------------------------------

    async def enter(self, address: str) -> None:
        """Get a lease, keep it, and publish the address of this repository. Waits for the keyspace as long as it takes."""
        self._lease = lease = await self.insist(self._granted)
        self._keeping = Tasks("lease", lambda name, error: lease.lose(f"it is no longer renewed: {error}"))
        _ = self._keeping.spawn("keep", lease.keep(lambda: self._keyspace.renew(lease.number)))
        if address:
            await self.transact([], [PutKey(self._candidates + address, b"", lease.number)])

    async def _granted(self) -> ElectionLease:
        sent_at = asyncio.get_running_loop().time()
        number, ttl_s = await self._keyspace.grant(self._lease_s)
        return ElectionLease(number, ttl_s, sent_at)

    async def leave(self) -> None:
        """Revoke the lease, so that the next leader need not wait for its end. Does nothing without a lease."""
        keeping, self._keeping = self._keeping, None
        lease, self._lease = self._lease, None
        if keeping is not None:
            await keeping.close()
        if lease is None:
            return
        try:
            async with asyncio.timeout(REVOKE_S):
                await self._keyspace.revoke(lease.number)
        except (Unavailable, TimeoutError):
            pass  # the lease expires by itself

    # --- the election ----------------------------------------------------------------------------------------------------

    async def wait_elected(self, address: str) -> int:
        """Wait until there is no leader, and be the first to take over. Returns the term: revisions only grow."""
        lease = self._held()
        while True:
            claim = PutKey(self.leader_key, address.encode(), lease.number)
            outcome = await self.transact([Created(self.leader_key, 0)], [claim], [self.leader_key])
            found = outcome.found.get(self.leader_key)
            if outcome.succeeded or (found is not None and found.lease == lease.number):
                # Or an earlier attempt succeeded, and its answer was lost.
                self.leader = address
                return outcome.revision if found is None else found.created
            self.leader = found.value.decode() if found is not None else ""
            await self._wait_vacant(outcome.revision, lease.ttl_s)

    async def _wait_vacant(self, after: int, ttl_s: float) -> None:
        try:
            # Not longer than a lease: the member that would notify this one may hang.
            await self._keyspace.wait_change(self.leader_key, after, ttl_s)
        except Unavailable:
            await self._pause()

    # --- other repositories ----------------------------------------------------------------------------------------------

    async def wait_repositories(self, known: tuple[str, ...]) -> tuple[str, ...]:
        while not self.repositories or self.repositories == known:
            self._repositories_changed.clear()
            await self._repositories_changed.wait()
        return self.repositories

    def follow_repositories(self) -> None:
        """Follow which repositories exist: the leader publishes all addresses."""
        if self._keeping is not None:
            _ = self._keeping.spawn("candidates", self._follow_repositories())

    async def _follow_repositories(self) -> None:
        """Nothing depends on it, so checking once per lease time is enough."""
        begin, end = self._candidates, self._candidates[:-1] + AFTER_SLASH
        while True:
            try:
                self._learn(await self._keyspace.range(begin, end))
            except Unavailable:
                pass  # the next attempt may succeed
            await asyncio.sleep(self._lease_s)

    def _learn(self, found: Sequence[StoredKey]) -> None:
        repositories = tuple(one.key.removeprefix(self._candidates) for one in found)
        if repositories and repositories != self.repositories:
            self.repositories = repositories
            self._repositories_changed.set()

    # --- asking ------------------------------------------------------------------------------------------------------------

    async def transact(
        self,
        conditions: Sequence[Condition],
        operations: Sequence[KeyOperation],
        otherwise: Sequence[str] = (),
    ) -> TransactionResult:
        return await self.insist(lambda: self._keyspace.transact(conditions, operations, otherwise))

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Retry until there is an answer, through one member after the other, for as long as the lease is valid. Raises Fenced
        then."""
        while True:
            if self._lease is not None:
                _ = self._held()
            try:
                answer = await ask()
            except NoAnswer as error:
                self._log_trouble(str(error))
            else:
                self._log_trouble("")
                return answer
            await self._pause()

    def _held(self) -> ElectionLease:
        if self._lease is None or not self._lease.holds:
            raise Fenced(f"{self._keyspace.place}: the lease has ended")
        return self._lease

    async def _pause(self) -> None:
        await asyncio.sleep(RETRY_S * self._environment.entropy.uniform(0.5, 1.5))

    def _log_trouble(self, trouble: str) -> None:
        """Log a problem once, not at every attempt."""
        if bool(trouble) != bool(self._logged_trouble):
            place = self._keyspace.place
            if trouble:
                _log.warning(logfmt("the metadata store does not answer", store=place, why=trouble))
            else:
                _log.info(logfmt("the metadata store answers again", store=place))
        self._logged_trouble = trouble


# The share of a lease by which two clocks may differ while they measure it. Real clocks differ by a thousandth of that.
MARGIN_SHARE: Final = 0.1
# With this many renewals per lease, one hanging member and one election of etcd do not end it.
RENEWALS_PER_LEASE: Final = 6
# After a renewal without an answer the next try follows almost immediately.
RETRIES_PER_LEASE: Final = 30


class ElectionLease:
    """How long this process may assume that it leads (law 7), by the clock of its loop alone. `sent_at`: when the lease was
    requested.

    The time counts from before a renewal was sent, and at etcd from when it arrived: so the lease ends here first (see
    model.lease). A process that was paused finds its lease ended at the next check, before it has answered anything. A lease that
    has ended here stays ended: others may know that it did.
    """

    def __init__(self, number: int, ttl_s: float, sent_at: float) -> None:
        self.number = number
        self.ttl_s = ttl_s
        self._until = sent_at + held_for_s(ttl_s, MARGIN_SHARE)
        self._lost = asyncio.Event()
        self._why = ""

    @property
    def holds(self) -> bool:
        return not self._lost.is_set() and asyncio.get_running_loop().time() < self._until

    def renewed(self, ttl_s: float, sent_at: float) -> None:
        """Record that the lease was alive when the renewal sent at `sent_at` arrived."""
        if self.holds:
            self._until = max(self._until, sent_at + held_for_s(ttl_s, MARGIN_SHARE))

    def lose(self, why: str) -> None:
        if not self._lost.is_set():
            self._why = why
            self._lost.set()

    async def wait_lost(self) -> str:
        """Wait until the lease has ended. Returns why."""
        while self.holds:
            try:
                async with asyncio.timeout_at(self._until):
                    await self._lost.wait()
            except TimeoutError:
                pass  # it may have been renewed meanwhile: `holds` decides
        self.lose(f"it was not renewed within {self.ttl_s:g} s")
        return self._why

    async def keep(self, renew: Callable[[], Awaitable[float]]) -> None:
        """Renew the lease until it is lost. `renew` returns the time left, 0 if the lease is gone, or raises Unavailable."""
        loop = asyncio.get_running_loop()
        pause_s = self.ttl_s / RENEWALS_PER_LEASE
        while self.holds:
            await asyncio.sleep(pause_s)
            sent_at = loop.time()
            try:
                ttl_s = await renew()
            except Unavailable:
                # Another member may answer; only time decides whether it is too late.
                pause_s = self.ttl_s / RETRIES_PER_LEASE
                continue
            pause_s = self.ttl_s / RENEWALS_PER_LEASE
            if ttl_s <= 0:
                self.lose("it has ended where it was granted")
            else:
                self.renewed(ttl_s, sent_at)
