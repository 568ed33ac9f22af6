"""NodeLease: whether the node may answer for its log units now (R-SEQ-13).

It requests the lease and applies the repository's orders. The lease counts from when the node requested it, by the node's own
clock, and is considered to end a little early: so it ends here before it ends at the repository, however fast or slow either
clock runs. An order takes effect at the same moment as the lease it came with, and a unit that the repository did not know when
it granted the lease has none: a unit never answers from an epoch that the repository has left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from varlog.model.errors import NoLease, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lease import HeldLease
from varlog.model.limits import LEASE_S
from varlog.rpc.messages import LeaseReply, RequestLease
from varlog.runtime.environment import Clock, instant_of
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks
from varlog.storagenode.sequenced.unit import LogUnit

ASK_INTERVAL_S: Final = LEASE_S / 4

_log = get_logger("lease")


class NodeLease:
    """`send` passes a message to the repository that has a session with this node; False if none has. A node without units needs no
    lease, and requests none."""

    def __init__(
        self,
        node: NodeID,
        units: Mapping[LogStreamID, LogUnit],
        clock: Clock,
        tasks: Tasks,
        send: Callable[[RequestLease], bool],
    ) -> None:
        self._who = f"storage node {node}"
        self._units = units
        self._clock = clock
        self._tasks = tasks
        self._send = send
        self._held = HeldLease()
        self._granted = 0  # the stamp of the request that the lease answers
        self._listed: dict[LogStreamID, int] = {}  # the stamp of the first request that listed each unit
        self._wake = asyncio.Event()
        # Units whose orders are being persisted.
        self._persisting: dict[LogStreamID, None] = {}

    @property
    def valid(self) -> bool:
        return self._held.holds(instant_of(self._clock))

    def check(self, log_stream: LogStreamID) -> None:
        listed = self._listed.get(log_stream)
        if not self.valid or listed is None or listed > self._granted:
            raise NoLease(self._who)

    def forget(self, log_stream: LogStreamID) -> None:
        """Forget a unit that was replaced by another one, which the repository does not know yet."""
        self._listed.pop(log_stream, None)

    def start(self) -> None:
        _ = self._tasks.spawn("lease", self._run())

    def request_soon(self) -> None:
        """Request a lease soon: a session began, a unit is new, or one has applied its order."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._units:
                self._request()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_INTERVAL_S if self._units else None):
                    await self._wake.wait()

    def _request(self) -> None:
        units = tuple(done for unit in self._units.values() if (done := unit.ordered()) is not None)
        stamp = self._held.ask(instant_of(self._clock))
        if self._send(RequestLease(stamp, units)):
            before = self._listed
            self._listed = {unit.log_stream: before.get(unit.log_stream, stamp) for unit in units}

    def apply(self, lease: LeaseReply) -> None:
        """The repository's answer, or a message of its own. Orders first: with the lease alone a unit could answer in an epoch that
        is over."""
        for order in lease.orders:
            unit = self._units.get(order.log_stream)
            if unit is not None and unit.order(order) and order.log_stream not in self._persisting:
                self._persisting[order.log_stream] = None
                _ = self._tasks.spawn(f"obey/ls={order.log_stream}", self._persist_order(unit))
        if lease.lease_s <= 0:
            self._held.end()
        elif self._held.granted(lease.stamp, lease.lease_s):
            self._granted = lease.stamp

    async def _persist_order(self, unit: LogUnit) -> None:
        try:
            await unit.persist_order()
        except VarlogError as refusal:
            # The unit does not answer meanwhile, and the next lease repeats the order.
            _log.warning(logfmt("an order cannot be persisted now", log_stream=unit.log_stream, why=refusal))
        else:
            self.request_soon()
        finally:
            del self._persisting[unit.log_stream]
