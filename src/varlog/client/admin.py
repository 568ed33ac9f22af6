"""Admin: administration of topics, log streams and storage nodes, and status.

Makes typed calls to the manager and to the metadata repository.
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

# Creating or sealing a stream takes several steps on several nodes.
TIMEOUT_S = 15.0
# One request to a sequencer, which answers from memory.
SEQUENCER_S = 1.0
# Adopting an order reads the commit rows of all nodes, page by page.
ADOPT_S = 300.0


class Admin:
    """Administration of one cluster. Created by `connect_admin`; used from one event loop."""

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
        """Create a topic with `streams` log streams of `replicas` replicas (0: the cluster's default). Returns the topic, also if
        it already exists.

        `first` is the position of its first entry; a copy of a topic whose beginning was trimmed needs it. `stripe_size` and
        `grouping` apply to sequenced topics: the number of consecutive positions per log stream (0: the default), and what forms
        a replica group."""
        try:
            check_topic_name(name)
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        request = CreateTopic(
            name, streams, replicas, Ordering(ordering), GLSN(first), stripe_size, Grouping(grouping)
        )
        return (await self._manager(request, TopicReply)).topic

    async def delete_topic(self, name: str, *, forced: bool = False) -> None:
        """Delete a topic. A stopped topic is deleted only if `forced`: see `adopt_order`."""
        await self._manager(DeleteTopic(name, forced), Done)

    async def adopt_order(self, name: str, *, dry_run: bool = True) -> OrderAdoption:
        """Adopt the order of a stopped topic from the storage nodes, or (`dry_run`) report what would be adopted, what is missing,
        and which nodes contradict each other. The order is adopted only if the nodes know every position up to the newest one
        that any of them knows; `adopted` is then true."""
        topic = await self._topic(name)
        ask = AdoptOrder(topic.topic, dry_run)
        return (await self._routing.ask_repository(ask, AdoptOrderReply, ADOPT_S)).adoption

    async def topics(self) -> tuple[Topic, ...]:
        return (await self.view()).topics

    async def topic_mark(self, name: str) -> TopicMark:
        """The newest position and the newest trimmed position of a topic."""
        topic = await self._topic(name)
        if topic.sequenced:
            return TopicMark(topic.topic, await self._sequenced_tail(topic), topic.trimmed)
        tail = await self._routing.ask_repository(GetTail(topic.topic), GetTailReply, self._timeout_s)
        return TopicMark(topic.topic, tail.high_watermark, tail.trimmed)

    async def _sequenced_tail(self, topic: Topic) -> GLSN:
        """The newest position that the sequencer has assigned. A replaced sequencer refuses; the newest view names its
        successor."""
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
        """Seal a stream: it accepts no appends until an operator unseals it."""
        return (await self._manager(AdminSealStream(LogStreamID(log_stream)), StreamReply)).stream

    async def unseal_stream(self, log_stream: LogStreamID | int) -> LogStream:
        return (await self._manager(AdminUnsealStream(LogStreamID(log_stream)), StreamReply)).stream

    async def replace_replica(
        self, log_stream: LogStreamID | int, old: NodeID | int, new: NodeID | int = 0
    ) -> LogStream:
        """Move a replica from node `old` to node `new` (0: the node with the most free space). Returns once the old replica has
        left; the new one may still be copying."""
        request = AdminReplaceReplica(LogStreamID(log_stream), NodeID(old), NodeID(new))
        return (await self._manager(request, StreamReply)).stream

    async def sync_replica(self, log_stream: LogStreamID | int, node: NodeID | int) -> SyncStatus:
        """Start filling a replica that is behind from a complete one. Returns the progress of the copy."""
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
        """The named readers of a topic, or of all topics."""
        found = EVERY_TOPIC if topic is None else (await self._topic(topic)).topic
        return await self._names.readers(found, self._timeout_s)

    async def forget_reader(self, topic: str, name: str) -> None:
        """Forget a named reader, so that no trim waits for it. Forgetting a name that does not exist does nothing."""
        await self._names.forget_reader((await self._topic(topic)).topic, name, self._timeout_s)

    async def writers(self, topic: str | None = None) -> tuple[NamedWriter, ...]:
        """The named writers of a topic, or of all topics, each with its newest batch."""
        found = EVERY_TOPIC if topic is None else (await self._topic(topic)).topic
        return await self._names.writers(found, self._timeout_s)

    async def forget_writer(self, topic: str, name: str) -> None:
        """Forget a named writer: a job that uses this name later starts over. Forgetting a name that does not exist does
        nothing."""
        await self._names.forget_writer((await self._topic(topic)).topic, name, self._timeout_s)

    # --- Storage nodes --------------------------------------------------------------------------------------------------

    async def add_node(self, address: str) -> None:
        """Register the storage node that listens at `address`."""
        await self._manager(AddNode(address), Done)

    async def remove_node(self, node: NodeID | int) -> None:
        await self._manager(RemoveNode(NodeID(node)), Done)

    async def nodes(self) -> tuple[StorageNode, ...]:
        return (await self.view()).nodes

    # --- The cluster ----------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> ClusterID:
        """The id of this cluster."""
        return self._routing.view.cluster

    async def view(self) -> ClusterView:
        """The newest view of the metadata repository."""
        return await self._routing.refresh(self._timeout_s)

    async def leader(self) -> str:
        """The address of the metadata repository that leads now."""
        await self._routing.refresh(self._timeout_s)
        return self._routing.repository.address

    async def status(self) -> ClusterStatus:
        """The view, the last status of each storage node, and the newest position of every topic, as the manager sees them."""
        return (await self._manager(GetClusterStatus(), GetClusterStatusReply)).status

    async def _topic(self, name: str) -> Topic:
        found = (await self.view()).topic_named(name)
        if found is None:
            raise UnknownTopic(name)
        return found

    async def _manager(self, request: Message, answer: type[M]) -> M:
        """Send a request to the manager that the newest view names. It is retried only while it certainly did not arrive. A request
        that changes something carries the time left, so that the manager does not start it after the caller's deadline."""
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
                    raise Unavailable(f"the manager at {address} did not answer: {error}") from error
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
    """Returns the request with the time that its caller waits, if the message has a field for it."""
    if "within_ms" not in request.__struct_fields__:
        return request
    return msgspec.structs.replace(request, within_ms=max(1, int(wait_s * 1000)))
