"""Commands: appends the commands of one replica, and resolves their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from varlog.client.log import Log
from varlog.model.errors import InvalidRequest, NotAccepted, OutcomeUnknown, Rejected, VarlogError
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.core.command_rules import ApplyDecision, Issuer, Sessions
from varlog.recipes.core.envelope import Envelope, encode_envelope
from varlog.recipes.errors import ResultLost
from varlog.runtime.environment import Entropy
from varlog.runtime.tasks import Tasks

# One append is abandoned after this long and repeated, perhaps by another log stream; each time after twice as long.
ATTEMPT_S: Final = 2.0
# Between two appends of the same command.
PAUSE_S: Final = 0.02
CLIENT_BYTES: Final = 16


class _Sent:
    """One command under one sequence of one client."""

    __slots__ = ("at", "command", "deadline", "issuer", "maybe", "result", "sequence", "settled", "timeout_s")

    def __init__(
        self, command: bytes, result: asyncio.Future[Any], deadline: float, timeout_s: float
    ) -> None:
        self.command = command
        self.result = result
        self.deadline = deadline
        self.timeout_s = timeout_s
        self.issuer: Issuer[_Sent]
        self.sequence = 0
        self.maybe = False  # it may be in the log, or may still get there
        self.at: GLSN = NO_GLSN  # where it certainly is
        self.settled = False  # applied, or never to come

    def succeed(self, result: Any) -> None:
        if not self.result.done():
            self.result.set_result(result)

    def fail(self, error: VarlogError) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class Commands:
    """Those of one replica whose result is not known yet. Each is sent until it is in the log, or its deadline has passed.
    `applied` returns how far the replica is."""

    def __init__(
        self, log: Log, machine: str, entropy: Entropy, tasks: Tasks, applied: Callable[[], GLSN]
    ) -> None:
        self._log = log
        self._machine = machine
        self._entropy = entropy
        self._tasks = tasks
        self._applied = applied
        self._issuers: dict[bytes, Issuer[_Sent]] = {}
        self._issuer: Issuer[_Sent]

    def begin(self) -> None:
        """Become a new client: what it sends comes after everything that is applied here now."""
        for client, issuer in list(self._issuers.items()):
            if all(sent.result.done() for _, sent in issuer.open()):
                del self._issuers[client]
        self._issuer = Issuer(
            self._entropy.getrandbits(8 * CLIENT_BYTES).to_bytes(CLIENT_BYTES), self._applied()
        )
        self._issuers[self._issuer.client] = self._issuer

    async def execute(self, command: bytes, timeout_s: float) -> Any:
        """What apply() returned for it."""
        if not isinstance(command, bytes | bytearray | memoryview):
            raise TypeError(f"a command is bytes, not {type(command).__name__}")
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()
        sent = _Sent(bytes(command), result, loop.time() + timeout_s, timeout_s)
        sending = self._issue(sent)
        try:
            return await result
        except asyncio.CancelledError:
            sending.cancel()  # what is not sent yet need not be sent any more; whether it was is not known
            if result.done() and not result.cancelled():
                result.exception()  # it came in the same moment: asyncio must not warn that it was not retrieved
            raise
        finally:
            sent.command = b""  # it may stay open for long

    def _issue(self, sent: _Sent) -> asyncio.Task[Any]:
        if self._issuer.full:
            self.begin()
        sent.issuer = self._issuer
        sent.sequence = sent.issuer.issue(sent)
        return self._tasks.spawn("send", self._send(sent))

    # --- Outcomes, as the log shows them ----------------------------------------------------------------------------------

    def applied(self, client: bytes, sequence: int, result: Any) -> None:
        """It was applied, for the first time."""
        if (sent := self._settled(client, sequence)) is not None:
            sent.succeed(result)

    def malformed(self, client: bytes, sequence: int, why: str) -> None:
        """It is in the log, and is no command of the machine: no replica applies it."""
        if (sent := self._settled(client, sequence)) is not None:
            sent.fail(InvalidRequest(why))

    def forgotten(self, client: bytes, sequence: int) -> None:
        """It was refused, as every other copy of it will be: this client was quiet for so long that no replica knows it any more.
        So it is sent again, by a new client."""
        if (sent := self._settled(client, sequence)) is None:
            return
        if client == self._issuer.client:
            self.begin()
        if not sent.result.done():
            _ = self._issue(_Sent(sent.command, sent.result, sent.deadline, sent.timeout_s))

    def jumped(self, sessions: Sessions) -> None:
        """The replica continues from a snapshot, which may have commands of ours that were never seen here."""
        for issuer in self._issuers.values():
            for sequence, sent in issuer.open():
                decision = sessions.decide(issuer.client, issuer.born, sequence)
                if decision is ApplyDecision.APPLY:
                    continue
                self._settled(issuer.client, sequence)
                where = f"the replica continued from a snapshot of position {self._applied()}"
                sent.fail(ResultLost(where) if decision is ApplyDecision.REPEATED else OutcomeUnknown(where))
        self.begin()

    def _settled(self, client: bytes, sequence: int) -> _Sent | None:
        issuer = self._issuers.get(client)
        sent = None if issuer is None else issuer.settle(sequence)
        if sent is not None:
            sent.settled = True
        return sent

    # --- Sending ------------------------------------------------------------------------------------------------------------

    async def _send(self, sent: _Sent) -> None:
        """Until it is in the log, or settled otherwise, or its time is over."""
        issuer, loop = sent.issuer, asyncio.get_running_loop()
        envelope = Envelope(
            self._machine, issuer.client, issuer.born, sent.sequence, issuer.floor, sent.command
        )
        data = encode_envelope(envelope)
        attempt_s, last = ATTEMPT_S, VarlogError("there was no time")
        while not sent.result.done() and (left_s := sent.deadline - loop.time()) > 0:
            if sent.settled:
                return
            before, sent.maybe = sent.maybe, True
            try:
                position = await self._log.append(data, timeout_s=min(left_s, attempt_s))
            except Rejected as error:
                sent.maybe, last = before, error
                if isinstance(error, InvalidRequest) and not before:
                    self._never(sent, error)
                    return
            except VarlogError as error:
                last = error
            else:
                self._in_log(sent, position.glsn, loop)
                return
            if self._log.closed:
                break
            attempt_s *= 2
            await asyncio.sleep(min(PAUSE_S, max(0.0, sent.deadline - loop.time())))
        if sent.settled or sent.result.done():
            return
        why = getattr(last, "why", None) or str(last)
        if sent.maybe:
            sent.fail(OutcomeUnknown(why))
        else:
            self._never(sent, NotAccepted(why))

    def _never(self, sent: _Sent, error: VarlogError) -> None:
        self._settled(sent.issuer.client, sent.sequence)
        sent.fail(error)

    def _in_log(self, sent: _Sent, at: GLSN, loop: asyncio.AbstractEventLoop) -> None:
        """It only remains for the replica to get there."""
        sent.at = at
        if not sent.result.done():
            timer = loop.call_at(sent.deadline, self._late, sent)
            sent.result.add_done_callback(lambda _: timer.cancel())

    def _late(self, sent: _Sent) -> None:
        sent.fail(
            OutcomeUnknown(
                f"it is in the log at position {sent.at}, and this replica has applied everything up to {self._applied()} "
                f"within {sent.timeout_s:g} s"
            )
        )

    # --- The end --------------------------------------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """Nothing more is sent, and nothing more is applied here."""
        for sent in self._open():
            sent.fail(OutcomeUnknown(why) if sent.maybe else NotAccepted(why))

    def fail(self, error: Callable[[], VarlogError]) -> None:
        """The same, and all get one error."""
        for sent in self._open():
            sent.fail(error())

    def _open(self) -> list[_Sent]:
        return [sent for issuer in self._issuers.values() for _, sent in issuer.open()]
