"""Queue, Claim: items in log order, each with one consumer at a time (R-USE-2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from varlog.aio import Opening
from varlog.client.log import Log
from varlog.model.batch import Buffer
from varlog.model.errors import InvalidRequest, OutcomeUnknown, Rejected, Unavailable, VarlogError
from varlog.model.lsn import GLSN
from varlog.recipes.core.lease_rules import TTL_S, HeartbeatSeen, SentHeartbeats, Watch, renew_us, ttl_us
from varlog.recipes.core.recipe import Recipe
from varlog.recipes.core.replicated import TIMEOUT_S, ReplicatedStateMachine
from varlog.recipes.core.snapshots import Snapshots
from varlog.recipes.errors import ClaimLost
from varlog.recipes.queue.queue_codec import (
    CodedQueueMachine,
    CompleteItem,
    ExpireClaim,
    PutItems,
    RenewClaim,
    ReturnItem,
    TakeItem,
    encode_queue_command,
)
from varlog.recipes.queue.queue_machine import Claimed, Taken
from varlog.runtime.environment import Clock, Entropy, SystemClock, system_environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

_log = get_logger("recipes")

# All consumers see at the same moment that a claim is over: each waits a random share of its time to live longer, up to this, and
# most find that another one has expired it.
SPREAD: Final = 0.1
# How often per time to live heartbeats are checked.
CHECKS_PER_TTL: Final = 4
# How long closing waits for the release of its claims.
CLOSE_S: Final = 1.0


class QueueSize(NamedTuple):
    """How many items exist: `ready` to be taken, and `claimed` by a consumer that is not done yet."""

    ready: int
    claimed: int


class Queue(Recipe[CodedQueueMachine]):
    """The queue of one name in a topic. At least once: an item whose consumer is lost is delivered again, to another."""

    def __init__(
        self, replica: ReplicatedStateMachine[CodedQueueMachine], who: str, entropy: Entropy, clock: Clock
    ) -> None:
        super().__init__(replica)
        self._who = who
        self._clock = clock
        self._entropy = entropy
        self._claims: dict[Claim, None] = {}
        self._closed = False
        self._tasks = Tasks(f"queue/{replica.name}", _log_failure)

    @classmethod
    def open(
        cls,
        log: Log,
        *,
        name: str = "queue",
        who: str = "",
        snapshots: Snapshots | None = None,
        entropy: Entropy | None = None,
        clock: Clock | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Opening[Queue]:
        """Await it, or enter it with `async with`. All that open the same name in the same topic share one queue. `who` names
        the consumer of an item to people. `clock` is the steady clock (a simulator has its own)."""
        chance = entropy or system_environment().entropy

        async def make() -> Queue:
            replica = await ReplicatedStateMachine.open(
                log, CodedQueueMachine(), name=name, snapshots=snapshots, entropy=chance, timeout_s=timeout_s
            )
            return cls(replica, who, chance, clock or SystemClock())

        return Opening(make)

    # --- Putting ----------------------------------------------------------------------------------------------------------

    async def put(self, body: Buffer, *, timeout_s: float | None = None) -> int:
        """To the end; returns the item's number. One that ends in OutcomeUnknown is in the queue once, or will be, or never."""
        return (await self.put_all([body], timeout_s=timeout_s))[0]

    async def put_all(self, bodies: Iterable[Buffer], *, timeout_s: float | None = None) -> list[int]:
        """To the end, all of them or none, one behind the other."""
        command = encode_queue_command(PutItems([_checked(body) for body in bodies]))
        numbers: list[int] = await self.replica.execute(command, timeout_s=timeout_s)
        return numbers

    # --- Taking -----------------------------------------------------------------------------------------------------------

    async def take(self, *, ttl_s: float = TTL_S, timeout_s: float | None = None) -> Claim:
        """Claim the first item that is ready; wait for one if there is none, as long as it takes (or TimeoutError).

        `ttl_s`: if the consumer sends no heartbeat for this long, another one gets the item.
        """
        lives_us = ttl_us(ttl_s)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await self._wait_ready()
                    if (claim := await self._claim(lives_us)) is not None:
                        return claim
        except TimeoutError:
            raise TimeoutError(f"nothing came to queue {self.replica.name!r} within {timeout_s} s") from None

    async def take_now(self, *, ttl_s: float = TTL_S) -> Claim | None:
        """Claim the first item that is ready, or None if there is none."""
        return await self._claim(ttl_us(ttl_s))

    async def _claim(self, lives_us: int) -> Claim | None:
        self._check_open()
        taking = self._tasks.spawn("take", self._take(lives_us))
        try:
            claim: Claim | None = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._check_open()
            # It may be ours already, or soon: without this it would be withheld from the others for its time to live.
            _ = self._tasks.spawn("return", self._return(taking))
            raise
        self._check_open()
        if claim is not None:
            self._claims[claim] = None
            _ = self._tasks.spawn(f"keep/{claim.token}", self._keep(claim))
        return claim

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"queue {self.replica.name!r} was closed: open it again")

    async def _keep(self, claim: Claim) -> None:
        await claim.keep()
        del self._claims[claim]

    async def _take(self, lives_us: int) -> Claim | None:
        beats = SentHeartbeats(lives_us, self._clock.steady_us())
        command = encode_queue_command(TakeItem(self._who, lives_us))
        taken: Taken | None = await self.replica.execute(command)
        return None if taken is None else Claim(self.replica, taken, beats, self._clock)

    async def _return(self, taking: asyncio.Task[Any]) -> None:
        with contextlib.suppress(VarlogError):
            if (claim := await taking) is not None:
                await claim.release()

    async def _wait_ready(self) -> None:
        """Until something is ready. Meanwhile, expire claims without heartbeats."""
        spread = SPREAD * self._entropy.random()
        watch: Watch[GLSN] = Watch()
        while not self.replica.machine.ready:
            claims = self.replica.machine.claims()
            now_us = self._clock.steady_us()
            watch.observe(
                ((claim.token, HeartbeatSeen(claim.heartbeat, claim.ttl_us)) for claim in claims), now_us
            )
            over = [claim for claim in claims if now_us >= watch.due_us(claim.token) + spread * claim.ttl_us]
            if over:
                await self._expire(over)
                # Raises if the replica has stopped: then every command is refused immediately, and this would loop without a pause.
                await self.replica.wait(lambda _: True)
                continue
            check_s = min((claim.ttl_us / CHECKS_PER_TTL / 1_000_000 for claim in claims), default=None)
            with contextlib.suppress(TimeoutError):
                await self.replica.wait(_changed(len(claims)), timeout_s=check_s)

    async def _expire(self, claims: Iterable[Claimed]) -> None:
        for claim in claims:
            with contextlib.suppress(Rejected, OutcomeUnknown):  # tried again in the next round
                await self.replica.execute(encode_queue_command(ExpireClaim(claim.token, claim.heartbeat)))

    # --- About it -----------------------------------------------------------------------------------------------------------

    async def size(self, *, stale: bool = False, timeout_s: float | None = None) -> QueueSize:
        """How many items there are now. `stale`: as far as it is applied here, without asking."""
        if not stale:
            await self.replica.catch_up(timeout_s=timeout_s)
        return QueueSize(self.replica.machine.ready, self.replica.machine.claimed)

    async def close(self) -> None:
        """End it; the log stays open. Claims that are not done are lost, and released if that is possible."""
        self._closed = True
        held = [claim for claim in self._claims if claim.held]
        for claim in self._claims:
            claim.lose()
        await self._tasks.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(claim.release() for claim in held), return_exceptions=True)
        await self.replica.close()


