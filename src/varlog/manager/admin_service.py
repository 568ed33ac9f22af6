"""AdminService: what operators and clients ask of the manager: topics, streams, nodes, sealing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from varlog.manager.config import ManagerConfig
from varlog.manager.outlook import LOOK_S, Outlook
from varlog.manager.peers import Peers
from varlog.manager.placement_rules import place
from varlog.manager.registrar import Registrar
from varlog.manager.repair_loop import RepairLoop
from varlog.manager.repair_steps import MendReplica, Nothing
from varlog.manager.snapshot import Snapshot
from varlog.model.cluster import LogStream, Ordering, StreamState, Topic
from varlog.model.epoch import NO_EPOCH
from varlog.model.errors import (
    InvalidRequest,
    Refused,
    Rejected,
    UnknownTopic,
    VarlogError,
)
from varlog.model.ids import LogStreamID, NodeID, TopicID, check_topic_name
from varlog.rpc import messages
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import Message
from varlog.runtime.logs import get_logger, told

log = get_logger("manager")

NODES_TIMEOUT_S = 5.0
STREAMS_PER_CALL_MAX = 1_000


class AdminService:
    """Answers when what was asked for is there, or with an error that says what it waits for. What becomes of replicas is asked of
    ReplicaDesk, how everything is of StatusService."""

    def __init__(self, config: ManagerConfig, peers: Peers, registrar: Registrar, repair: RepairLoop) -> None:
        self._config = config
        self._peers = peers
        self._registrar = registrar
        self._repair = repair
        self._outlook = Outlook(peers, repair)
        # Two callers that make the same topic, or place streams by the same view, take turns.
        self._making = asyncio.Lock()

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on_async(messages.CreateTopic, self._create_topic)
        dispatcher.on_async(messages.DeleteTopic, self._delete_topic)
        dispatcher.on_async(messages.AddStream, self._add_stream)
        dispatcher.on_async(messages.AddNode, self._add_node)
        dispatcher.on_async(messages.RemoveNode, self._remove_node)
        dispatcher.on_async(messages.OperateSeal, self._seal)
        dispatcher.on_async(messages.OperateUnseal, self._unseal)

    # --- topics and streams -----------------------------------------------------------------------------------

    async def _create_topic(self, request: messages.CreateTopic, payload: bytearray) -> Message:
        """Again is harmless: it finishes what an earlier call left half made."""
        _check_name(request.name)
        if request.ordering is not Ordering.COMMITTED:
            raise Refused(
                f"topics with {request.ordering} ordering are not served yet: make it with committed ordering"
            )
        wanted = request.streams or self._config.streams
        if not 1 <= wanted <= STREAMS_PER_CALL_MAX:
            raise InvalidRequest(
                f"a topic is made with 1 to {STREAMS_PER_CALL_MAX} log streams, not {wanted}"
            )
        async with self._making:
            snapshot = await self._outlook.look()
            topic = snapshot.view.topic_named(request.name)
            present = snapshot.view.streams_of(topic.topic) if topic else ()
            if request.streams and len(present) > request.streams:
                raise Refused(f"topic {request.name!r} is there already, with {len(present)} log streams")
            if not present:
                await self._place(request.replicas)  # refuse before a topic is made that can have no stream
            if topic is None or topic.first != request.first:  # the repository refuses another first position
                ask = messages.RegisterTopic(request.name, request.ordering, request.first)
                topic = (await self._peers.ask_repository(ask, messages.TopicIs)).topic
            if request.streams or not present:
                present = await self._make_streams(topic, wanted, request.replicas)
        await self._outlook.wait_running(
            f"topic {request.name!r} is made", [stream.log_stream for stream in present]
        )
        return messages.TopicIs(topic)

    async def _make_streams(self, topic: Topic, wanted: int, replicas: int) -> tuple[LogStream, ...]:
        """Streams until there are as many as wanted. Another manager may make the same topic: the repository refuses what would be
        too many, and what it has counts."""
        while True:
            present = (await self._outlook.look()).view.streams_of(topic.topic)
            if len(present) >= wanted:
                return present
            try:
                await self._make_stream(topic.topic, replicas, streams_max=wanted)
            except Refused:
                if len((await self._outlook.look()).view.streams_of(topic.topic)) < wanted:
                    raise

    async def _add_stream(self, request: messages.AddStream, payload: bytearray) -> Message:
        async with self._making:
            topic = await self._topic(request.topic)
            made = await self._make_stream(topic.topic, request.replicas)
        snapshot = await self._outlook.wait_running(f"log stream {made} is made", [made])
        return messages.StreamIs(snapshot.stream(made))

    async def _make_stream(self, topic: TopicID, replicas: int, *, streams_max: int = 0) -> LogStreamID:
        """R-REG-2: an id, the replicas on their nodes at the same time, then the repository: only then it
        exists for others."""
        snapshot, nodes = await self._place(replicas)
        new_id = await self._peers.ask_repository(messages.NewLogStreamID(), messages.LogStreamIDIs)
        log_stream = new_id.log_stream
        addresses = [found.address for node in nodes if (found := snapshot.view.node(node)) is not None]
        add = messages.AddLogStream(topic, log_stream)
        answers = await self._ask_all(addresses, add)
        failures = [answer for answer in answers if answer is not None]
        # If nothing names this stream and nothing will, what was made of it may go: while it is in no epoch, so that a word that
        # comes late cannot meet what became of it.
        remove = messages.RemoveLogStream(log_stream, NO_EPOCH)
        if failures:
            await self._ask_all(addresses, remove)
            raise failures[0]
        try:
            register = messages.RegisterLogStream(topic, log_stream, nodes, streams_max)
            await self._peers.ask_repository(register, Message)
        except (Rejected, Refused):
            await self._ask_all(addresses, remove)
            raise
        self._repair.wake()
        log.info(told("made a log stream", log_stream=log_stream, topic=topic, nodes=nodes))
        return log_stream

    async def _place(self, replicas: int) -> tuple[Snapshot, tuple[NodeID, ...]]:
        """Where a new stream goes. Too few nodes: those that were named at the start may still be coming up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NODES_TIMEOUT_S
        while True:
            snapshot = await self._outlook.look()
            try:
                return snapshot, place(snapshot.load(), replicas or self._config.replicas)
            except Refused:
                if not self._registrar.pending or loop.time() > deadline:
                    raise
            await asyncio.sleep(LOOK_S)

    async def _delete_topic(self, request: messages.DeleteTopic, payload: bytearray) -> Message:
        """Out of the view first (R-REG-5), then the data of the nodes that answer; the rest stays there,
        unregistered."""
        async with self._making:
            topic = await self._topic(request.name)
            snapshot = await self._outlook.look()
            streams = snapshot.view.streams_of(topic.topic)
            await self._peers.ask_repository(messages.UnregisterTopic(topic.topic), Message)
        for stream in streams:
            living = [node for node in stream.replicas if node in snapshot.nodes]
            addresses = [found.address for node in living if (found := snapshot.view.node(node)) is not None]
            failures = await self._ask_all(addresses, messages.RemoveLogStream(stream.log_stream))
            if any(failures) or len(living) < len(stream.replicas):
                log.warning(
                    told("data of a deleted log stream is left on a node", log_stream=stream.log_stream)
                )
        return messages.Done()

    # --- nodes ------------------------------------------------------------------------------------------------

    async def _add_node(self, request: messages.AddNode, payload: bytearray) -> Message:
        await self._registrar.register(request.address)
        self._repair.wake()
        return messages.Done()

    async def _remove_node(self, request: messages.RemoveNode, payload: bytearray) -> Message:
        async with self._making:
            view = (await self._outlook.look()).view
            if view.node(request.node) is None:
                raise InvalidRequest(f"there is no storage node {request.node}: see `varlog node list`")
            if held := [stream.log_stream for stream in view.streams_on(request.node)]:
                raise Refused(
                    f"storage node {request.node} holds replicas of log streams {held}: move each to another node with "
                    f"`varlog stream replace STREAM --old {request.node}`, or stop the node and wait until they are replaced"
                )
            await self._peers.ask_repository(messages.UnregisterNode(request.node), Message)
        return messages.Done()

    # --- seal and unseal by hand ------------------------------------------------------------------------------

    async def _seal(self, request: messages.OperateSeal, payload: bytearray) -> Message:
        """Kept at the repository: no manager unseals it before an operator does."""
        await self._peers.ask_repository(messages.HoldStream(request.log_stream, True), messages.StreamIs)

        def sealed(snapshot: Snapshot) -> bool:
            step = snapshot.steps.get(request.log_stream)
            settled = isinstance(step, MendReplica) or (isinstance(step, Nothing) and step.settled)
            return snapshot.stream(request.log_stream).state is StreamState.SEALED and settled

        snapshot = await self._outlook.wait(
            f"log stream {request.log_stream} is to be sealed", [request.log_stream], sealed
        )
        return messages.StreamIs(snapshot.stream(request.log_stream))

    async def _unseal(self, request: messages.OperateUnseal, payload: bytearray) -> Message:
        await self._peers.ask_repository(messages.HoldStream(request.log_stream, False), messages.StreamIs)
        snapshot = await self._outlook.wait_running(
            f"log stream {request.log_stream} is to be unsealed", [request.log_stream]
        )
        return messages.StreamIs(snapshot.stream(request.log_stream))

    # --- helpers ----------------------------------------------------------------------------------------------

    async def _topic(self, name: str) -> Topic:
        found = (await self._outlook.look()).view.topic_named(name)
        if found is None:
            raise UnknownTopic(name)
        return found

    async def _ask_all(self, addresses: Sequence[str], request: Message) -> list[VarlogError | None]:
        """Ask all at the same time; the error of each, or None."""

        async def ask(address: str) -> VarlogError | None:
            try:
                await self._peers.ask(address, request, Message)
            except VarlogError as error:
                return error
            return None

        return list(await asyncio.gather(*(ask(address) for address in addresses)))


def _check_name(name: str) -> None:
    try:
        check_topic_name(name)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
