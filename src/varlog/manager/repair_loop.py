"""RepairLoop: re-read, decide, do at most one step a stream, again; safe to kill anywhere, safe to run twice.

A round reads the view, then asks the nodes: what the nodes say is never older than the view. A stream whose
step was under way while a round looked is left to the next round, because what was seen of it may be from
before the step.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from varlog.manager.config import ManagerConfig
from varlog.manager.heartbeat import Heartbeat
from varlog.manager.peers import Peers
from varlog.manager.repair_rules import (
    Nothing,
    SealReplicas,
    SealStream,
    Statuses,
    Step,
    UnsealReplicas,
    UnsealStream,
    next_step,
)
from varlog.model.cluster import ClusterView, LogStream, NodeStatus
from varlog.model.errors import Unavailable, VarlogError
from varlog.model.ids import LogStreamID, NodeID
from varlog.rpc import messages
from varlog.runtime.logs import get_logger, told
from varlog.runtime.tasks import Tasks

log = get_logger("manager")

# Steps under way at the same time: enough to hide a round trip and a disk sync, few enough not to bury a node
# that comes back.
STEPS_MAX = 64
# A stream that is about to change by itself (a replica still gets its commit rows) is looked at again after
# this, then twice this …
UNSETTLED_DELAY_S = 0.02
VIEW_WAIT_S = 20.0


@dataclass(frozen=True)
class Snapshot:
    """What one round saw: the view, the nodes that answered, and what was decided for each stream."""

    view: ClusterView
    nodes: dict[NodeID, NodeStatus]
    steps: dict[LogStreamID, Step] = field(default_factory=dict)


def statuses_of(stream: LogStream, nodes: dict[NodeID, NodeStatus]) -> Statuses:
    """What each replica's node says of it, for the nodes that answered."""
    return {
        node: next((found for found in nodes[node].replicas if found.log_stream == stream.log_stream), None)
        for node in stream.replicas
        if node in nodes
    }


