"""ReplicatedStateMachine: a deterministic machine on a topic (R-USE-2).

Every replica applies the commands of the topic in order, so all replicas are the same. A command is appended in an envelope, and
applied by every replica where it finds it in the log, also by the one that sent it: `execute` returns what `apply` returned there.
Reads are local; after `catch_up` they are linearizable.

Exactly once: an append whose outcome is unknown is repeated, with the same client and sequence, and sessions let only the first one
in the log be applied (command_rules.py). So a command that was executed was applied once; one that ends
in OutcomeUnknown was or will be applied once or never; one that ends in Rejected never will be.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection
from contextlib import aclosing
from itertools import count
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from varlog.aio import Opening
from varlog.client.connector import TailingReader
from varlog.client.log import Log
from varlog.model.entry import Entry
from varlog.model.errors import (
    InvalidRequest,
    JunkPosition,
    NotAccepted,
    PreconditionFailed,
    ReaderBehind,
    Trimmed,
    Unavailable,
    VarlogError,
)
from varlog.model.ids import check_name
from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import ApplyDecision, MalformedCommand, Sessions, UnknownCommand
from varlog.recipes.core.commands import Commands
from varlog.recipes.core.envelope import SKIP_HEAD, Envelope, NewerFormat, Opener, Skip
from varlog.recipes.core.snapshots import Snapshots, UnreadableSnapshot, decode_snapshot, encode_snapshot
from varlog.recipes.errors import (
    BehindTrim,
    MachineFailed,
    NewerCommand,
    PositionSkipped,
    ReplicaStopped,
)
from varlog.runtime.environment import Entropy, system_environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.single_flight import NextFlight
from varlog.runtime.tasks import Tasks

_log = get_logger("recipes")

TIMEOUT_S = 10.0
# How many entries are applied before other tasks of the loop run: a lease may wait there to be renewed.
PIECE_ENTRIES = 512
# One request for the tail; a caller that has more time asks again.
ASK_S = 2.0
# Between two tries to continue.
PAUSE_S = 0.1
# Machines that keep no snapshots need the whole topic. This reader represents all of them: a trim that respects readers is refused.
WITHOUT_SNAPSHOTS = "machines-without-snapshots"


class StateMachine(Protocol):
    """What is replicated. Deterministic: no clock, no randomness, nothing but its input, or replicas will differ."""

    def apply(self, at: GLSN, command: bytes) -> Any:
        """Apply one command. Called once for each, in order. A refusal is a return value. MalformedCommand, raised before anything
        is changed, skips the entry; any other exception stops the replica for good."""
        ...

    def snapshot(self) -> bytes:
        """All of the state."""
        ...

    def restore(self, snapshot: bytes) -> None:
        """Replace the state by that of a snapshot."""
        ...


class _SkipMet(NamedTuple):
    """The entry at `at` says that `position` is skipped."""

    at: GLSN
    position: GLSN


M = TypeVar("M", bound=StateMachine)
T = TypeVar("T")


class ReplicatedStateMachine(Generic[M]):
    """One replica of the machine `name` in a topic. Used from one event loop; the log is the caller's, and not closed with it.

    `machine` may be read at any time, and is changed by commands only. Several machines may share a topic.
    """

    def __init__(
        self,
        log: Log,
        machine: M,
        name: str,
        snapshots: Snapshots | None,
        entropy: Entropy,
        timeout_s: float,
        skips: Collection[GLSN] = (),
    ) -> None:
        self.log = log
        self.machine = machine
        self.name = name
        self.applied = GLSN(log.topic.first - 1)
        self.skipped_entries = 0  # entries that are no commands of this machine
        self.malformed = 0  # of these, the ones that begin like a command of this machine and are none
        self._skips = set(skips)  # positions that an operator wants skipped, as far as is known
        self._skipped: set[GLSN] = set()  # those of them that were reached
        self._warned = False
        self._snapshots = snapshots
        self._timeout_s = timeout_s
        self._sessions = Sessions()
        self._opener = Opener(name)
        self._watchers = Watchers()
        self._tasks = Tasks(f"machine/{name}", self._task_failed)
        self._commands = Commands(log, name, entropy, self._tasks, lambda: self.applied)
        self._tail = NextFlight(lambda: log.tail(timeout_s=min(ASK_S, timeout_s)), self._tasks, "tail")
        self._following: TailingReader | None = None
        self._failure: VarlogError | None = None
        self._doubt: NewerCommand | _SkipMet | None = (
            None  # what stops it, unless an operator wants it skipped
        )
        self._expected = self.applied  # the newest tail that a caller waits for
        self._closed = False

    @classmethod
    def open(
        cls,
        log: Log,
        machine: M,
        *,
        name: str,
        snapshots: Snapshots | None = None,
        entropy: Entropy | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Opening[Self]:
        """A replica that has applied everything that was in the log when it was opened: `async with ... as replica`, or await it.

        It begins with the newest of `snapshots`, if there is one. `timeout_s` is the deadline of every call that names no other.
        """

        async def make() -> Self:
            try:
                check_name("a machine's name", name)
            except ValueError as error:
                raise InvalidRequest(str(error)) from None
            initial, skips = machine.snapshot(), set[GLSN]()
            while True:
                replica = cls(
                    log, machine, name, snapshots, entropy or system_environment().entropy, timeout_s, skips
                )
                try:
                    await replica._start()
                    return replica
                except PositionSkipped as skipped:
                    await replica.close()
                    if skipped.at in skips:
                        raise
                    # No caller has seen this replica yet: it is built again, without that position.
                    skips.add(skipped.at)
                    machine.restore(initial)
                except BaseException:
                    await replica.close()
                    raise

        return Opening(make)

    @property
    def closed(self) -> bool:
        return self._closed

    # --- Commands and reads -----------------------------------------------------------------------------------------------

    async def execute(self, command: bytes, *, timeout_s: float | None = None) -> Any:
        """Append a command, wait until it is applied here, and return what apply() returned.

        Rejected: it certainly is not applied, and never will be. OutcomeUnknown: the deadline passed, and it may have been applied
        or may still be, once. The same is true if the call is cancelled.
        """
        if self._closed:
            raise NotAccepted("the replica was closed")
        if self._failure is not None and not isinstance(self._failure, ReplicaStopped):
            raise NotAccepted(str(self._failure))
        self._raise_failure()
        return await self._commands.execute(command, self._limit(timeout_s))

    async def catch_up(self, *, timeout_s: float | None = None) -> GLSN:
        """Wait until everything is applied here that was acknowledged to any caller before this call. What is read from the machine
        right after it is linearizable. Unavailable if that takes longer than the deadline."""
        self._check_open()
        limit_s = self._limit(timeout_s)
        tail: GLSN | None = None
        try:
            async with asyncio.timeout(limit_s):
                while tail is None:
                    tail = await self._ask_tail()
                if tail > self.applied:
                    self._expect(tail)
                    await self._watchers.reach(tail)
        except TimeoutError:
            behind = "the log's tail is not known" if tail is None else f"the log is at {tail}"
            raise Unavailable(
                f"machine {self.name!r} has not caught up within {limit_s:g} s: it is at {self.applied}, {behind}"
            ) from None
        return self.applied

    async def wait(self, predicate: Callable[[M], T | None], *, timeout_s: float | None = None) -> T:
        """What `predicate` returns, as soon as that is not None: it is evaluated now, and after each batch that is applied.
        TimeoutError after `timeout_s`; without one it waits as long as it takes."""
        self._check_open()
        if (found := predicate(self.machine)) is not None:
            return found
        try:
            async with asyncio.timeout(timeout_s):
                return await self._watchers.see(lambda: predicate(self.machine))
        except TimeoutError:
            raise TimeoutError(f"machine {self.name!r} did not show it within {timeout_s} s") from None

    def _expect(self, tail: GLSN) -> None:
        self._expected = max(self._expected, tail)
        if self._following is not None:
            self._following.expect(tail)

    async def _ask_tail(self) -> GLSN | None:
        """None: it could not be answered just now."""
        try:
            return await self._tail.answer()
        except Unavailable:
            self._check_open()
            if self.log.closed:
                raise
        await asyncio.sleep(PAUSE_S)
        return None

    # --- Snapshots --------------------------------------------------------------------------------------------------------

    async def checkpoint(self, *, trim: bool = False) -> GLSN:
        """Save a snapshot, and record with a named reader of the machine's name that nothing up to its position is needed any more.
        Returns that position. `trim`: also trim the topic, up to where every named reader is."""
        self._check_open()
        if self._snapshots is None:
            raise PreconditionFailed(
                f"machine {self.name!r} was opened without a store of snapshots: open it with `snapshots=`"
            )
        position = self.applied
        content = encode_snapshot(self.name, position, self._sessions, self.machine.snapshot(), self._skipped)
        await self._snapshots.save(self.name, position, content)
        # Only now: what a reader is done with may be trimmed immediately.
        await self.log.set_reader(self.name, position)
        if trim:
            await self._trim()
        return position

    async def _trim(self) -> None:
        until = min((reader.position for reader in await self.log.readers()), default=GLSN(0))
        if until <= await self.log.trimmed():
            return
        try:
            await self.log.trim(until, respect_readers=True)
        except ReaderBehind:
            pass  # a new reader needs what is there: the next checkpoint trims up to it

    # --- Following the log --------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        limit_s = self._timeout_s
        try:
            async with asyncio.timeout(limit_s):
                if not await self._restore():
                    self._commands.begin()
                await self._register_reader()
                _ = self._tasks.spawn("follow", self._follow())
                await self.catch_up(timeout_s=limit_s)
        except TimeoutError:
            raise Unavailable(
                f"machine {self.name!r} could not be opened within {limit_s:g} s, and has come to position {self.applied}: give it "
                f"more time with `timeout_s`, or less to do with a snapshot"
            ) from None

    async def _register_reader(self) -> None:
        """Others must not trim what this machine needs to be opened again."""
        if self._snapshots is not None:
            await self.log.set_reader(self.name, self.applied)
        else:
            await self.log.set_reader(WITHOUT_SNAPSHOTS, GLSN(self.log.topic.first - 1))

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_on()
            except Unavailable:
                if self.log.closed:
                    raise
                await asyncio.sleep(PAUSE_S)

    async def _follow_on(self) -> None:
        following = self._following = self.log.connector.follow(self.applied + 1)
        following.expect(self._expected)
        try:
            async with aclosing(following.lists()) as lists:
                async for entries in lists:
                    await self._apply_entries(entries, following.position)
        except Trimmed as trimmed:
            await self._jump(trimmed)

    async def _apply_entries(self, entries: list[Entry], position: GLSN) -> None:
        begin = 0
        while begin < len(entries):
            piece = entries[begin : begin + PIECE_ENTRIES]
            try:
                begin += self._apply_all(piece)
            except MachineFailed as failed:
                if (by := await self._find_skip(failed.at)) is None:
                    raise
                self._failure = PositionSkipped(self.name, failed.at, by)
                raise self._failure from failed
            if (doubt := self._doubt) is not None:
                self._doubt = None
                self.applied = GLSN(doubt.at - 1)  # if this is interrupted, it is reached again
                await self._decide(doubt)
            if begin < len(entries):
                self._moved(entries[begin - 1].glsn)
                await asyncio.sleep(0)
        self._moved(position)

    def _apply_all(self, entries: list[Entry]) -> int:
        """How many of them were processed. If not all, `_doubt` says what has to be decided about the last of them."""
        for number, entry in enumerate(entries, 1):
            if self._skips and entry.glsn in self._skips:
                self._skip(entry.glsn)
                continue
            try:
                found = self._opener.open(entry.data)
                if isinstance(found, Envelope) and found.possible_at(entry.glsn):
                    self._apply(entry.glsn, found)
                elif isinstance(found, Skip) and self.log.topic.first <= found.position < entry.glsn:
                    self._doubt = _SkipMet(entry.glsn, GLSN(found.position))
                    return number
                else:
                    self.skipped_entries += 1
                    if found is not None or self._opener.damaged(entry.data):
                        self._warn(entry.glsn, "it begins like a command of this machine and is none")
            except NewerFormat as newer:
                self._doubt = NewerCommand(self.name, entry.glsn, newer.version)
                return number
            except UnknownCommand as unknown:
                self._doubt = NewerCommand(self.name, entry.glsn, unknown.version)
                return number
        return len(entries)

    def _apply(self, at: GLSN, envelope: Envelope) -> None:
        client, sequence = envelope.client, envelope.sequence
        if self._sessions.decide(client, envelope.born, sequence) is ApplyDecision.APPLY:
            try:
                result = self.machine.apply(at, envelope.command)
            except MalformedCommand as error:
                self.skipped_entries += 1
                self._warn(at, str(error))
                self._commands.malformed(client, sequence, str(error))
                return
            except UnknownCommand:
                raise
            except Exception as error:
                self.applied = GLSN(at - 1)
                why = f"{type(error).__name__}: {error}"
                raise self._stopped(MachineFailed(self.name, at, why)) from error
            self._sessions.admit(at, client, envelope.born, sequence, envelope.floor)
            self._commands.applied(client, sequence, result)
        elif (
            self._sessions.admit(at, client, envelope.born, sequence, envelope.floor)
            is ApplyDecision.FORGOTTEN
        ):
            self._commands.forgotten(client, sequence)

    def _warn(self, at: GLSN, why: str) -> None:
        """Once per replica: other writers can append as many of them as they like."""
        self.malformed += 1
        if not self._warned:
            self._warned = True
            _log.warning(logfmt("an entry was skipped", machine=self.name, position=at, why=why))

    # --- Positions that an operator wants skipped ----------------------------------------------------------------------------

    async def _decide(self, doubt: NewerCommand | _SkipMet) -> None:
        """It is skipped, by this replica as by all others, or the replica stops."""
        if isinstance(doubt, NewerCommand):
            if await self._find_skip(doubt.at) is None:
                raise self._stopped(doubt)
            self._skips.add(doubt.at)
            self._skip(doubt.at)
        elif doubt.position in self._skipped or not await self._was_command(doubt.position):
            self.skipped_entries += 1
        else:
            raise self._stopped(PositionSkipped(self.name, doubt.position, doubt.at))

    def _skip(self, at: GLSN) -> None:
        self.skipped_entries += 1
        self._skipped.add(at)
        _log.warning(
            logfmt("a position was skipped, as an operator wants it", machine=self.name, position=at)
        )

    async def _find_skip(self, at: GLSN) -> GLSN | None:
        """Where an entry after `at` says that it is skipped. It is in the log, so every replica finds the same."""
        tail = await self.log.tail()
        if at >= tail:
            return None
        async with aclosing(self.log.subscribe_lists(at + 1, tail + 1)) as lists:
            async for entries in lists:
                for entry in entries:
                    if entry.data.startswith(SKIP_HEAD):
                        found = self._opener.open(entry.data)
                        if isinstance(found, Skip) and found.position == at:
                            return entry.glsn
        return None

    async def _was_command(self, at: GLSN) -> bool:
        """Whether this replica, or the snapshot that it is from, may have applied the entry at an earlier position."""
        try:
            found = self._opener.open((await self.log.read(at)).data)
        except NewerFormat:
            return True
        except (Trimmed, JunkPosition):
            return False
        return isinstance(found, Envelope) and found.possible_at(at)

    def _moved(self, position: GLSN) -> None:
        self.applied = position
        self._watchers.moved(position)

    # --- From a snapshot ----------------------------------------------------------------------------------------------------

    async def _jump(self, trimmed: Trimmed) -> None:
        """The next entry was trimmed: continue from a newer snapshot, or not at all."""
        if not await self._restore() or self.applied + 1 < trimmed.oldest:
            raise BehindTrim(self.name, self.applied, GLSN(trimmed.oldest))
        _log.info(logfmt("continues from a snapshot", machine=self.name, position=self.applied))

    async def _restore(self) -> bool:
        """Continue from the newest snapshot. False: there is none that is newer."""
        found = None if self._snapshots is None else await self._snapshots.newest(self.name)
        if found is None or found[0] <= self.applied:
            return False
        try:
            snapshot = decode_snapshot(found[1], self.name)
        except UnreadableSnapshot as error:
            _log.error(logfmt("a snapshot is ignored", machine=self.name, why=error))
            return False
        if any(at <= snapshot.position and at not in snapshot.skipped for at in self._skips):
            _log.warning(logfmt("a snapshot that has a skipped position is ignored", machine=self.name))
            return False
        try:
            self.machine.restore(snapshot.state)
        except Exception as error:
            raise MachineFailed(self.name, snapshot.position, f"{type(error).__name__}: {error}") from error
        self._sessions.restore(snapshot.horizon, snapshot.sessions)
        self._skipped.update(snapshot.skipped)
        self.applied = snapshot.position
        self._commands.jumped(self._sessions)
        self._moved(snapshot.position)
        return True

    # --- The end ------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End it. Commands that may be in the log end in OutcomeUnknown, others in NotAccepted, waiters in Unavailable."""
        if not self._closed:
            self._closed = True
            self._commands.end("the replica was closed")
            self._watchers.end(lambda: Unavailable(f"the replica of machine {self.name!r} was closed"))
        await self._tasks.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._fail(error if isinstance(error, VarlogError) else Unavailable(f"{name} ended: {error!r}"))

    def _stopped(self, error: ReplicaStopped) -> ReplicaStopped:
        """Before any other task runs: the machine's state may be wrong now, and must not be read or saved."""
        self._failure = self._failure or error
        return error

    def _fail(self, failure: VarlogError) -> None:
        """Nothing more is applied, and all callers get the error."""
        self._failure = self._failure or failure
        if isinstance(self._failure, ReplicaStopped):
            self._commands.fail(self._copied_failure)
        else:
            self._commands.end(str(self._failure))
        self._watchers.end(self._copied_failure)

    def _copied_failure(self) -> VarlogError:
        failure = self._failure or Unavailable("nothing failed")
        copied = type(failure)(*failure.args)  # one each: a traceback belongs to one caller
        copied.__cause__ = failure.__cause__
        return copied

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._copied_failure()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the replica of machine {self.name!r} was closed: open it again")
        self._raise_failure()

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


