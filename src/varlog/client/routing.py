"""[A2 R2] Routing: the cached ClusterView, its refresh, connections to its nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from varlog.client.append_rules import TRY_S_MIN
from varlog.client.failure_detector import FailureDetector
from varlog.client.retry import Backoff
from varlog.client.routing_rules import running_streams
from varlog.model.cluster import ClusterView, LogStream, Topic
from varlog.model.commit import TopicMark
from varlog.model.errors import NotInCluster, Unavailable, UnknownTopic, VarlogError
from varlog.model.ids import ANY_CLUSTER, ClusterID, NodeID
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.rpc.leader import LeaderClient
from varlog.rpc.messages import Done, GetTail, GetTailReply, GetView, GetViewReply, Message, Suspect
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import CallTimeout, Connection, ConnectionLost
from varlog.runtime.environment import Environment
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.single_flight import SingleFlight
from varlog.runtime.tasks import Tasks

M = TypeVar("M", bound=Message)

# Timeout of one try of an idempotent call. Longer than any healthy response takes, shorter than a caller's timeout.
ATTEMPT_S = 3.0
# A long poll of the view while there are subscribers: it is answered immediately when something changes.
WATCH_S = 20.0
# A view that is in use is refreshed about this often, even if nothing fails.
REFRESH_S = 5.0
# A view of more log streams than this is refreshed proportionally less often: a process may have a log, and a view, per topic.
STREAMS_PER_REFRESH = 100
# A topic that stays stopped for longer than this needs an operator.
STOPPED_S = 3.0

logger = get_logger("client")


class Closed(Unavailable):
    """The client itself was closed: waiting is pointless."""


class Routing:
    """What one client knows of the cluster. `topic_name` is the topic of its log; "" for administration."""

    def __init__(
        self,
        pool: ConnectionPool,
        environment: Environment,
        repository: str,
        *,
        topic_name: str = "",
        cluster: ClusterID = ANY_CLUSTER,
    ) -> None:
        self.environment = environment
        self.repository = LeaderClient(pool, repository)
        self.topic_name = topic_name
        self.view = ClusterView(cluster, 0)
        self.tasks = Tasks("client", self._failed)
        self.turn = environment.entropy.randrange(1 << 16)
        self.trimmed: GLSN = NO_GLSN  # the topic's newest trimmed position, as of the view
        self.stopped: str = ""  # why the topic is stopped, as of the view
        self.closed = False
        self._cluster = cluster
        self._pool = pool
        self._refreshing = SingleFlight(self.tasks, "refresh")
        self._watchers: dict[int, Callable[[], None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._running: tuple[LogStream, ...] = ()
        self._cached: dict[NodeID, Connection] = {}
        self._in_use = False
        self._keeping_fresh: asyncio.Task[None] | None = None
        self.failure_detector = FailureDetector(self._suspect)

    # --- The view -----------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> Topic:
        found = self.view.topic_named(self.topic_name)
        if found is None:
            raise UnknownTopic(self.topic_name)
        return found

    @property
    def streams(self) -> tuple[LogStream, ...]:
        return self.view.streams_of(self.topic.topic)

    async def refresh(self, timeout_s: float) -> ClusterView:
        """Fetch the newest view; concurrent callers share one request."""
        backoff = Backoff(self.environment, timeout_s)
        while True:
            try:
                await asyncio.wait_for(asyncio.shield(self._refresh_task()), backoff.remaining_s)
                return self.view
            except (Unavailable, TimeoutError) as error:
                self.check_open()
                if backoff.spent:
                    raise self._silent(timeout_s, error) from error
            await backoff.wait()

    def refresh_soon(self) -> None:
        """Start a refresh unless one is in flight, without waiting for it."""
        if not self.closed:
            _ = self._refresh_task()

    def _refresh_task(self) -> asyncio.Task[None]:
        """The refresh in flight, or a new one."""
        self.check_open()
        return self._refreshing.join(lambda: self._refresh(0, 0.0))

    async def _refresh(self, newer_than: int, wait_s: float) -> None:
        answer = await self.repository.call(GetView(newer_than, wait_s), timeout_s=wait_s + ATTEMPT_S)
        self._learn(expect(answer, GetViewReply))

    def _learn(self, reply: GetViewReply) -> None:
        view = reply.view
        if self._cluster != ANY_CLUSTER and view.cluster != self._cluster:
            raise NotInCluster(self._cluster, view.cluster)
        self._cluster = view.cluster
        if view.revision < self.view.revision:
            return
        news = self.failure_detector.suspected(reply.suspects)
        if view != self.view:
            news = True
            self._adopt(view)
        if news:
            for changed in list(self._watchers.values()):
                changed()

    def _adopt(self, view: ClusterView) -> None:
        self.repository.learn(view.repositories)
        before = {(stream.log_stream, stream.epoch) for stream in self._running}
        topic = view.topic_named(self.topic_name)
        self.view = view
        self._cached.clear()  # a node may have a new address
        self._running = running_streams(view, topic.topic) if topic else ()
        self.trimmed = topic.trimmed if topic else NO_GLSN
        self.stopped = topic.stopped if topic else ""
        for stream in self._running:
            if (stream.log_stream, stream.epoch) not in before:
                self.failure_detector.stream_reopened(stream)

    async def stays_stopped(self, backoff: Backoff) -> bool:
        """Whether a fresh view says that the topic is stopped, and this lasts for a moment: the repository may be adopting its
        order from the nodes right now."""
        loop = asyncio.get_running_loop()
        until = loop.time() + min(STOPPED_S, backoff.remaining_s - TRY_S_MIN)
        while self.stopped:
            if loop.time() >= until:
                return True
            with contextlib.suppress(Unavailable):
                await self.refresh(max(TRY_S_MIN, until - loop.time()))
            if self.stopped:
                await backoff.wait()
        return False

    def use(self) -> None:
        """Mark the view as in use: it is refreshed periodically as long as it is."""
        self._in_use = True
        if self._keeping_fresh is None and not self.closed:
            self._keeping_fresh = self.tasks.spawn("keep fresh", self._keep_fresh())

    async def _keep_fresh(self) -> None:
        while self._in_use:
            self._in_use = False
            often = max(1.0, len(self.view.streams) / STREAMS_PER_REFRESH)
            await asyncio.sleep(REFRESH_S * often * (0.5 + self.environment.entropy.random()))
            if not self._watchers:  # watchers receive every change anyway
                self.refresh_soon()
        self._keeping_fresh = None

    async def wait_running(self, timeout_s: float) -> bool:
        """True once every stream of the topic runs, False at the deadline."""
        changed = asyncio.Event()
        stop_watching = self.watch(changed.set)
        try:
            async with asyncio.timeout(timeout_s):
                while not self._running or len(self._running) < len(self.streams):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            stop_watching()
        return True

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after every new view, and poll for new views, until the returned function is called."""
        key = id(changed)
        self._watchers[key] = changed
        if self._watching is None or self._watching.done():
            self._watching = self.tasks.spawn("watch", self._watch())

        def stop() -> None:
            self._watchers.pop(key, None)
            if not self._watchers and self._watching is not None:
                self._watching.cancel()
                self._watching = None

        return stop

    async def _watch(self) -> None:
        backoff = Backoff(self.environment, 0.0)
        while True:
            try:
                await self._refresh(self.view.revision, WATCH_S)
                backoff = Backoff(self.environment, 0.0)
            except Unavailable:
                await asyncio.sleep(backoff.pause_s())

    # --- Nodes and connections ------------------------------------------------------------------------------------------

    @property
    def running(self) -> tuple[LogStream, ...]:
        """The topic's streams that accept appends."""
        return self._running

    def address_of(self, node: NodeID) -> str:
        found = self.view.node(node)
        if found is None:
            raise ConnectionLost(f"node {node} is not registered", False)
        return found.address

    async def connection_to(self, node: NodeID, timeout_s: float) -> Connection:
        """A connection to a storage node. Raises ConnectionLost(sent=False) if none can be established."""
        self.check_open()
        address = self.address_of(node)
        connection = await self._pool.get(address, timeout_s)
        found = self.view.node(node)
        if found is not None and found.address == address:
            self._cached[node] = connection
        return connection

    def cached_connection(self, node: NodeID) -> Connection | None:
        """The open connection to a storage node, or None. There nearly always is one, and then the caller need not wait."""
        connection = self._cached.get(node)
        return None if connection is None or connection.closed or self.closed else connection

    def report_failure(self, node: NodeID, error: VarlogError, *, patient: bool = True) -> None:
        """Record that a read from this node failed: others are asked first for a while, and a silent node is reported
        (R-FAIL-2)."""
        if isinstance(error, ConnectionLost) or (isinstance(error, CallTimeout) and patient):
            self.failure_detector.node_failed(node, error.what, refused=not error.sent)
        else:
            self.failure_detector.node_erred(node)

    def disconnect(self, node: NodeID) -> None:
        """Drop the connection to this node, over which nothing arrives any more: the next caller connects again."""
        found = self.view.node(node)
        if found is not None:
            self.drop(found.address)

    def drop(self, address: str) -> None:
        self._pool.drop(address)

    def _suspect(self, node: NodeID, why: str) -> None:
        if not self.closed:
            _ = self.tasks.spawn("suspect", self._report_suspicion(node, why))

    async def _report_suspicion(self, node: NodeID, why: str) -> None:
        with contextlib.suppress(VarlogError):  # only a hint: other clients detect the failure themselves
            expect(await self.repository.call(Suspect(node, why), timeout_s=ATTEMPT_S), Done)

    # --- The repository and the manager -----------------------------------------------------------------------------------

    async def ask_repository(
        self, request: Message, answer: type[M], timeout_s: float, attempt_s: float = ATTEMPT_S
    ) -> M:
        """Send an idempotent request, retried until its deadline while the repository is unreachable."""
        backoff = Backoff(self.environment, timeout_s)
        while True:
            try:
                self.check_open()
                got = await self.repository.call(request, timeout_s=min(attempt_s, backoff.remaining_s))
                return expect(got, answer)
            except Unavailable as error:
                self.check_open()
                if backoff.spent:
                    raise self._silent(timeout_s, error) from error
            await backoff.wait()

    async def ask_once(self, address: str, request: Message, answer: type[M], timeout_s: float) -> M:
        """One try, including the connection setup, within `timeout_s`."""
        self.check_open()
        got, _ = await self._pool.call(address, request, timeout_s=timeout_s)
        return expect(got, answer)

    async def tail(self, timeout_s: float) -> TopicMark:
        """The newest ordered and the newest trimmed position of the repository: no acknowledged append is above the former."""
        topic = self.topic.topic
        tail = await self.ask_repository(GetTail(topic), GetTailReply, timeout_s)
        return TopicMark(topic, tail.high_watermark, tail.trimmed)

    def _silent(self, timeout_s: float, error: BaseException) -> Unavailable:
        return Unavailable(
            f"the metadata repository at {self.repository} did not answer within {timeout_s:g} s"
            + (f": {error}" if str(error) else "")
        )

    def check_open(self) -> None:
        if self.closed:
            raise Closed("the log was closed")

    async def close(self) -> None:
        self.closed = True
        for changed in list(self._watchers.values()):
            changed()
        await self.tasks.close()
        await self._pool.close()

    def _failed(self, name: str, error: BaseException) -> None:
        if not isinstance(error, Unavailable):
            logger.warning(logfmt("a task of the client ended", task=name, error=error))


def expect(answer: Message, kind: type[M]) -> M:
    """Returns the answer if it has the type that the request promises: a peer's answer is checked, not trusted."""
    if not isinstance(answer, kind):
        raise Unavailable(f"expected {kind.__name__}, got {type(answer).__name__}")
    return answer
