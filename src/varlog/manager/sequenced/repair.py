"""SequencedRepair: repairs sequenced topics within the rounds of the repair loop.

What to do is decided in rules.py. At most one change of projection per topic, and one step per stream, run at a time. A topic whose
change ran during a poll is left to the next round, because its statuses may be from before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from varlog.manager.config import ManagerConfig
from varlog.manager.events import EventLog, StreamActivity
from varlog.manager.peers import Peers
from varlog.manager.repair_steps import (
    BeginTopic,
    CreateReplica,
    Move,
    NoStep,
    RebuildReplica,
    Reconfigure,
    RepairStep,
    SyncReplica,
    step_event,
)
from varlog.manager.sequenced.inputs import TopicCondition, TopicRepairInputs
from varlog.manager.sequenced.rules import Plan, plan
from varlog.manager.sequenced.runner import ProjectionRunner
from varlog.manager.sequenced.sequencer_watch import SequencerWatch
from varlog.manager.snapshot import Snapshot
from varlog.model.cluster import ClusterView, LogStream, Topic, changed
from varlog.model.errors import ProjectionConflict, StaleEpoch, VarlogError
from varlog.model.events import Event, EventKind
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.projection import Projection, SequencerID
from varlog.reconfiguration.rules import thin
from varlog.rpc.transport import CallTimeout, ConnectionLost
from varlog.runtime.tasks import Tasks

# Concurrent steps of sequenced streams.
SEQUENCED_STEPS_MAX: Final = 64
# Backoff of a unit that was filled and could not join.
REST_S: Final = 5.0

# A running change of a topic's projection, or a running step of one of its streams.
RepairKey = TopicID | tuple[TopicID, LogStreamID]


class SequencedRepair:
    """Remembers only since when a condition holds, and what is running."""

    def __init__(
        self,
        config: ManagerConfig,
        peers: Peers,
        events: EventLog,
        tasks: Tasks,
        wake: Callable[[], None],
        moves: Mapping[LogStreamID, Move],
    ) -> None:
        self._config = config
        self._events = events
        self._tasks = tasks
        self._wake = wake
        self._moves = moves
        self._runner = ProjectionRunner(peers)
        self._watch = SequencerWatch(config, peers, events, tasks)
        self._sequencers: frozenset[SequencerID] = frozenset()
        self._making: dict[TopicID, None] = {}
        self._busy: dict[RepairKey, None] = {}
        self._touched: dict[RepairKey, None] = {}
        self._activity = StreamActivity(events)
        self._thin: dict[LogStreamID, None] = {}
        self._resting: dict[tuple[LogStreamID, NodeID], float] = {}
        self._refused: dict[tuple[LogStreamID, NodeID], None] = {}
        self._stuck: dict[tuple[LogStreamID, NodeID], None] = {}
        self._since: dict[object, float] = {}
        self._seen: dict[object, None] = {}

    def activity(self, log_stream: LogStreamID) -> Event | None:
        """What is done for a stream, or waited for. None: it runs."""
        found = self._activity.current(log_stream)
        return found and changed(found, one_copy=log_stream in self._thin)

    @contextmanager
    def making(self, topic: TopicID) -> Iterator[None]:
        """Streams of this topic are being created: they start together."""
        self._making[topic] = None
        try:
            yield
        finally:
            self._making.pop(topic, None)

    def begin_round(self) -> None:
        self._touched = dict(self._busy)

    async def poll_sequencers(self, view: ClusterView) -> None:
        """Poll the sequencers, if there is a topic that needs one."""
        if any(topic.sequenced for topic in view.topics):
            self._sequencers = await self._watch.poll(view.sequencers)

    def decide(self, snapshot: Snapshot) -> bool:
        """Start the steps of this round; true if something is about to change without us."""
        self._seen = {}
        unsettled = False
        projections = {found.topic: found for found in snapshot.view.projections}
        streams: dict[TopicID, list[LogStream]] = {}
        for stream in snapshot.view.streams:
            streams.setdefault(stream.topic, []).append(stream)
        for topic in snapshot.view.topics:
            if topic.sequenced:
                own = tuple(streams.get(topic.topic, ()))
                unsettled |= self._decide(snapshot, topic, projections.get(topic.topic), own)
        self._since = {what: since for what, since in self._since.items() if what in self._seen}
        self._forget({stream.log_stream for stream in snapshot.view.streams})
        return unsettled

    # --- Decide ---------------------------------------------------------------------------------------------------------

    def _decide(
        self,
        snapshot: Snapshot,
        topic: Topic,
        projection: Projection | None,
        streams: tuple[LogStream, ...],
    ) -> bool:
        if topic.stopped:
            for stream in streams:
                waits = NoStep(EventKind.TOPIC_STOPPED, f"the topic is STOPPED: {topic.stopped}")
                snapshot.decided(stream, waits)
                self._activity.no_step(stream.log_stream, stream.epoch, waits)
            return False
        units = {stream.log_stream: snapshot.units(stream.log_stream) for stream in streams}
        case = self._with_inputs(snapshot, TopicCondition(topic, projection, streams, snapshot.nodes, units))
        decided = plan(case)
        if case.projection is not None:
            self._record_copies(case.projection)
        snapshot.wanted.update(decided.wanted)
        unsettled = self._start_change(snapshot, topic, decided)
        for stream in case.streams:
            step = decided.steps[stream.log_stream]
            snapshot.decided(stream, step)
            unsettled |= isinstance(step, SyncReplica) or (isinstance(step, NoStep) and not step.settled)
            if isinstance(step, NoStep):
                self._activity.no_step(stream.log_stream, stream.epoch, step)
            elif not isinstance(step, BeginTopic | Reconfigure):
                self._start_step(snapshot, topic, stream.log_stream, step)
        return unsettled

    def _with_inputs(self, snapshot: Snapshot, bare: TopicCondition) -> TopicCondition:
        topic = bare.topic.topic
        chains = bare.projection.chains if bare.projection is not None else ()
        now = asyncio.get_running_loop().time()
        unleased = [node for node, status in snapshot.nodes.items() if status.units and not status.leased]
        inputs = TopicRepairInputs(
            # Computed only where a unit is to be placed: it needs all streams.
            spares=snapshot.spares() if any(chain.out_of_sync for chain in chains) else (),
            unreachable_s=snapshot.unreachable_s,
            useless_s=self._useless_s(bare),
            unleased_s={node: self._for_s("unleased", node) for node in unleased},
            ahead_s=self._for_s("ahead", bare.epoch, topic) if any(map(bare.is_ahead, chains)) else 0.0,
            sequencers=self._sequencers,
            moves=self._moves,
            replace_after_s=self._config.replace_after_s,
            making=topic in self._making,
            resting=[key for key, until in self._resting.items() if now < until],
            stuck=self._stuck,
            unreported_s={key: self._for_s("unreported", *key) for key in _unreported(bare)},
        )
        return replace(bare, inputs=inputs)

    def _useless_s(self, case: TopicCondition) -> dict[tuple[LogStreamID, NodeID], float]:
        """Members that answer, and whose disks are full or fail: a node with a dead disk answers, and is of no use."""
        found = {}
        for log_stream, units in case.units.items():
            full = [(log_stream, node) for node, unit in units.items() if unit.full]
            refused = [key for key in self._refused if key[0] == log_stream and key[1] in case.nodes]
            found.update({key: self._for_s("useless", *key) for key in (*full, *refused)})
        return found

    def _for_s(self, *what: object) -> float:
        """How long a condition has held. A condition that is not asked for in a round has ended."""
        self._seen[what] = None
        now = asyncio.get_running_loop().time()
        return now - self._since.setdefault(what, now)

    # --- Run ------------------------------------------------------------------------------------------------------------

    def _start_change(self, snapshot: Snapshot, topic: Topic, decided: Plan) -> bool:
        if decided.change is None or self._is_running(topic.topic):
            return False
        self._busy[topic.topic] = None
        name = f"projection/topic={topic.topic}"
        _ = self._tasks.spawn(name, self._change(snapshot.view, topic, decided.change))
        return True

    def _start_step(
        self, snapshot: Snapshot, topic: Topic, log_stream: LogStreamID, step: RepairStep
    ) -> None:
        work = (topic.topic, log_stream)
        if self._is_running(work) or self._is_running(topic.topic) or len(self._busy) >= SEQUENCED_STEPS_MAX:
            return
        self._busy[work] = None
        _ = self._tasks.spawn(
            f"repair/ls={log_stream}", self._run_step(snapshot.view, topic, log_stream, step)
        )

    def _is_running(self, work: RepairKey) -> bool:
        return work in self._busy or work in self._touched

    async def _change(self, view: ClusterView, topic: Topic, change: BeginTopic | Reconfigure) -> None:
        streams = [stream.log_stream for stream in view.streams_of(topic.topic)]
        event = step_event(change, topic=topic.name)
        try:
            self._activity.begin_step(event, streams)
            projection = await self._runner.change(view, topic, change)
        except (ProjectionConflict, StaleEpoch):
            pass  # another process was faster; the change of the view wakes the loop
        except VarlogError as error:
            # Not retried immediately: the cause needs a moment, and the next heartbeat comes soon.
            self._activity.begin_step(changed(event, failure=str(error)), streams)
            self._rest(change, None)
        else:
            self._events.record(Event(EventKind.EPOCH_STARTED, topic=topic.name, epoch=projection.epoch))
            self._rest(change, projection)
            self._wake()
        finally:
            self._end(topic.topic)

    def _rest(self, change: BeginTopic | Reconfigure, projection: Projection | None) -> None:
        """A unit that could not join is not retried immediately: each attempt makes the topic wait."""
        now = asyncio.get_running_loop().time()
        for log_stream, nodes in change.wish.join.items() if isinstance(change, Reconfigure) else ():
            for node in nodes:
                if projection is None or node not in projection.chain(log_stream).nodes:
                    self._resting[log_stream, node] = now + REST_S

    async def _run_step(
        self, view: ClusterView, topic: Topic, log_stream: LogStreamID, step: RepairStep
    ) -> None:
        event = step_event(step)
        try:
            self._activity.begin_step(event, [log_stream])
            await self._runner.do(view, topic, log_stream, step)
        except VarlogError as error:
            if not isinstance(error, ConnectionLost | CallTimeout):
                self._note_refusal(log_stream, step, refused=True)
            self._activity.begin_step(changed(event, failure=str(error)), [log_stream])
        else:
            self._note_refusal(log_stream, step, refused=False)
            if not isinstance(step, SyncReplica):  # that has only started
                self._wake()
        finally:
            self._end((topic.topic, log_stream))

    def _note_refusal(self, log_stream: LogStreamID, step: RepairStep, *, refused: bool) -> None:
        """A unit that cannot be created is of no use; one that cannot be filled must be rebuilt."""
        if not isinstance(step, CreateReplica | RebuildReplica | SyncReplica):
            return
        unit = (log_stream, step.node)
        kept = self._stuck if isinstance(step, SyncReplica) else self._refused
        if refused:
            kept[unit] = None
        else:
            kept.pop(unit, None)
            if isinstance(step, RebuildReplica):
                self._stuck.pop(unit, None)

    def _end(self, work: RepairKey) -> None:
        del self._busy[work]
        self._touched[work] = None

    # --- Record ---------------------------------------------------------------------------------------------------------

    def _record_copies(self, projection: Projection) -> None:
        """R-SEQ-10: a loss of redundancy is reported, whichever process reconfigured the topic."""
        alone = {chain.log_stream: chain for chain in thin(projection)}
        for log_stream, chain in alone.items():
            if log_stream not in self._thin:
                self._thin[log_stream] = None
                self._events.record(
                    Event(
                        EventKind.ONE_COPY_LEFT,
                        log_stream=log_stream,
                        node=chain.head,
                        nodes=chain.out_of_sync,
                    )
                )
        for chain in projection.chains:
            if chain.log_stream in self._thin and chain.log_stream not in alone:
                del self._thin[chain.log_stream]
                self._events.record(
                    Event(EventKind.COPIES_RESTORED, log_stream=chain.log_stream, count=len(chain.nodes))
                )

    def _forget(self, streams: set[LogStreamID]) -> None:
        """Forget streams that no longer exist."""
        self._activity.retain(streams)
        self._thin = {found: None for found in self._thin if found in streams}
        self._refused = {key: None for key in self._refused if key[0] in streams}
        self._stuck = {key: None for key in self._stuck if key[0] in streams}
        now = asyncio.get_running_loop().time()
        self._resting = {key: until for key, until in self._resting.items() if now < until}


def _unreported(case: TopicCondition) -> Iterator[tuple[LogStreamID, NodeID]]:
    """Members without a unit status, with a failed unit, or with a unit that was never sealed."""
    for chain in case.projection.chains if case.projection is not None else ():
        for node in chain.nodes:
            unit = case.unit(chain.log_stream, node)
            if unit is None or unit.trouble or not case.is_sealable(chain.log_stream, node):
                yield chain.log_stream, node