class RepairLoop:
    """Brings every stream back to RUNNING, except those held by an operator."""

    def __init__(self, config: ManagerConfig, peers: Peers, heartbeat: Heartbeat, tasks: Tasks) -> None:
        self._config = config
        self._peers = peers
        self._heartbeat = heartbeat
        self._tasks = tasks
        # Streams sealed by hand. In memory: a manager that restarts brings them back.
        self.held: dict[LogStreamID, None] = {}
        self._busy: dict[LogStreamID, None] = {}
        self._touched: dict[LogStreamID, None] = {}
        self._said: dict[LogStreamID, str] = {}
        self._wake = asyncio.Event()
        self._rounds: list[asyncio.Future[Snapshot]] = []
        self._repository_answers = True

    def wake(self) -> None:
        """Start the next round now."""
        self._wake.set()

    async def wait_round(self) -> Snapshot:
        """The snapshot of a round that begins after this call, so that it shows what the caller has just
        done."""
        seen: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._rounds.append(seen)
        self.wake()
        return await seen

    async def run(self) -> None:
        """Rounds, for ever: at once while something changes, else every heartbeat."""
        delay_s = 0.0
        while True:
            self._wake.clear()
            unsettled = False
            try:
                unsettled = await self._round()
            except VarlogError as error:
                self._tell_repository(str(error))
            except Exception:  # a bug in one round must not leave the cluster without a manager
                log.exception("a round of the repair loop failed")
            delay_s = min(max(2 * delay_s, UNSETTLED_DELAY_S), self._config.heartbeat_s) if unsettled else 0.0
            try:
                async with asyncio.timeout(delay_s or self._config.heartbeat_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def watch_view(self) -> None:
        """Wake the loop as soon as the repository's view changes: a seal, a new stream, another manager's
        step."""
        revision = 0
        while True:
            try:
                ask = messages.GetView(newer_than=revision, wait_s=VIEW_WAIT_S)
                view = (
                    await self._peers.ask_repository(ask, messages.ViewIs, timeout_s=2 * VIEW_WAIT_S)
                ).view
            except VarlogError:
                revision = 0
                await asyncio.sleep(self._config.heartbeat_s)
                continue
            if view.revision != revision:
                revision = view.revision
                self.wake()

    async def _round(self) -> bool:
        waiting, self._rounds = self._rounds, []
        try:
            self._touched = dict(self._busy)
            view = (await self._peers.ask_repository(messages.GetView(), messages.ViewIs)).view
            self._tell_repository("")
            snapshot = Snapshot(view, await self._heartbeat.poll(view.nodes))
            unsettled = self._decide(snapshot)
        except BaseException:
            self._rounds = waiting + self._rounds  # they wait for a round that saw something
            raise
        for seen in waiting:
            if not seen.done():
                seen.set_result(snapshot)
        return unsettled

    def _decide(self, snapshot: Snapshot) -> bool:
        """Start the steps of this round; true if some stream is about to change by itself."""
        unsettled = False
        streams = {stream.log_stream: stream for stream in snapshot.view.streams}
        for gone in [log_stream for log_stream in self._said if log_stream not in streams]:
            del self._said[gone]
        for log_stream, stream in streams.items():
            step = next_step(stream, statuses_of(stream, snapshot.nodes), held=log_stream in self.held)
            snapshot.steps[log_stream] = step
            if log_stream in self._touched or log_stream in self._busy:
                continue
            if isinstance(step, Nothing):
                self._tell(stream, step.why)
                unsettled |= not step.settled
            elif len(self._busy) < STEPS_MAX:
                self._busy[log_stream] = None
                _ = self._tasks.spawn(f"repair/ls={log_stream}", self._take(stream, step, snapshot.view))
        return unsettled

    async def _take(self, stream: LogStream, step: Step, view: ClusterView) -> None:
        log_stream = stream.log_stream
        try:
            self._tell(stream, str(step))
            await self._do(stream, step, view)
        except VarlogError as error:
            # Not at once again: whatever refused it needs a moment, and the next heartbeat comes soon.
            self._tell(stream, f"{type(step).__name__} failed: {error}")
        else:
            self.wake()
        finally:
            del self._busy[log_stream]
            self._touched[log_stream] = None

    async def _do(self, stream: LogStream, step: Step, view: ClusterView) -> None:
        log_stream = stream.log_stream
        match step:
            case SealStream():
                await self._peers.ask_repository(messages.SealStream(log_stream), messages.Message)
            case UnsealStream():
                await self._peers.ask_repository(
                    messages.UnsealStream(log_stream, step.epoch), messages.Message
                )
            case SealReplicas():
                seal = messages.SealReplica(log_stream, step.epoch, step.committed_end)
                await self._ask_nodes(step.nodes, view, seal)
            case UnsealReplicas():
                replicas = tuple(
                    messages.ReplicaAddress(node, _address(node, view)) for node in stream.replicas
                )
                await self._ask_nodes(
                    step.nodes, view, messages.UnsealReplica(log_stream, step.epoch, replicas)
                )

    async def _ask_nodes(
        self, nodes: tuple[NodeID, ...], view: ClusterView, request: messages.Message
    ) -> None:
        """Ask all at the same time, let each finish, then tell the first failure."""
        asks = (self._peers.ask(_address(node, view), request, messages.ReplicaStateIs) for node in nodes)
        answers = await asyncio.gather(*asks, return_exceptions=True)
        for failure in [answer for answer in answers if isinstance(answer, BaseException)]:
            raise failure

    def _tell(self, stream: LogStream, what: str) -> None:
        """Log what is done for a stream when it changes, not every heartbeat."""
        if self._said.get(stream.log_stream) != what:
            self._said[stream.log_stream] = what
            log.info(told(what, log_stream=stream.log_stream, state=stream.state, epoch=stream.epoch))

    def _tell_repository(self, trouble: str) -> None:
        if bool(trouble) == self._repository_answers:
            self._repository_answers = not trouble
            if trouble:
                log.warning(
                    told(
                        "the metadata repository does not answer", address=self._peers.repository, why=trouble
                    )
                )
            else:
                log.info(told("the metadata repository answers again", address=self._peers.repository))


def _address(node: NodeID, view: ClusterView) -> str:
    found = view.node(node)
    if found is None:
        raise Unavailable(f"storage node {node} is not registered")
    return found.address
