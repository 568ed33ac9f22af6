"""Admin: administration of topics, log streams, storage nodes; status.

Typed calls to the manager and the metadata repository.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypeVar

import msgspec

from varlog.client.cursor_registry import EVERY_TOPIC, CursorRegistry
from varlog.client.retry import Backoff
from varlog.client.routing import Routing
from varlog.model.cluster import (
    ClusterView,
    Grouping,
    LogStream,
    NamedReader,
    NamedWriter,
    Ordering,
    StorageNode,
    Topic,
)
from varlog.model.commit import OrderAdoption, TopicMark
from varlog.model.errors import InvalidRequest, Unavailable, UnknownTopic
from varlog.model.ids import ClusterID, LogStreamID, NodeID, check_topic_name
from varlog.model.lsn import FIRST_GLSN, GLSN
from varlog.model.status import ClusterStatus, SyncStatus
from varlog.rpc.messages import (
    AddNode,
    AddStream,
    AdminReplaceReplica,
    AdminSealStream,
    AdminSyncReplica,
    AdminUnsealStream,
    AdoptOrder,
    AdoptOrderReply,
    CreateTopic,
    DeleteTopic,
    Done,
    GetClusterStatus,
    GetClusterStatusReply,
    GetTail,
    GetTailReply,
    Message,
    NextTokens,
    NextTokensReply,
    RemoveNode,
    StreamReply,
    SyncReply,
    TopicReply,
)
from varlog.rpc.transport import CallTimeout, ConnectionLost

M = TypeVar("M", bound=Message)

# Making and sealing streams takes several steps on several nodes.
TIMEOUT_S = 15.0
# One question to a sequencer, which answers from memory.
SEQUENCER_S = 1.0
# The rows of all nodes are read, page by page.
ADOPT_S = 300.0


class Admin:
    """Administration of one cluster. Made by `connect_admin`; used from one event loop."""

    def __init__(self, routing: Routing, timeout_s: float = TIMEOUT_S) -> None:
        self._routing = routing
        self._names = CursorRegistry(routing)
        self._timeout_s = timeout_s

    # --- Topics ---------------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        streams: int = 0,
        replicas: int = 0,
        first: GLSN | int = FIRST_GLSN,
        ordering: Ordering | str = Ordering.COMMITTED,
        stripe_size: int = 0,
        grouping: Grouping | str = Grouping.STREAM,
    ) -> Topic:
        """Create a topic with `streams` log streams of `replicas` replicas (0: the cluster's default). An existing one is returned.

        `first` is the position that its first entry gets: for a copy of a topic whose beginning is gone. `stripe_size` and
        `grouping` are for a sequenced topic: how many positions one log stream has in a row (0: the default), and what a replica
        group is."""
        try:
            check_topic_name(name)
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        request = CreateTopic(
            name, streams, replicas, Ordering(ordering), GLSN(first), stripe_size, Grouping(grouping)
        )
        return (await self._manager(request, TopicReply)).topic

    async def delete_topic(self, name: str, *, forced: bool = False) -> None:
        """A stopped topic only if that is `forced`: see `adopt_order`."""
        await self._manager(DeleteTopic(name, forced), Done)

    async def adopt_order(self, name: str, *, dry_run: bool = True) -> OrderAdoption:
        """Adopt the order of a stopped topic from the storage nodes, or report what would be adopted, what is missing, and which
        nodes contradict each other. It is done only if the nodes know everything up to the newest position that any of them knows
        of: then `adopted` is true."""
        topic = await self._topic(name)
        ask = AdoptOrder(topic.topic, dry_run)
        return (await self._routing.ask_repository(ask, AdoptOrderReply, ADOPT_S)).adoption

    async def topics(self) -> tuple[Topic, ...]:
        return (await self.view()).topics

    async def topic_mark(self, name: str) -> TopicMark:
        """Newest and newest trimmed position of a topic."""
        topic = await self._topic(name)
        if topic.sequenced:
            return TopicMark(topic.topic, await self._sequenced_tail(topic), topic.trimmed)
        tail = await self._routing.ask_repository(GetTail(topic.topic), GetTailReply, self._timeout_s)
        return TopicMark(topic.topic, tail.high_watermark, tail.trimmed)

    async def _sequenced_tail(self, topic: Topic) -> GLSN:
        """What the sequencer has given last. One that was replaced meanwhile refuses, and the newest view names the other."""
        backoff = Backoff(self._routing.environment, self._timeout_s)
        while True:
            projection = self._routing.view.projection(topic.topic)
            try:
                if projection is None or projection.sequencer is None:
                    raise Unavailable(f"topic {topic.name!r} has no sequencer yet: see `varlog status`")
                ask = NextTokens(topic.topic, projection.epoch, 0)
                address = projection.sequencer.address
                tokens = await self._routing.ask_once(
                    address, ask, NextTokensReply, min(SEQUENCER_S, max(backoff.remaining_s, 0.1))
                )
                return GLSN(tokens.first - 1)
            except Unavailable:
                if backoff.spent:
                    raise
            await backoff.wait()
            await self._routing.refresh(max(backoff.remaining_s, 0.1))

    # --- Log streams ----------------------------------------------------------------------------------------------------

    async def add_stream(self, topic: str, *, replicas: int = 0) -> LogStream:
        return (await self._manager(AddStream(topic, replicas), StreamReply)).stream

    async def seal_stream(self, log_stream: LogStreamID | int) -> LogStream:
        """Stop appends to a stream, until an operator unseals it."""
        return (await self._manager(AdminSealStream(LogStreamID(log_stream)), StreamReply)).stream

    async def unseal_stream(self, log_stream: LogStreamID | int) -> LogStream:
        return (await self._manager(AdminUnsealStream(LogStreamID(log_stream)), StreamReply)).stream

    async def replace_replica(
        self, log_stream: LogStreamID | int, old: NodeID | int, new: NodeID | int = 0
    ) -> LogStream:
        """Move a replica from one node to another (0: the one with the most room). Answered when the old one has left; the new one
        may still be being filled."""
        request = AdminReplaceReplica(LogStreamID(log_stream), NodeID(old), NodeID(new))
        return (await self._manager(request, StreamReply)).stream

    async def sync_replica(self, log_stream: LogStreamID | int, node: NodeID | int) -> SyncStatus:
        """Have a replica that is behind filled from a complete one, and return how far that is."""
        return (await self._manager(AdminSyncReplica(LogStreamID(log_stream), NodeID(node)), SyncReply)).sync

    async def streams(self, topic: str | None = None) -> tuple[LogStream, ...]:
        view = await self.view()
        if topic is None:
            return view.streams
        found = view.topic_named(topic)
        if found is None:
            raise UnknownTopic(topic)
        return view.streams_of(found.topic)

    # --- Named readers and writers --------------------------------------------------------------------------------------

    async def readers(self, topic: str | None = None) -> tuple[NamedReader, ...]:
        """The named readers of a topic, or of all."""
        found = EVERY_TOPIC if topic is None else (await self._topic(topic)).topic
        return await self._names.readers(found, self._timeout_s)

    async def forget_reader(self, topic: str, name: str) -> None:
        """No trim waits for this reader any more. Forgetting a name that does not exist does nothing."""
        await self._names.forget_reader((await self._topic(topic)).topic, name, self._timeout_s)

    async def writers(self, topic: str | None = None) -> tuple[NamedWriter, ...]:
        """The named writers of a topic, or of all, each with its newest batch."""
        found = EVERY_TOPIC if topic is None else (await self._topic(topic)).topic
        return await self._names.writers(found, self._timeout_s)

    async def forget_writer(self, topic: str, name: str) -> None:
        """A job that uses this name later starts over. Forgetting a name that does not exist does nothing."""
        await self._names.forget_writer((await self._topic(topic)).topic, name, self._timeout_s)

    # --- Storage nodes --------------------------------------------------------------------------------------------------

    async def add_node(self, address: str) -> None:
        """Register the storage node that listens at `address`."""
        await self._manager(AddNode(address), Done)

    async def remove_node(self, node: NodeID | int) -> None:
        await self._manager(RemoveNode(NodeID(node)), Done)

    async def nodes(self) -> tuple[StorageNode, ...]:
        return (await self.view()).nodes

    # --- The whole ------------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> ClusterID:
        """Which cluster this is."""
        return self._routing.view.cluster

    async def view(self) -> ClusterView:
        """What the metadata repository knows."""
        return await self._routing.refresh(self._timeout_s)

    async def leader(self) -> str:
        """Where the metadata repository listens that leads now."""
        await self._routing.refresh(self._timeout_s)
        return self._routing.repository.address

    async def status(self) -> ClusterStatus:
        """The view, what each storage node said last, and every topic's newest position, as the manager sees it."""
        return (await self._manager(GetClusterStatus(), GetClusterStatusReply)).status

    async def _topic(self, name: str) -> Topic:
        found = (await self.view()).topic_named(name)
        if found is None:
            raise UnknownTopic(name)
        return found

    async def _manager(self, request: Message, answer: type[M]) -> M:
        """Ask the manager, wherever the newest view says it is. Retried only while the request certainly did not
        arrive. A change names the time that is left: the manager does not begin it later."""
        backoff = Backoff(self._routing.environment, self._timeout_s)
        address = ""
        while True:
            try:
                view = await self._routing.refresh(max(backoff.remaining_s, 0.1))
                address = view.manager_address
                if address:
                    wait_s = max(backoff.remaining_s, 0.1)
                    return await self._routing.ask_once(address, _within(request, wait_s), answer, wait_s)
            except (ConnectionLost, CallTimeout) as error:
                if error.sent or backoff.spent:
                    raise Unavailable(f"the manager at {address} gave no answer: {error}") from error
            if backoff.spent:
                raise Unavailable("the cluster has no manager: start one with `vmc start`")
            await backoff.wait()

    async def close(self) -> None:
        await self._routing.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _within(request: Message, wait_s: float) -> Message:
    """The request, with the time for which its caller waits, if it has a place for that."""
    if "within_ms" not in request.__struct_fields__:
        return request
    return msgspec.structs.replace(request, within_ms=max(1, int(wait_s * 1000)))
