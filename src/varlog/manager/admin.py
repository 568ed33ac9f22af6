"""AdminService, ReplicaAdmin: what operators and clients request of the manager"""

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
from varlog.manager.registrar import LOOK_LASTS_S, Registrar, StreamMaker
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
    """Answers when what was asked for is there, or with an error that says what it waits for. What becomes of replicas is asked of
    ReplicaAdmin, how everything is of StatusService."""

    def __init__(self, config: ManagerConfig, peers: Peers, registrar: Registrar, repair: RepairLoop) -> None:
        self._config = config
        self._peers = peers
        self._registrar = registrar
        self._repair = repair
        self._watcher = ClusterWatcher(peers, repair)
        self._maker = StreamMaker(config, peers, registrar, repair, self._watcher)
        # Two callers that make the same topic, or place streams by the same view, take turns.
        self._making = asyncio.Lock()
        # How many callers make a topic of this name now, and how many topics were deleted.
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
        """Again is harmless: it finishes what an earlier call left half made."""
        _check_name(request.name)
        wanted = request.streams or self._config.streams
        if not 1 <= wanted <= STREAMS_PER_CALL_MAX:
            raise InvalidRequest(
                f"a topic is made with 1 to {STREAMS_PER_CALL_MAX} log streams, not {wanted}"
            )
        async with self._seen(request.name) as snapshot:
            topic = snapshot.view.topic_named(request.name)
            present = snapshot.view.streams_of(topic.topic) if topic else ()
            if request.streams and len(present) > request.streams:
                raise PreconditionFailed(
                    f"topic {request.name!r} is there already, with {len(present)} log streams"
                )
            if not present:  # refuse before a topic is made that can have no stream
                snapshot, _ = await self._maker.place(
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
        await self._watcher.wait_running(f"topic {request.name!r} is made", streams)
        return messages.TopicReply(topic)

    @asynccontextmanager
    async def _seen(self, name: str) -> AsyncIterator[Snapshot]:
        """The caller's turn, with a look at the cluster. Those who make different topics at the same time share one look, taken
        before their turns: with a thousand streams a look takes longer than making another."""
        loop = asyncio.get_running_loop()
        contended, deletions = name in self._names, self._deletions
        self._names[name] += 1
        try:
            snapshot, seen_at = await self._watcher.look(), loop.time()
            async with self._making:
                late = loop.time() > seen_at + LOOK_LASTS_S
                if contended or late or deletions != self._deletions:  # what was seen may be over
                    snapshot = await self._watcher.look()
                yield snapshot
        finally:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]

    async def _make_streams(
        self, topic: Topic, wanted: int, replicas: int, snapshot: Snapshot
    ) -> list[LogStreamID]:
        """Streams until there are as many as wanted. Another manager may make the same topic: the repository refuses what would be
        too many, and what it has counts. One look is enough for all: a look at a thousand streams takes longer than making one.
        Only a chain is placed by the chains that are there, so it looks again."""
        present = [stream.log_stream for stream in snapshot.view.streams_of(topic.topic)]
        while len(present) < wanted:
            seen = None if topic.sequenced else snapshot
            try:
                present.append(await self._maker.make(topic, replicas, streams_max=wanted, seen=seen))
            except PreconditionFailed:
                snapshot = await self._watcher.look()
                present = [stream.log_stream for stream in snapshot.view.streams_of(topic.topic)]
                if len(present) < wanted:
                    raise
        return present

    async def _add_stream(self, request: messages.AddStream, caller: Caller) -> Message:
        async with self._making:
            topic = await self._topic(request.topic)
            made = await self._maker.make(topic, request.replicas, before=caller.check)
        snapshot = await self._watcher.wait_running(f"log stream {made} is made", [made])
        return messages.StreamReply(snapshot.stream(made))

    async def _delete_topic(self, request: messages.DeleteTopic, caller: Caller) -> Message:
        """Out of the view first (R-REG-5), then the data of the nodes that answer; the rest stays there,
        unregistered."""
        async with self._making:
            topic = await self._topic(request.name)
            snapshot = await self._watcher.look()
            streams = snapshot.view.streams_of(topic.topic)
            unregister = messages.UnregisterTopic(topic.topic, request.forced)
            caller.check()
            await self._peers.ask_repository(unregister, Message)
            self._deletions += 1  # now, not before: who looks from here on sees it
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
            view = (await self._watcher.look()).view
            if view.node(request.node) is None:
                raise InvalidRequest(f"there is no storage node {request.node}: see `varlog node list`")
            if held := [stream.log_stream for stream in view.streams_on(request.node)]:
                raise PreconditionFailed(
                    f"storage node {request.node} holds replicas of log streams {held}: move each to another node with "
                    f"`varlog stream replace STREAM --old {request.node}`, or stop the node and wait until they are replaced"
                )
            caller.check()
            await self._peers.ask_repository(messages.UnregisterNode(request.node), Message)
        return messages.Done()

    # --- seal and unseal by hand ------------------------------------------------------------------------------

    async def _seal(self, request: messages.AdminSealStream, caller: Caller) -> Message:
        """Kept at the repository: no manager unseals it before an operator does."""
        self._refuse_sequenced(request.log_stream)
        await self._hold(request.log_stream, True, caller)

        def sealed(snapshot: Snapshot) -> bool:
            step = snapshot.steps.get(request.log_stream)
            settled = isinstance(step, RepairReplica) or (isinstance(step, NoStep) and step.settled)
            return snapshot.stream(request.log_stream).state is StreamState.SEALED and settled

        snapshot = await self._watcher.wait(
            f"log stream {request.log_stream} is to be sealed", [request.log_stream], sealed
        )
        return messages.StreamReply(snapshot.stream(request.log_stream))

    async def _unseal(self, request: messages.AdminUnsealStream, caller: Caller) -> Message:
        await self._hold(request.log_stream, False, caller)
        snapshot = await self._watcher.wait_running(
            f"log stream {request.log_stream} is to be unsealed", [request.log_stream]
        )
        return messages.StreamReply(snapshot.stream(request.log_stream))

    async def _hold(self, log_stream: LogStreamID, held: bool, caller: Caller) -> None:
        """A repository that does not answer is asked for as long as the caller waits."""
        caller.check()
        timeout_s = min(CALL_TIMEOUT_S, caller.remaining_s)
        await self._peers.ask_repository(
            messages.HoldStream(log_stream, held), messages.StreamReply, timeout_s=timeout_s
        )

    def _refuse_sequenced(self, log_stream: LogStreamID) -> None:
        view = self._repair.view
        stream = view.stream(log_stream) if view is not None else None
        topic = view.topic(stream.topic) if view is not None and stream is not None else None
        if topic is not None and topic.sequenced:
            raise PreconditionFailed(
                f"log stream {log_stream} is of a sequenced topic, whose streams take turns: one alone cannot be sealed by hand"
            )

    # --- helpers ----------------------------------------------------------------------------------------------

    async def _topic(self, name: str) -> Topic:
        found = (await self._watcher.look()).view.topic_named(name)
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


