"""RepairLoop and ClusterWatcher: rounds of poll, decide, one step per stream.

The next step of a stream is decided in committed/rules.py (`next_step`) or sequenced/rules.py (`plan`). A round reads the view,
then polls the nodes: statuses are never older than the view. A stream whose step ran during the poll is left to the next round,
because its status may be from before the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from varlog.manager.committed.inputs import RepairInputs
from varlog.manager.committed.rules import SlowPrimaries, next_step
from varlog.manager.committed.runner import StepRunner
from varlog.manager.config import ManagerConfig
from varlog.manager.events import EventLog, StreamActivity
from varlog.manager.heartbeat import Heartbeat
from varlog.manager.orphan_collector import OrphanCollector
from varlog.manager.peers import Peers
from varlog.manager.repair_steps import (
    RUNNING,
    SEALED_BY_ADMIN,
    Move,
    NoStep,
    RepairReplica,
    RepairStep,
    SyncReplica,
    step_event,
)
from varlog.manager.sequenced.repair import SequencedRepair
from varlog.manager.snapshot import Snapshot
from varlog.model.cluster import ClusterView, LogStream, changed
from varlog.model.errors import Unavailable, VarlogError
from varlog.model.events import Event, EventKind, sentence
from varlog.model.ids import NO_UUID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.rpc import messages
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

log = get_logger("manager")

# Concurrent steps: enough to hide a round trip and a disk sync, few enough not to overload a node that returns.
STEPS_MAX = 64
# A stream that is about to change without us (a replica still receives commit rows) is checked again after this, then twice
# this …
UNSETTLED_DELAY_S = 0.02
VIEW_WAIT_S = 20.0


class RepairLoop:
    """Brings every stream back to RUNNING, except those that an operator sealed."""

    def __init__(self, config: ManagerConfig, peers: Peers, events: EventLog, tasks: Tasks) -> None:
        self.events = events
        # As of the last round.
        self.view: ClusterView | None = None
        # Replicas that operators move now. In memory: the call that waits for a move ends with the manager.
        self.moves: dict[LogStreamID, Move] = {}
        self._config = config
        self._peers = peers
        self._tasks = tasks
        self._heartbeat = Heartbeat(config, peers, events, tasks, self.wake)
        self._runner = StepRunner(peers)
        self._orphans = OrphanCollector(config, peers, events, tasks)
        self._sequenced_repair = SequencedRepair(config, peers, events, tasks, self.wake, self.moves)
        self._slow = SlowPrimaries(config.slow_after_s)
        self._busy: dict[LogStreamID, None] = {}
        self._touched: dict[LogStreamID, None] = {}
        self._activity = StreamActivity(events)
        self._wake = asyncio.Event()
        self._rounds: list[asyncio.Future[Snapshot]] = []
        self._repository_answers = True

    def wake(self) -> None:
        """Start the next round now."""
        self._wake.set()

    async def wait_round(self) -> Snapshot:
        """The snapshot of a round that begins after this call, so that it shows what the caller has just done."""
        seen: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._rounds.append(seen)
        self.wake()
        return await seen

    def activity(self, log_stream: LogStreamID) -> Event | None:
        """What is done for a stream, or waited for. None: it runs."""
        return self._activity.current(log_stream) or self._sequenced_repair.activity(log_stream)

    def making(self, topic: TopicID) -> AbstractContextManager[None]:
        """While streams of a topic are created: a sequenced one starts when all of them exist."""
        return self._sequenced_repair.making(topic)

    async def run(self) -> None:
        """Rounds, forever: immediately while something changes, otherwise every heartbeat."""
        delay_s = 0.0
        while True:
            self._wake.clear()
            unsettled = False
            try:
                unsettled = await self._round()
            except VarlogError as error:
                self._note_repository(str(error))
            except Exception:  # a bug in one round must not leave the cluster without a manager
                log.exception("a round of the repair loop failed")
            delay_s = min(max(2 * delay_s, UNSETTLED_DELAY_S), self._config.heartbeat_s) if unsettled else 0.0
            try:
                async with asyncio.timeout(delay_s or self._config.heartbeat_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def watch_view(self) -> None:
        """Wake the loop as soon as the repository's view changes (a seal, a new stream, another manager's
        step), or a client suspects a node (R-FAIL-2)."""
        revision = 0
        suspects: tuple[NodeID, ...] = ()
        while True:
            try:
                ask = messages.GetView(newer_than=revision, wait_s=VIEW_WAIT_S)
                seen = await self._peers.ask_repository(ask, messages.GetViewReply, timeout_s=2 * VIEW_WAIT_S)
            except VarlogError:
                revision = 0
                await asyncio.sleep(self._config.heartbeat_s)
                continue
            if (seen.view.revision, seen.suspects) != (revision, suspects):
                revision, suspects = seen.view.revision, seen.suspects
                self.wake()

    async def _round(self) -> bool:
        waiting, self._rounds = self._rounds, []
        try:
            self._touched = dict(self._busy)
            self._sequenced_repair.begin_round()
            seen = await self._peers.ask_repository(messages.GetView(), messages.GetViewReply)
            self._note_repository("")
            self._check_cluster(seen.view.uuid)
            nodes = await self._heartbeat.poll(seen.view.nodes, seen.view.uuid)
            await self._sequenced_repair.poll_sequencers(seen.view)
            snapshot = Snapshot(
                seen, nodes, self._heartbeat.unreachable_s(), self._heartbeat.unreachable_reasons()
            )
            self._end_moves(snapshot)
            unsettled = self._decide(snapshot) | self._sequenced_repair.decide(snapshot)
            self.view = seen.view
            self._orphans.collect(snapshot)
        except BaseException:
            self._rounds = waiting + self._rounds  # they wait for a round that succeeds
            raise
        for found in waiting:
            if not found.done():
                found.set_result(snapshot)
        return unsettled

    def _end_moves(self, snapshot: Snapshot) -> None:
        """End moves of sequenced streams that are done, or whose new node is lost. The others are ended by the call that waits."""
        for log_stream, move in list(self.moves.items()):
            stream = snapshot.view.stream(log_stream)
            if stream is not None and not snapshot.is_sequenced(stream):
                continue
            lost = snapshot.unreachable_s.get(move.new, 0.0) >= self._config.replace_after_s
            if stream is None or move.old not in stream.replicas or move.new in stream.replicas or lost:
                del self.moves[log_stream]

    def _decide(self, snapshot: Snapshot) -> bool:
        """Start the steps of this round; true if some stream is about to change without us."""
        unsettled = False
        self._slow.update(snapshot.write_s(), asyncio.get_running_loop().time())
        streams = {
            stream.log_stream: stream
            for stream in snapshot.view.streams
            if not snapshot.is_sequenced(stream)  # see SequencedRepair
        }
        self._activity.retain(streams)
        self._runner.retain(streams)
        for log_stream, stream in streams.items():
            step = next_step(stream, snapshot.statuses_of(stream), self._around(snapshot, stream))
            snapshot.decided(stream, step)
            if log_stream in self._touched or log_stream in self._busy:
                continue
            unsettled |= isinstance(step, SyncReplica)
            if isinstance(step, NoStep):
                self._wait_for(stream, step)
                unsettled |= not step.settled
            elif len(self._busy) < STEPS_MAX:
                self._busy[log_stream] = None
                _ = self._tasks.spawn(f"repair/ls={log_stream}", self._run_step(stream, step, snapshot))
        return unsettled

    def _around(self, snapshot: Snapshot, stream: LogStream) -> RepairInputs:
        move = self.moves.get(stream.log_stream)
        unusable_s = {
            node: snapshot.unreachable_s[node] for node in stream.replicas if node in snapshot.unreachable_s
        }
        for node, refused_s in self._runner.refused_s(stream).items():
            unusable_s[node] = max(refused_s, unusable_s.get(node, 0.0))
        # Computed only where a replica is to be placed: it needs all streams.
        spares = snapshot.spares() if unusable_s else ()
        found = snapshot.found(stream.log_stream)
        former = {node: replica for node, replica in found.items() if node not in stream.replicas}
        topic = snapshot.view.topic(stream.topic)
        stopped = topic.stopped if topic is not None else ""
        primary = self._slow.primary_for(stream, asyncio.get_running_loop().time())
        return RepairInputs(spares, unusable_s, self._config.replace_after_s, move, former, stopped, primary)

    def _wait_for(self, stream: LogStream, step: NoStep) -> None:
        if step == RUNNING:
            self._runner.forget(stream.log_stream)
        self._activity.no_step(stream.log_stream, stream.epoch, step)

    async def _run_step(self, stream: LogStream, step: RepairStep, snapshot: Snapshot) -> None:
        log_stream = stream.log_stream
        event = step_event(step, epoch=stream.epoch)
        try:
            self._activity.begin_step(event, [log_stream])
            await self._runner.do(stream, step, snapshot.view, snapshot.found(log_stream))
        except VarlogError as error:
            # Not retried immediately: the cause needs a moment, and the next heartbeat comes soon.
            self._activity.begin_step(changed(event, failure=str(error)), [log_stream])
        else:
            if not isinstance(step, SyncReplica | RepairReplica):  # these have only begun
                self.wake()
        finally:
            del self._busy[log_stream]
            self._touched[log_stream] = None

    def _check_cluster(self, uuid: ClusterUUID) -> None:
        """A repository of another cluster does not know our nodes, so no node is polled that could report it."""
        before = self.view.uuid if self.view is not None else NO_UUID
        if before not in (NO_UUID, uuid):
            self.events.record(
                Event(
                    EventKind.REPOSITORY_CHANGED,
                    address=self._peers.repository.address,
                    reason=f"UUID {uuid}, before: {before}",
                )
            )

    def _note_repository(self, trouble: str) -> None:
        if bool(trouble) == self._repository_answers:
            self._repository_answers = not trouble
            if trouble:
                log.warning(
                    logfmt(
                        "the metadata repository does not answer", address=self._peers.repository, why=trouble
                    )
                )
            else:
                log.info(logfmt("the metadata repository answers again", address=self._peers.repository))


# How long an operator's request waits for its effect.
SETTLE_TIMEOUT_S = 10.0
# Between two rounds of a wait: not as fast as the repository can answer.
POLL_S = 0.01


class ClusterWatcher:
    """Fresh snapshots, each of a round that begins after the call, and waits for a condition."""

    def __init__(self, peers: Peers, repair: RepairLoop) -> None:
        self._peers = peers
        self._repair = repair

    async def snapshot(self) -> Snapshot:
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                return await self._repair.wait_round()
        except TimeoutError:
            raise Unavailable(
                f"the metadata repository at {self._peers.repository} does not answer the manager: is it running?"
            ) from None

    async def wait_running(self, what: str, streams: Sequence[LogStreamID]) -> Snapshot:
        """Wait until the streams run. `what` is already done; the error says so, and what the streams wait for."""
        return await self.wait(
            what, streams, lambda snapshot: all(snapshot.runs(stream) for stream in streams)
        )

    async def wait(
        self, what: str, streams: Sequence[LogStreamID], condition: Callable[[Snapshot], bool]
    ) -> Snapshot:
        snapshot: Snapshot | None = None
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                while True:
                    snapshot = await self._repair.wait_round()
                    if condition(snapshot):
                        return snapshot
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise Unavailable(f"{what}, but {self._hindrance(snapshot, streams)}") from None

    def _hindrance(self, snapshot: Snapshot | None, streams: Sequence[LogStreamID]) -> str:
        """What the first of these streams waits for, as a sentence."""
        if snapshot is None:
            return "the metadata repository does not answer"
        for stream in streams:
            step, activity = snapshot.steps.get(stream), self._repair.activity(stream)
            if step not in (RUNNING, SEALED_BY_ADMIN) and activity is not None:
                return f"log stream {stream} does not run yet: {sentence(activity)}"
        return "that did not take effect in time: see `varlog status`"