# --- watchers: callers that wait for a position of a replica, or for a condition ------------------------------------------------


class Watchers:
    """Checked after each batch that was applied: only those whose position or condition is reached are woken."""

    def __init__(self) -> None:
        self._positions: list[tuple[GLSN, int, asyncio.Future[None]]] = []  # a heap
        self._predicates: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        self._numbers = count()
        self._over: Callable[[], Exception] | None = None

    def reach(self, position: GLSN) -> asyncio.Future[None]:
        """Done when everything up to `position` is applied."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._over is not None:
            reached.set_exception(self._over())
        else:
            heapq.heappush(self._positions, (position, next(self._numbers), reached))
        return reached

    def see(self, predicate: Callable[[], T | None]) -> asyncio.Future[T]:
        """Done when `predicate` returns something, with that."""
        seen: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._over is not None:
            seen.set_exception(self._over())
        else:
            self._predicates[seen] = predicate
            seen.add_done_callback(lambda _: self._predicates.pop(seen, None))
        return seen

    def moved(self, applied: GLSN) -> None:
        """Everything up to `applied` is applied."""
        while self._positions and self._positions[0][0] <= applied:
            _, _, reached = heapq.heappop(self._positions)
            if not reached.done():
                reached.set_result(None)
        for seen, predicate in list(self._predicates.items()):
            if seen.done():
                continue
            try:
                found = predicate()
            except Exception as error:  # noqa: BLE001 - it is the waiter's own, which gets it
                seen.set_exception(error)
                continue
            if found is not None:
                seen.set_result(found)

    def end(self, error: Callable[[], Exception]) -> None:
        """Nothing more is applied: all waiters get the error, also those that come later."""
        self._over = error
        waiting: list[asyncio.Future[Any]] = [reached for _, _, reached in self._positions]
        waiting += self._predicates
        self._positions.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error())
