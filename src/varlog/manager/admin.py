"""AdminService and ReplicaAdmin: requests of operators and clients to the manager."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from varlog.manager.committed.inputs import ALONE, StreamCondition
from varlog.manager.config import ManagerConfig
from varlog.manager.peers import CALL_TIMEOUT_S, Peers
from varlog.manager.registrar import SNAPSHOT_LASTS_S, Registrar, StreamMaker
from varlog.manager.repair_loop import ClusterWatcher, RepairLoop
from varlog.manager.repair_steps import Move, NoStep, RepairReplica
from varlog.manager.snapshot import Snapshot
from varlog.model.cluster import LogStream, Ordering, StreamState, Topic
from varlog.model.errors import InvalidRequest, PreconditionFailed, UnknownTopic
from varlog.model.events import sentence
from varlog.model.ids import LogStreamID, NodeID, check_topic_name
from varlog.model.lsn import FIRST_LLSN, LLSN
from varlog.model.projection import STRIPE_SIZE
from varlog.model.status import SyncState, SyncStatus
from varlog.rpc import messages
from varlog.rpc.dispatch import Answer, Dispatcher
from varlog.rpc.messages import Message, ReplicaAddress
from varlog.rpc.transport import Call
from varlog.runtime.logging import get_logger, logfmt

log = get_logger("manager")

STREAMS_PER_CALL_MAX = 1_000


class AdminService:
    """Replies once the request is carried out, or with an error that says what it waits for. Single replicas: see ReplicaAdmin;
    status: see StatusService."""

    def __init__(self, config: ManagerConfig, peers: Peers, registrar: Registrar, repair: RepairLoop) -> None:
        self._config = config
        self._peers = peers
        self._registrar = registrar
        self._repair = repair
        self._watcher = ClusterWatcher(peers, repair)
        self._maker = StreamMaker(config, peers, registrar, repair, self._watcher)
        # Held while a topic is created or streams are placed by a view.
        self._making = asyncio.Lock()
        # How many callers create a topic of this name now, and how many topics were deleted.
        self._names: Counter[str] = Counter()
        self._deletions = 0

    def register(self, dispatcher: Dispatcher) -> None:
        on_request(dispatcher, messages.CreateTopic, self._create_topic)
        on_request(dispatcher, messages.DeleteTopic, self._delete_topic)
        on_request(dispatcher, messages.AddStream, self._add_stream)
        dispatcher.on_async(messages.AddNode, self._add_node)
        on_request(dispatcher, messages.RemoveNode, self._remove_node)
        on_request(dispatcher, messages.AdminSealStream, self._seal)
        on_request(dispatcher, messages.AdminUnsealStream, self._unseal)

    # --- topics and streams -----------------------------------------------------------------------------------

    async def _create_topic(self, request: messages.CreateTopic, caller: Caller) -> Message:
        """A repeated call is harmless: it completes what an earlier one left unfinished."""
        _check_name(request.name)
        wanted = request.streams or self._config.streams
        if not 1 <= wanted <= STREAMS_PER_CALL_MAX:
            raise InvalidRequest(
                f"a topic is created with 1 to {STREAMS_PER_CALL_MAX} log streams, not {wanted}"
            )
        async with self._seen(request.name) as snapshot:
            topic = snapshot.view.topic_named(request.name)
            present = snapshot.view.streams_of(topic.topic) if topic else ()
            if request.streams and len(present) > request.streams:
                raise PreconditionFailed(
                    f"topic {request.name!r} already exists, with {len(present)} log streams"
                )
            if not present:  # refuse before creating a topic that can have no stream
                snapshot, _ = await self._maker.place_replicas(
                    request.replicas,
                    sequenced=request.ordering is Ordering.SEQUENCED,
                    grouping=request.grouping,
                    seen=snapshot,
                )
            caller.check()
            if topic is None or not _same_shape(topic, request):  # the repository refuses another shape
                ask = messages.RegisterTopic(
                    request.name, request.ordering, request.first, request.stripe_size, request.grouping
                )
                topic = (await self._peers.ask_repository(ask, messages.TopicReply)).topic
            streams = [stream.log_stream for stream in present]
            if request.streams or not present:
                with self._repair.making(topic.topic):
                    streams = await self._make_streams(topic, wanted, request.replicas, snapshot)
        await self._watcher.wait_running(f"topic {request.name!r} is created", streams)
        return messages.TopicReply(topic)

    @asynccontextmanager
    async def _seen(self, name: str) -> AsyncIterator[Snapshot]:
        """The lock, with a snapshot of the cluster. Callers that create different topics concurrently share one snapshot, taken
        before they get the lock: with a thousand streams a snapshot takes longer than creating another stream."""
        loop = asyncio.get_running_loop()
        contended, deletions = name in self._names, self._deletions
        self._names[name] += 1
        try:
            snapshot, seen_at = await self._watcher.snapshot(), loop.time()
            async with self._making:
                late = loop.time() > seen_at + SNAPSHOT_LASTS_S
                if contended or late or deletions != self._deletions:  # the snapshot may be outdated
                    snapshot = await self._watcher.snapshot()
                yield snapshot
        finally:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]

    async def _make_streams(
        self, topic: Topic, wanted: int, replicas: int, snapshot: Snapshot
    ) -> list[LogStreamID]:
        """Create streams until there are as many as wanted. Another manager may create the same topic: the repository refuses
        surplus streams, and its count decides. One snapshot serves for all, because with a thousand streams it takes longer than
        creating one. Only a chain is placed by the existing chains, and needs a new snapshot."""
        present = [stream.log_stream for stream in snapshot.view.streams_of(topic.topic)]
        while len(present) < wanted:
            seen = None if topic.sequenced else snapshot
            try:
                present.append(await self._maker.make(topic, replicas, streams_max=wanted, seen=seen))
            except PreconditionFailed:
                snapshot = await self._watcher.snapshot()
                present = [stream.log_stream for stream in snapshot.view.streams_of(topic.topic)]
                if len(present) < wanted:
                    raise
        return present

    async def _add_stream(self, request: messages.AddStream, caller: Caller) -> Message:
        async with self._making:
            topic = await self._topic(request.topic)
            made = await self._maker.make(topic, request.replicas, before=caller.check)
        snapshot = await self._watcher.wait_running(f"log stream {made} is created", [made])
        return messages.StreamReply(snapshot.stream(made))

    async def _delete_topic(self, request: messages.DeleteTopic, caller: Caller) -> Message:
        """Remove it from the view first (R-REG-5), then the data on nodes that answer; the rest stays there, unregistered."""
        async with self._making:
            topic = await self._topic(request.name)
            snapshot = await self._watcher.snapshot()
            streams = snapshot.view.streams_of(topic.topic)
            unregister = messages.UnregisterTopic(topic.topic, request.forced)
            caller.check()
            await self._peers.ask_repository(unregister, Message)
            self._deletions += 1  # now, not before: later snapshots show it
        for stream in streams:
            living = [node for node in stream.replicas if node in snapshot.nodes]
            addresses = [found.address for node in living if (found := snapshot.view.node(node)) is not None]
            remove = messages.RemoveLogStream(
                stream.log_stream,
                cluster_uuid=snapshot.view.uuid,
                forced=True,  # an operator has decided
            )
            failures = await self._peers.ask_all(addresses, remove)
            if any(failures) or len(living) < len(stream.replicas):
                log.warning(
                    logfmt("data of a deleted log stream is left on a node", log_stream=stream.log_stream)
                )
        return messages.Done()

    # --- nodes ------------------------------------------------------------------------------------------------

    async def _add_node(self, request: messages.AddNode, payload: bytearray) -> Message:
        await self._registrar.register(request.address)
        self._repair.wake()
        return messages.Done()

    async def _remove_node(self, request: messages.RemoveNode, caller: Caller) -> Message:
        async with self._making:
            view = (await self._watcher.snapshot()).view
            if view.node(request.node) is None:
                raise InvalidRequest(f"there is no storage node {request.node}: see `varlog node list`")
            if held := [stream.log_stream for stream in view.streams_on(request.node)]:
                raise PreconditionFailed(
                    f"storage node {request.node} has replicas of log streams {held}: move each to another node with "
                    f"`varlog stream replace STREAM --old {request.node}`, or stop the node and wait until they are replaced"
                )
            caller.check()
            await self._peers.ask_repository(messages.UnregisterNode(request.node), Message)
        return messages.Done()

    # --- seal and unseal -----------------------------------------------------------------------------

    async def _seal(self, request: messages.AdminSealStream, caller: Caller) -> Message:
        """Stored in the repository: no manager unseals it before an operator does."""
        self._refuse_sequenced(request.log_stream)
        await self._set_sealed_by_admin(request.log_stream, True, caller)

        def sealed(snapshot: Snapshot) -> bool:
            step = snapshot.steps.get(request.log_stream)
            settled = isinstance(step, RepairReplica) or (isinstance(step, NoStep) and step.settled)
            return snapshot.stream(request.log_stream).state is StreamState.SEALED and settled

        snapshot = await self._watcher.wait(
            f"log stream {request.log_stream} is to be sealed", [request.log_stream], sealed
        )
        return messages.StreamReply(snapshot.stream(request.log_stream))

    async def _unseal(self, request: messages.AdminUnsealStream, caller: Caller) -> Message:
        await self._set_sealed_by_admin(request.log_stream, False, caller)
        snapshot = await self._watcher.wait_running(
            f"log stream {request.log_stream} is to be unsealed", [request.log_stream]
        )
        return messages.StreamReply(snapshot.stream(request.log_stream))

    async def _set_sealed_by_admin(
        self, log_stream: LogStreamID, sealed_by_admin: bool, caller: Caller
    ) -> None:
        """A repository that does not answer is asked for as long as the caller waits."""
        caller.check()
        timeout_s = min(CALL_TIMEOUT_S, caller.remaining_s)
        await self._peers.ask_repository(
            messages.SetSealedByAdmin(log_stream, sealed_by_admin), messages.StreamReply, timeout_s=timeout_s
        )

    def _refuse_sequenced(self, log_stream: LogStreamID) -> None:
        view = self._repair.view
        stream = view.stream(log_stream) if view is not None else None
        topic = view.topic(stream.topic) if view is not None and stream is not None else None
        if topic is not None and topic.sequenced:
            raise PreconditionFailed(
                f"log stream {log_stream} belongs to a sequenced topic, striped over its log streams: one cannot be sealed alone"
            )

    # --- helpers ----------------------------------------------------------------------------------------------

    async def _topic(self, name: str) -> Topic:
        found = (await self._watcher.snapshot()).view.topic_named(name)
        if found is None:
            raise UnknownTopic(name)
        return found


def _same_shape(topic: Topic, request: messages.CreateTopic) -> bool:
    return (topic.ordering, topic.first) == (request.ordering, request.first) and (
        not topic.sequenced
        or (topic.stripe_size, topic.grouping) == (request.stripe_size or STRIPE_SIZE, request.grouping)
    )


def _check_name(name: str) -> None:
    try:
        check_topic_name(name)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


class ReplicaAdmin:
    """Requests about single replicas: move one, sync one now (R-REG-6, R-SYNC-1). The repair loop carries out all that needs more
    than one step."""

    def __init__(self, peers: Peers, repair: RepairLoop) -> None:
        self._peers = peers
        self._repair = repair
        self._watcher = ClusterWatcher(peers, repair)

    def register(self, dispatcher: Dispatcher) -> None:
        on_request(dispatcher, messages.AdminReplaceReplica, self._replace)
        on_request(dispatcher, messages.AdminSyncReplica, self._sync)

    async def _replace(self, request: messages.AdminReplaceReplica, caller: Caller) -> Message:
        """Replies when the old replica has left; the new one may still be syncing. A repeated call is harmless."""
        snapshot = await self._watcher.snapshot()
        log_stream = request.log_stream
        stream = snapshot.stream(log_stream)
        if request.old not in stream.replicas and request.new in stream.replicas:
            return messages.StreamReply(stream)
        new = request.new or _spare(snapshot, stream)
        # A new node that is a replica already has joined the only one, to replace it.
        move = Move(request.old, new, len(stream.replicas) - (new in stream.replicas))
        _check(snapshot, stream, move)
        if snapshot.is_sequenced(stream) and new in stream.replicas:
            raise InvalidRequest(f"log stream {log_stream} already has a replica on node {new}")
        caller.check()
        if self._repair.moves.setdefault(log_stream, move) != move:
            raise PreconditionFailed(
                f"another replica of log stream {log_stream} is being moved: wait until that is done"
            )
        try:
            snapshot = await self._watcher.wait(
                f"the replica on node {move.old} is to move to node {move.new}",
                [log_stream],
                lambda snapshot: move.old not in snapshot.stream(log_stream).replicas,
            )
        finally:
            # A sequenced stream fills the new unit before the old one leaves: that continues, however long it takes.
            if not snapshot.is_sequenced(stream):
                self._repair.moves.pop(log_stream, None)
            self._repair.wake()
        return messages.StreamReply(snapshot.stream(log_stream))

    async def _sync(self, request: messages.AdminSyncReplica, caller: Caller) -> Message:
        """Start a sync; a repeated call returns its progress."""
        snapshot = await self._watcher.snapshot()
        caller.check()
        stream, node = snapshot.stream(request.log_stream), request.node
        if node not in stream.replicas:
            raise InvalidRequest(
                f"log stream {stream.log_stream} has no replica on node {node}: see `varlog status`"
            )
        if snapshot.is_sequenced(stream):
            return await self._sync_unit(snapshot, stream, node)
        case = StreamCondition.of(stream, snapshot.statuses_of(stream), ALONE)
        if case.is_whole(node):
            end = case.known[node].committed_end
            return messages.SyncReply(SyncStatus(SyncState.COMPLETE, node, end, end))
        if stream.state is not StreamState.SEALED or node not in case.known or not case.is_behind(node):
            why = self._activity_text(stream) or "it is being sealed"
            raise PreconditionFailed(f"the replica on node {node} cannot be synced now: {why}")
        sources = case.sources(node)
        if not sources:
            raise PreconditionFailed(
                f"no other replica of log stream {stream.log_stream} is complete: there is nothing to sync from"
            )
        source, address = sources[0], _address(snapshot, sources[0])
        ask = messages.SyncReplica(stream.log_stream, stream.epoch, ReplicaAddress(source, address))
        return await self._peers.ask(_address(snapshot, node), ask, messages.SyncReply)

    def _activity_text(self, stream: LogStream) -> str:
        activity = self._repair.activity(stream.log_stream)
        return sentence(activity) if activity is not None else ""

    async def _sync_unit(self, snapshot: Snapshot, stream: LogStream, node: NodeID) -> Message:
        """Only a unit that is out of sync can be behind its chain; the repair loop then lets it join."""
        projection = snapshot.view.projection(stream.topic)
        if projection is None or node not in snapshot.nodes:
            raise PreconditionFailed(
                f"the unit on node {node} cannot be filled now: {self._activity_text(stream)}"
            )
        chain = projection.chain(stream.log_stream)
        if node in chain.nodes:
            newest = snapshot.unit(stream.log_stream, node)
            end = LLSN(newest.newest + 1) if newest is not None else FIRST_LLSN
            return messages.SyncReply(SyncStatus(SyncState.COMPLETE, node, end, end))
        if chain.tail not in snapshot.nodes:
            raise PreconditionFailed(
                f"node {chain.tail}, which has everything, does not answer: nothing to sync from"
            )
        source = ReplicaAddress(chain.tail, _address(snapshot, chain.tail))
        ask = messages.SyncUnit(stream.log_stream, source, max_epoch=projection.epoch)
        return await self._peers.ask(_address(snapshot, node), ask, messages.SyncReply)


def _spare(snapshot: Snapshot, stream: LogStream) -> NodeID:
    found = next((node for node in snapshot.spares() if node not in stream.replicas), None)
    if found is None:
        raise PreconditionFailed(
            "no other storage node is alive and has room: add one with `varlog node add`"
        )
    return found


def _check(snapshot: Snapshot, stream: LogStream, move: Move) -> None:
    if move.old not in stream.replicas:
        raise InvalidRequest(
            f"log stream {stream.log_stream} has no replica on node {move.old}: see `varlog status`"
        )
    if move.new not in snapshot.nodes:
        raise PreconditionFailed(
            f"storage node {move.new} is not registered, or does not answer: see `varlog node list`"
        )
    taken = move.new in stream.replicas and len(stream.replicas) > 2
    if taken or move.new == move.old:
        raise InvalidRequest(f"log stream {stream.log_stream} already has a replica on node {move.new}")
    if move.new not in stream.replicas and move.new not in snapshot.spares():
        raise PreconditionFailed(
            f"storage node {move.new} has no room for another replica: see `varlog status`"
        )


def _address(snapshot: Snapshot, node: NodeID) -> str:
    return snapshot.nodes[node].address


class Caller:
    """The client of a request, and whether it still waits. Created when the request arrives: its time counts from then.

    A request waits in line, for a snapshot, or for nodes to start. What begins after its caller gave up would surprise it: a stream
    that it created elsewhere meanwhile would exist twice, one that it no longer wants sealed would be sealed.
    """

    def __init__(self, call: Call | None, within_ms: int) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + within_ms / 1000 if within_ms else math.inf

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._until - self._loop.time())

    def check(self) -> None:
        """Call right before the first change; what has begun is finished. PreconditionFailed: the caller has given up."""
        if self.remaining_s <= 0:
            raise PreconditionFailed("it was not started: its caller's deadline passed while it waited")
        if self._call is not None and self._call.connection.closed:
            raise PreconditionFailed("it was not started: its caller's connection closed while it waited")


R = TypeVar(
    "R",
    messages.AddStream,
    messages.CreateTopic,
    messages.DeleteTopic,
    messages.AdminReplaceReplica,
    messages.AdminSealStream,
    messages.AdminSyncReplica,
    messages.AdminUnsealStream,
    messages.RemoveNode,
)


def on_request(
    dispatcher: Dispatcher, kind: type[R], handler: Callable[[R, Caller], Coroutine[Any, Any, Answer]]
) -> None:
    """Run `handler` in a task for every `kind`; it checks the caller before its first change."""
    dispatcher.on_call(kind, lambda call, request: handler(request, Caller(call, request.within_ms)))