# ReplicaAdmin: what operators ask of single replicas: move one to another node, have one filled now (R-REG-6, R-SYNC-1).


class ReplicaAdmin:
    """Takes orders; the repair loop carries out what needs more than one step."""

    def __init__(self, peers: Peers, repair: RepairLoop) -> None:
        self._peers = peers
        self._repair = repair
        self._watcher = ClusterWatcher(peers, repair)

    def register(self, dispatcher: Dispatcher) -> None:
        on_request(dispatcher, messages.AdminReplaceReplica, self._replace)
        on_request(dispatcher, messages.AdminSyncReplica, self._sync)

    async def _replace(self, request: messages.AdminReplaceReplica, caller: Caller) -> Message:
        """Answered when the old replica has left; the new one may still be being filled. Again is harmless."""
        snapshot = await self._watcher.look()
        log_stream = request.log_stream
        stream = snapshot.stream(log_stream)
        if request.old not in stream.replicas and request.new in stream.replicas:
            return messages.StreamReply(stream)
        new = request.new or _spare(snapshot, stream)
        # One that is a replica already has joined the only one, to take over from it.
        move = Move(request.old, new, len(stream.replicas) - (new in stream.replicas))
        _check(snapshot, stream, move)
        if snapshot.is_sequenced(stream) and new in stream.replicas:
            raise InvalidRequest(f"log stream {log_stream} has a replica on node {new} already")
        caller.check()
        if self._repair.moves.setdefault(log_stream, move) != move:
            raise PreconditionFailed(
                f"another replica of log stream {log_stream} is being moved: wait for that to end"
            )
        try:
            snapshot = await self._watcher.wait(
                f"the replica on node {move.old} is to move to node {move.new}",
                [log_stream],
                lambda snapshot: move.old not in snapshot.stream(log_stream).replicas,
            )
        finally:
            # A sequenced stream fills the new one before the old one leaves: that goes on, however long it takes.
            if not snapshot.is_sequenced(stream):
                self._repair.moves.pop(log_stream, None)
            self._repair.wake()
        return messages.StreamReply(snapshot.stream(log_stream))

    async def _sync(self, request: messages.AdminSyncReplica, caller: Caller) -> Message:
        """Ask once; asked again it tells how far it is."""
        snapshot = await self._watcher.look()
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
        """Only who is away can be behind its chain; the repair loop has it filled, and joined, by itself."""
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
        raise PreconditionFailed("no other storage node lives and has room: add one with `varlog node add`")
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
        raise InvalidRequest(f"log stream {stream.log_stream} has a replica on node {move.new} already")
    if move.new not in stream.replicas and move.new not in snapshot.spares():
        raise PreconditionFailed(
            f"storage node {move.new} has no room for another replica: see `varlog status`"
        )


def _address(snapshot: Snapshot, node: NodeID) -> str:
    return snapshot.nodes[node].address


# Caller: the client that asked the manager for a change, and whether it still waits for the answer.
#
# A request waits in line, for a look at the cluster or for nodes to come up. What begins after its caller gave up would surprise
# it:
# a stream that it made elsewhere meanwhile would be there twice, one that it no longer wants sealed would be sealed.


class Caller:
    """Made when the request arrives: its time counts from then."""

    def __init__(self, call: Call | None, within_ms: int) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + within_ms / 1000 if within_ms else math.inf

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._until - self._loop.time())

    def check(self) -> None:
        """To be called right before the first change; what has begun is finished. PreconditionFailed: nobody waits for it any
        more."""
        if self.remaining_s <= 0:
            raise PreconditionFailed("it was not begun: its caller's time was over before its turn came")
        if self._call is not None and self._call.connection.closed:
            raise PreconditionFailed(
                "it was not begun: its caller's connection had ended before its turn came"
            )


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
    """A task runs `handler` for every `kind`; it checks the caller before its first change."""
    dispatcher.on_call(kind, lambda call, request: handler(request, Caller(call, request.within_ms)))
