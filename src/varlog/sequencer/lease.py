"""SequencerLease: a sequencer answers only while it has a lease (R-SEQ-13).

It asks the metadata repository for it again in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from varlog.model.epoch import Epoch
from varlog.model.errors import NotInCluster, PreconditionFailed, VarlogError
from varlog.model.ids import TopicID
from varlog.model.lease import HeldLease
from varlog.model.limits import LEASE_S
from varlog.model.projection import SequencerID
from varlog.rpc.leader import LeaderClient
from varlog.rpc.messages import LeaseReply, RenewSequencer
from varlog.runtime.environment import Clock, instant_of
from varlog.runtime.logging import get_logger, logfmt

RENEW_S: Final = LEASE_S / 4
# A repository that answers later than this has let the lease expire: it is dialled and asked again, each time with a
# longer timeout up to a bound, because over a slow network finding the leader takes longer than asking it.
ANSWER_S: Final = LEASE_S / 2
ANSWER_S_MAX: Final = 4 * LEASE_S

_log = get_logger("sequencer")


class SequencerLease:
    """`on_epochs` is called with the epochs that come with a lease, before the lease counts."""

    def __init__(
        self,
        me: SequencerID,
        leader: LeaderClient,
        clock: Clock,
        *,
        on_epochs: Callable[[Iterable[tuple[TopicID, Epoch]]], None],
        drop: Callable[[str], None],
    ) -> None:
        self._me = me
        self._leader = leader
        self._clock = clock
        self._on_epochs = on_epochs
        self._drop = drop
        self._held = HeldLease()
        self._answer_s = ANSWER_S
        self._granted = asyncio.Event()
        self._trouble = ""

    @property
    def holds(self) -> bool:
        """By our own clocks, checked for every request: a process that was paused must not answer in an old epoch when
        it wakes up."""
        return self._held.holds(instant_of(self._clock))

    async def wait_granted(self) -> None:
        """Wait until it was granted once: then the repository knows this sequencer."""
        await self._granted.wait()

    async def keep(self) -> None:
        """Renew the lease, forever."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self._renew()
            await asyncio.sleep(max(begun + RENEW_S - loop.time(), RENEW_S / 4))

    async def _renew(self) -> None:
        asked, address, answer_s = instant_of(self._clock), self._leader.address, self._answer_s
        self._answer_s = min(2 * answer_s, ANSWER_S_MAX)
        try:
            answer = await self._leader.call(
                RenewSequencer(self._me, self._held.ask(asked)), timeout_s=answer_s
            )
            if not isinstance(answer, LeaseReply):
                raise PreconditionFailed(f"{address} does not answer like a metadata repository")
        except NotInCluster:
            raise  # it will never be: the operator must know
        except VarlogError as error:
            self._log_trouble(str(error))
            if self._clock.monotonic_us() - asked.monotonic_us >= answer_s * 1e6 / 2:
                self._drop(address)  # the repository or the network hangs
            return
        self._answer_s = ANSWER_S
        self._on_epochs(answer.topics)
        # Counted from when we asked: the repository granted it later, and so relies on it for longer than we do.
        if not answer.lease_s:
            self._held.end()
        else:
            self._held.granted(answer.stamp, answer.lease_s)
        self._log_trouble("" if answer.lease_s else "another sequencer takes over")
        if answer.lease_s:
            self._granted.set()

    def _log_trouble(self, trouble: str) -> None:
        """Log it once, not at every attempt."""
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning(logfmt("no lease", why=trouble)) if trouble else _log.info("the lease holds again")
