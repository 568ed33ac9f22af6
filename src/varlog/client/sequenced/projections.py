"""[Q2] Projections: the current projection of a client, and the next (R-SEQ-10).

Failed calls are reported here. The next projection arrives with the view, or is created here. Callers that fail at the same time
share one reconfiguration, and if another client is faster, its projection is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from varlog.client.retry import Backoff
from varlog.client.routing import Routing
from varlog.client.sequenced.failure_rules import Remedy, Symptom, remedy
from varlog.model.cluster import ClusterView
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    NoLease,
    NotAccepted,
    NotSequencing,
    PreconditionFailed,
    ProjectionConflict,
    StaleEpoch,
    Unavailable,
    VarlogError,
)
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.projection import Projection
from varlog.reconfiguration.reconfigurer import PROPOSE_S, SEAL_S, Reconfigurer
from varlog.reconfiguration.rules import Wish
from varlog.rpc.messages import Message
from varlog.rpc.transport import CallTimeout, ConnectionLost
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.single_flight import SingleFlight

M = TypeVar("M", bound=Message)

# How long a client that finds an epoch ended waits for the next projection. The client that ended it may be copying entries to a
# joining node; creating another projection meanwhile would waste that work.
NEWER_S: Final = 0.6
# How long the view is watched after the last failure: failures tend to come in groups.
LINGER_S: Final = 2.0
# The pause before a failed reconfiguration is tried again.
AGAIN_S: Final = 0.1
# Failures further apart than this do not count as consecutive.
FORGET_S: Final = 1.0
# A wait shorter than this proves nothing about the node: the caller's deadline was too short.
PATIENT_S: Final = 0.25
# A node that the next projection could not leave out is not excluded again before this.
IN_VAIN_S: Final = 10.0

WRITE, READ, SEQUENCE = "write", "read", "sequence"

_log = get_logger("client")


class CallTarget(NamedTuple):
    """The target of a call, and its operation: a node whose disk hangs may still answer reads."""

    address: NodeID | str
    operation: str


class _Doubt(NamedTuple):
    """Consecutive failures: when the first of these calls began, and when the last one ended."""

    since: float
    last: float
    times: int


class Projections:
    """The projections of one client's topic."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._loop = asyncio.get_running_loop()
        self._reconfigurer = Reconfigurer(routing.ask_once, self._ask_repository)
        self._view: ClusterView | None = None
        self._now: Projection | None = None
        self._doubts: dict[CallTarget, _Doubt] = {}
        self._answered_at: dict[NodeID | str, float] = {}
        self._accused: dict[tuple[LogStreamID, NodeID], Symptom] = {}
        self._in_vain: dict[tuple[LogStreamID, NodeID], float] = {}
        self._making = SingleFlight(routing.tasks, "reconfigure")
        self._news = asyncio.Event()
        self._stop_watching: Callable[[], None] | None = None
        self._linger: asyncio.TimerHandle | None = None

    # --- The current projection -------------------------------------------------------------------------------------------

    @property
    def now(self) -> Projection:
        """The newest known projection. Raises UnknownTopic, or Unavailable if the topic has none yet."""
        if self._view is not self._routing.view:
            self._adopt(self._routing.view)
        if self._now is None:
            raise Unavailable(
                f"topic {self._routing.topic_name!r} has no projection yet: it is still being created"
            )
        return self._now

    def _adopt(self, view: ClusterView) -> None:
        topic = self._routing.topic
        found, known = view.projection(topic.topic), self._now
        if known is None or known.topic != topic.topic or (found is not None and found.epoch > known.epoch):
            self._learn(found)
        self._view = view

    def _learn(self, projection: Projection | None) -> None:
        self._now = projection
        # The failures were counted under another projection.
        self._doubts.clear()
        self._accused.clear()

    async def get(self, backoff: Backoff) -> Projection:
        """The newest known projection; waits for the first one while the topic is being created."""
        while True:
            self._routing.check_open()
            try:
                return self.now
            except Unavailable:
                if backoff.spent:
                    raise
            self._routing.refresh_soon()
            await self._wait_news(min(backoff.pause_s(), backoff.remaining_s))

    # --- Failed calls -----------------------------------------------------------------------------------------------------

    def answered(self, node: NodeID, operation: str) -> None:
        self._answered_at[node] = self._loop.time()
        if self._doubts:
            self._doubts.pop(CallTarget(node, operation), None)
        self._routing.failure_detector.node_answered(node)

    def sequencer_answered(self, address: str) -> None:
        self._answered_at[address] = self._loop.time()
        if self._doubts:
            self._doubts = {who: doubt for who, doubt in self._doubts.items() if who.operation != SEQUENCE}

    async def node_failed(
        self,
        projection: Projection,
        log_stream: LogStreamID,
        who: CallTarget,
        error: VarlogError,
        began: float,
        backoff: Backoff,
    ) -> None:
        """Handle a call to a unit that began at `began` under `projection` and failed with `error`. Returns when it can be retried,
        perhaps under a newer projection, or when the deadline has passed."""
        if self._in_a_hurry(began, backoff):
            return
        node, symptom = NodeID(int(who.address)), symptom_of(error)
        step = self._count(who, symptom, began)
        if isinstance(error, ConnectionLost | CallTimeout):
            self._routing.failure_detector.node_failed(node, error.what, refused=not error.sent)
        if isinstance(error, CallTimeout) and self._answered_at.get(node, 0.0) < began:
            self._routing.disconnect(node)
        if step is Remedy.WITHOUT and self._can_do_without(projection, log_stream, node):
            self._accused[log_stream, node] = symptom
            await self._make_next(projection.epoch, backoff, f"node {node} failed: {error}")
        elif step is Remedy.NEWER:
            await self._find_newer(projection.epoch, backoff, str(error))
        else:
            await self.pause(projection.epoch, backoff)

    async def sequencer_failed(
        self, projection: Projection, error: VarlogError, began: float, backoff: Backoff
    ) -> None:
        """The same for the sequencer. It is replaced only if there is another one."""
        if isinstance(error, NotSequencing) and error.here > projection.epoch:
            await self._find_newer(projection.epoch, backoff, str(error))
            return
        if self._in_a_hurry(began, backoff):
            return
        present = projection.sequencer
        if isinstance(error, CallTimeout) and present and self._answered_at.get(present.address, 0.0) < began:
            self._routing.drop(present.address)
        symptom = Symptom.FAILING if isinstance(error, NotSequencing) else symptom_of(error)
        step = self._count(CallTarget(present.address if present else "", SEQUENCE), symptom, began)
        if step is Remedy.WITHOUT or present is None:
            self._routing.refresh_soon()
            await self._wait_news(AGAIN_S)
            view, limit_s = self._routing.view, min(SEAL_S, backoff.remaining_s)
            if self._is_newest(projection.epoch):
                chosen = await self._reconfigurer.choose_sequencer(view, present, limit_s)
                if chosen != present:
                    await self._make_next(projection.epoch, backoff, f"the sequencer failed: {error}")
                    return
        await self.pause(projection.epoch, backoff)

    def _in_a_hurry(self, began: float, backoff: Backoff) -> bool:
        return backoff.spent and self._loop.time() - began < PATIENT_S

    def _can_do_without(self, projection: Projection, log_stream: LogStreamID, node: NodeID) -> bool:
        """Whether there are other nodes, and excluding this one did not fail recently: the others may be in worse condition."""
        others = len(projection.chain(log_stream).nodes) > 1
        return others and self._in_vain.get((log_stream, node), 0.0) < self._loop.time()

    def _count(self, who: CallTarget, symptom: Symptom, began: float) -> Remedy:
        now, doubt = self._loop.time(), self._doubts.get(who)
        if doubt is None or began - doubt.last > FORGET_S:
            doubt = _Doubt(began, now, 0)
        self._doubts[who] = doubt = _Doubt(min(doubt.since, began), now, doubt.times + 1)
        return remedy(symptom, doubt.times, now - doubt.since)

    async def _find_newer(self, epoch: Epoch, backoff: Backoff, why: str) -> None:
        """Wait for the projection that another client creates; if it does not arrive soon, that client may have died: create
        one."""
        deadline = self._loop.time() + min(NEWER_S, backoff.remaining_s)
        self._routing.refresh_soon()
        while self._is_newest(epoch) and (left_s := deadline - self._loop.time()) > 0:
            await self._wait_news(left_s)
        if self._is_newest(epoch) and not backoff.spent:
            await self._make_next(epoch, backoff, why)

    async def pause(self, epoch: Epoch, backoff: Backoff) -> None:
        """Wait before a retry, unless there is a newer projection."""
        if self._is_newest(epoch):
            self._routing.refresh_soon()
            await self._wait_news(min(backoff.pause_s(), backoff.remaining_s))
        if not self._is_newest(epoch):
            backoff.restart()

    def _is_newest(self, epoch: Epoch) -> bool:
        self._routing.check_open()
        return self.now.epoch <= epoch

    # --- The next projection ----------------------------------------------------------------------------------------------

    async def _make_next(self, epoch: Epoch, backoff: Backoff, why: str) -> None:
        """Create a projection newer than `epoch`'s, once for all callers. Returns also if the time is over or it cannot be
        created now."""
        if not self._is_newest(epoch):
            return
        if not self._making.in_flight:
            _log.warning(logfmt("reconfiguring", topic=self._routing.topic_name, epoch=epoch, why=why))
        making = self._making.join(lambda: self._reconfigure(epoch))
        await asyncio.wait([making], timeout=backoff.remaining_s)

    async def _reconfigure(self, epoch: Epoch) -> None:
        try:
            view = await self._routing.refresh(PROPOSE_S)
            if not self._is_newest(epoch):
                return
            accused = dict(self._accused)
            made = await self._reconfigurer.run(view, self.now.topic, _wish(accused))
            for log_stream, node in accused:
                if node in made.chain(log_stream).nodes:
                    self._in_vain[log_stream, node] = self._loop.time() + IN_VAIN_S
            if made.epoch > self.now.epoch:
                self._learn(made)
            self._on_news()
            self._routing.refresh_soon()
        except (ProjectionConflict, StaleEpoch):
            await self._routing.refresh(PROPOSE_S)  # another client was faster
        except (Unavailable, PreconditionFailed) as error:
            _log.warning(logfmt("not reconfigured", topic=self._routing.topic_name, epoch=epoch, why=error))
            await asyncio.sleep(AGAIN_S * (0.5 + self._routing.environment.entropy.random()))

    async def _ask_repository(self, request: Message, answer: type[M], timeout_s: float) -> M:
        # One try may take the whole time: the repository waits for leases to end before it answers.
        return await self._routing.ask_repository(request, answer, timeout_s, attempt_s=timeout_s)

    # --- Changes of the view ----------------------------------------------------------------------------------------------

    async def _wait_news(self, wait_s: float) -> None:
        """Wait until the view or the projection changes, at most for `wait_s`."""
        self._watch()
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            pass

    def _watch(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        self._linger = self._loop.call_later(LINGER_S, self._stop)
        if self._stop_watching is None and not self._routing.closed:
            self._stop_watching = self._routing.watch(self._on_news)

    def _on_news(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _stop(self) -> None:
        self._linger = None
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None


def _wish(accused: Mapping[tuple[LogStreamID, NodeID], Symptom]) -> Wish:
    """The changes to ask for. A node that answers, and fails in its part of one stream, may still serve other streams."""
    gone = frozenset(node for (_, node), symptom in accused.items() if symptom is not Symptom.FAILING)
    without: dict[LogStreamID, tuple[NodeID, ...]] = {}
    for log_stream, node in accused:
        without[log_stream] = (*without.get(log_stream, ()), node)
    return Wish(accused=gone, without=without)


def symptom_of(error: VarlogError) -> Symptom:
    if isinstance(error, StaleEpoch) and error.here > error.asked:
        return Symptom.STALE
    if isinstance(error, ConnectionLost | CallTimeout):
        return Symptom.SILENT if error.sent else Symptom.REFUSED
    if isinstance(error, NoLease):
        return Symptom.LEASELESS
    return Symptom.BUSY if isinstance(error, NotAccepted) else Symptom.FAILING
