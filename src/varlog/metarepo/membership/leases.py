"""Leases: which nodes and sequencers may answer now, and what they must do first.

It also keeps the requests that wait for a lease to end (R-SEQ-13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from varlog.metarepo.membership import lease_rules as rules
from varlog.metarepo.membership.lease_rules import Duty, Holder, LeaseBook
from varlog.metarepo.membership.projection_rules import Handover
from varlog.metarepo.state import RepositoryState
from varlog.model.cluster import ClusterView
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.limits import LEASE_S
from varlog.model.lsn import GLSN
from varlog.model.projection import SequencerID
from varlog.rpc.messages import LeaseReply, RequestLease, UnitOrder
from varlog.runtime.environment import Clock, instant_of

# A wait is checked again slightly after its expected end: clocks need not agree to the microsecond.
CHECK_AGAIN_S: Final = 0.001


@dataclass(slots=True)
class _Node:
    """What one node requested in its current session, and the last lease sent. `lease_s` 0: none was granted in this session."""

    asked: int = 0
    stamp: int = 0
    lease_s: float = 0.0
    orders: tuple[UnitOrder, ...] = ()
    streams: tuple[LogStreamID, ...] = ()


@dataclass(slots=True, eq=False)
class _Wait:
    """`done` is called once none of the holders that `whom` returns may answer any more."""

    whom: Callable[[], Iterable[Holder]]
    done: Callable[[], None]
    timer: asyncio.TimerHandle | None = field(default=None)


class Leases:
    """The leases of one term. `leads` is checked for every grant; `send` sends a lease to a node in session.

    A lease that must not be extended is sent again unchanged, so that a node continues for as long as it may.
    """

    def __init__(
        self,
        state: RepositoryState,
        clock: Clock,
        *,
        leads: Callable[[], bool],
        send: Callable[[NodeID, LeaseReply], None],
        survive_restart: bool = True,
    ) -> None:
        self._state = state
        self._clock = clock
        self._leads = leads
        self._send = send
        self._book = LeaseBook(instant_of(clock) if survive_restart else None)
        self._view: ClusterView | None = None
        self._duties: dict[LogStreamID, Duty] = {}
        # The topic of each stream, and the epoch of its projection.
        self._epochs: dict[LogStreamID, tuple[TopicID, Epoch]] = {}
        # The only node of each chain of one node.
        self._alone: dict[LogStreamID, NodeID] = {}
        self._nodes: dict[NodeID, _Node] = {}
        self._reported: dict[NodeID, dict[LogStreamID, Duty]] = {}
        self._handovers: list[Handover] = []
        self._waits: dict[_Wait, None] = {}

    # --- Nodes -------------------------------------------------------------------------------------------------------------

    def session_began(self, node: NodeID) -> None:
        """The node may have another clock now (its machine was restarted): no timestamp from before is ever echoed."""
        self._nodes[node] = _Node()

    def asked(self, node: NodeID, ask: RequestLease) -> None:
        """Handle a lease request of a node in session. It is answered once the nodes have reported: one of them may know a newer
        projection. Until then, leases of the previous term stay valid until they end."""
        known = self._nodes.setdefault(node, _Node())
        self._reported[node] = {unit.log_stream: Duty(unit.epoch, unit.low) for unit in ask.units}
        known.asked, known.streams = ask.stamp, tuple(self._reported[node])
        if self._state.witnessed:
            self._answer(node, known)

    def witnesses_reported(self) -> None:
        """The nodes have reported: answer the requests that waited for that."""
        for node, known in self._nodes.items():
            if known.asked:
                self._answer(node, known)

    def _answer(self, node: NodeID, known: _Node) -> None:
        reported, demanded = self._reported[node], self._demanded(node)
        doubted = any(
            log_stream in self._epochs and self._epochs[log_stream][0] in self._state.distrusted
            for log_stream in reported
        )
        if self._leads() and not doubted and not self._stopped(node) and not rules.lacks(reported, demanded):
            self._book.grant(node, instant_of(self._clock))
            known.stamp, known.lease_s = known.asked, LEASE_S
        self._check_waits()
        self._send(node, self._lease_of(node, known, demanded))

    def view_changed(self) -> None:
        """Send new orders to the nodes whose orders have changed, immediately."""
        self._book.forget_ended(instant_of(self._clock))
        nodes = {found.node for found in self._state.view.nodes}
        for node in [found for found in self._nodes if found not in nodes]:
            del self._nodes[node]
            self._reported.pop(node, None)
        if self._state.witnessed:
            self._send_orders()

    def _send_orders(self) -> None:
        for node, known in self._nodes.items():
            if known.asked:
                before = known.orders
                lease = self._lease_of(node, known, self._demanded(node))
                if lease.orders != before:
                    self._send(node, lease)

    def _demanded(self, node: NodeID) -> dict[LogStreamID, Duty]:
        """The duties of this node's units: those that it should have as a member, and those that it has."""
        if self._state.view is not self._view:
            self._view = self._state.view
            self._duties = rules.duties(self._view)
            self._epochs = {
                chain.log_stream: (found.topic, self._duties[chain.log_stream].epoch)
                for found in self._view.projections
                for chain in found.chains
            }
            self._alone = {
                chain.log_stream: chain.head
                for found in self._view.projections
                for chain in found.chains
                if len(chain.nodes) == 1
            }
        known = self._nodes.get(node)
        streams = dict.fromkeys(found.log_stream for found in self._state.units_on.get(node, ()))
        streams.update(dict.fromkeys(known.streams if known is not None else ()))
        return {
            log_stream: rules.with_handovers(node, log_stream, self._duties[log_stream], self._handovers)
            for log_stream in streams
            if log_stream in self._duties
        }

    def _lease_of(self, node: NodeID, known: _Node, demanded: dict[LogStreamID, Duty]) -> LeaseReply:
        known.orders = tuple(
            UnitOrder(stream, duty.epoch, duty.low, self._alone.get(stream) == node)
            for stream, duty in demanded.items()
        )
        topics = dict(self._epochs[log_stream] for log_stream in demanded if log_stream in self._epochs)
        stamp = known.stamp if known.lease_s else known.asked
        return LeaseReply(stamp, known.lease_s, known.orders, tuple(topics.items()))

    # --- Sequencers ----------------------------------------------------------------------------------------------------------

    def renewed(self, sequencer: SequencerID, stamp: int) -> LeaseReply:
        """The answer to a registered sequencer, with the epochs that it must not be behind."""
        granted = self._leads() and not self._stopped(sequencer)
        if granted:
            self._book.grant(sequencer, instant_of(self._clock))
        return LeaseReply(stamp, LEASE_S if granted else 0.0, topics=rules.epochs(self._state.view))

    # --- Waiting -------------------------------------------------------------------------------------------------------------

    def hand_over(self, handover: Handover, done: Callable[[], None]) -> None:
        """Stop granting leases to the holders that lose something by the handover; call `done` once none of them may answer. Must
        be followed by `handed_over`. Units that are still in session are sealed on the way, and then no lease has to end."""
        self._handovers.append(handover)
        if handover.units:
            self._send_orders()
        self._wait(lambda: rules.waited_for(handover, self._reported), done)

    def handed_over(self, handover: Handover) -> None:
        """The new projection is in effect, or was refused: grant leases again, to holders that are not behind."""
        self._handovers.remove(handover)

    def await_trim(self, topic: TopicID, glsn: GLSN, done: Callable[[], None]) -> None:
        """Call `done` once every node has applied the trim, or may not answer any more."""
        self._wait(lambda: rules.trim_waits_for(self._state.view, topic, glsn, self._reported), done)

    def end(self) -> None:
        """Send nothing more, and drop all waits."""
        self._nodes.clear()
        waits, self._waits = self._waits, {}
        for wait in waits:
            if wait.timer is not None:
                wait.timer.cancel()

    def _stopped(self, holder: Holder) -> bool:
        return any(holder in rules.waited_for(handover, self._reported) for handover in self._handovers)

    def _wait(self, whom: Callable[[], Iterable[Holder]], done: Callable[[], None]) -> None:
        wait = _Wait(whom, done)
        self._waits[wait] = None
        self._check_wait(wait)

    def _check_waits(self) -> None:
        for wait in list(self._waits):
            self._check_wait(wait)

    def _check_wait(self, wait: _Wait) -> None:
        if wait not in self._waits:
            return
        if wait.timer is not None:
            wait.timer.cancel()
        now = instant_of(self._clock)
        left_us = max((self._book.left_us(holder, now) for holder in wait.whom()), default=0)
        if left_us:
            loop = asyncio.get_running_loop()
            wait.timer = loop.call_later(left_us / 1e6 + CHECK_AGAIN_S, self._check_wait, wait)
            return
        del self._waits[wait]
        wait.done()