def _changed(claims: int) -> Callable[[CodedQueueMachine], bool | None]:
    """Something is ready, or a claim was ended or made."""
    return lambda machine: True if machine.ready or machine.claimed != claims else None


def _log_failure(name: str, error: BaseException) -> None:
    if not isinstance(error, VarlogError):  # callers, or the claim, get those
        _log.error(logfmt("a task of a queue failed", task=name, error=repr(error)))


def _checked(body: Buffer) -> bytes:
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidRequest(f"an item is bytes, not {type(body).__name__}: encode it first")
    return bytes(body)


class Claim:
    """One claimed item, kept by heartbeats in the log until it is done, released, or lost. `async with` completes it at the end, or
    releases it if the work raised.

    At least once: if its consumer sends no heartbeat for the time to live, another one gets the item. The `token` of a later claim
    is larger: the resource that the work writes to can refuse a smaller one than it has seen.
    """

    def __init__(
        self,
        replica: ReplicatedStateMachine[CodedQueueMachine],
        taken: Taken,
        beats: SentHeartbeats,
        clock: Clock,
    ) -> None:
        self.number = taken.item.number
        self.body = taken.item.body
        self.deliveries = taken.item.deliveries  # 1: it was not claimed before
        self.token: GLSN = taken.token
        self.lost = asyncio.Event()  # set as soon as another claim may have it
        self._replica = replica
        self._beats = beats
        self._clock = clock
        self._until_us = beats.until_us(0)
        self._ending = False
        self._ended = False
        self._over = asyncio.Event()  # lost or ended

    @property
    def held(self) -> bool:
        """No other claim has it now, by our own clock. False as soon as `done` or `release` is called."""
        return not self._over.is_set() and not self._ending and self._left_s > 0

    @property
    def _left_s(self) -> float:
        return max(0, self._until_us - self._clock.steady_us()) / 1_000_000

    async def done(self, *, timeout_s: float | None = None) -> None:
        """The item is done, for good. ClaimLost: it is not, and another consumer has it or will."""
        await self._end(CompleteItem(self.token), timeout_s)

    async def release(self, *, timeout_s: float | None = None) -> None:
        """Return the item to the queue, in its old place: another consumer gets it."""
        await self._end(ReturnItem(self.token), timeout_s)

    async def _end(self, command: CompleteItem | ReturnItem, timeout_s: float | None) -> None:
        if self._ended:
            raise ClaimLost(self.number, self.token, "it was done or released before")
        self._ending = True
        try:
            ended = await self._replica.execute(encode_queue_command(command), timeout_s=timeout_s)
        finally:
            self._ending = False
        if not ended:
            self.lose()
            raise ClaimLost(self.number, self.token, "it sent no heartbeat for its time to live")
        self._ended = True
        self._over.set()

    async def keep(self) -> None:
        """Send heartbeats until it has ended or is lost. Its queue runs this."""
        pause_s = renew_us(self._beats.ttl_us) / 1_000_000
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(pause_s, self._left_s)):
                        await self._over.wait()
                if self._over.is_set() or not self._left_s:
                    return
                await self._renew()
        finally:
            self.lose()

    async def _renew(self) -> None:
        beat = self._beats.send(self._clock.steady_us())
        command = encode_queue_command(RenewClaim(self.token, beat))
        try:
            kept: Any = await self._replica.execute(command, timeout_s=self._left_s)
        except VarlogError:
            return  # the next one may get through, as long as there is time
        if kept:
            self._until_us = max(self._until_us, self._beats.until_us(beat))
        elif not self._ending:
            self.lose()

    def lose(self) -> None:
        """It is not held any more, unless it has ended."""
        if not self._ended:
            self.lost.set()
            self._over.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if kind is None:
            await self.done()
        elif not self.lost.is_set():
            with contextlib.suppress(VarlogError):  # the caller must get what the work raised
                await self.release()
