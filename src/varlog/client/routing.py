"""[A2 R2] Routing: the cached ClusterView, its refresh (one at a time), and connections to whoever the view names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from varlog.client.retry import Backoff
from varlog.client.routing_rules import running
from varlog.model.cluster import ClusterView, LogStream, Topic
from varlog.model.errors import NotInCluster, Unavailable, UnknownTopic
from varlog.model.ids import ANY_CLUSTER, ClusterID, LogStreamID, NodeID
from varlog.rpc.messages import GetTail, GetView, Message, TailIs, ViewIs
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import Connection, ConnectionLost
from varlog.runtime.doors import Doors
from varlog.runtime.logs import get_logger, told
from varlog.runtime.tasks import Tasks

M = TypeVar("M", bound=Message)

# One try of a call that may be repeated. Longer than any honest answer takes, shorter than a caller's patience.
ATTEMPT_S = 3.0
# A long poll of the view while somebody subscribes: it is answered at once when something changes.
WATCH_S = 20.0
# How long a node or a stream that failed is asked only when nobody else is left.
SHUN_S = 1.0

logger = get_logger("client")


class Closed(Unavailable):
    """The client itself was closed: there is nothing to wait for."""


class Routing:
    """What one client knows of the cluster. `topic_name` is the log it is for; "" for administration."""

    def __init__(
        self,
        pool: ConnectionPool,
        doors: Doors,
        repository: str,
        *,
        topic_name: str = "",
        cluster: ClusterID = ANY_CLUSTER,
    ) -> None:
        self.doors = doors
        self.repository = repository
        self.topic_name = topic_name
        self.view = ClusterView(cluster, 0)
        self.tasks = Tasks("client", self._failed)
        self.turn = doors.entropy.randrange(1 << 16)
        self.closed = False
        self._cluster = cluster
        self._pool = pool
        self._refreshing: asyncio.Task[None] | None = None
        self._watchers: dict[int, Callable[[], None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._shunned_nodes: dict[NodeID, float] = {}
        self._shunned_streams: dict[LogStreamID, float] = {}
        self._running: tuple[LogStream, ...] = ()

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
        """The newest view; those who ask while one is on its way share it."""
        backoff = Backoff(self.doors, timeout_s)
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
        """Start a refresh unless one is under way, and do not wait for it."""
        if not self.closed:
            _ = self._refresh_task()

    def _refresh_task(self) -> asyncio.Task[None]:
        """The refresh under way, or a new one. Its failure is told to whoever waits for it, and to nobody else."""
        self.check_open()
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self.tasks.spawn("refresh", self._refresh(0, 0.0))
            self._refreshing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._refreshing

    async def _refresh(self, newer_than: int, wait_s: float) -> None:
        connection = await self._pool.get(self.repository, ATTEMPT_S)
        answer, _ = await connection.call(GetView(newer_than, wait_s), timeout_s=wait_s + ATTEMPT_S)
        self._learn(expect(answer, ViewIs).view)

    def _learn(self, view: ClusterView) -> None:
        if self._cluster != ANY_CLUSTER and view.cluster != self._cluster:
            raise NotInCluster(self._cluster, view.cluster)
        self._cluster = view.cluster
        if view.revision < self.view.revision or view == self.view:
            return
        self.view = view
        topic = view.topic_named(self.topic_name)
        self._running = running(view, topic.topic) if topic else ()
        for changed in list(self._watchers.values()):
            changed()

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
        """Call `changed` after every new view, and see to it that new ones arrive soon, until the returned function is called."""
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
        backoff = Backoff(self.doors, 0.0)
        while True:
            try:
                await self._refresh(self.view.revision, WATCH_S)
                backoff = Backoff(self.doors, 0.0)
            except Unavailable:
                await asyncio.sleep(backoff.pause_s())

    # --- Who to ask -----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> tuple[LogStream, ...]:
        """The topic's streams that take appends."""
        return self._running

    def shun_node(self, node: NodeID) -> None:
        self._shunned_nodes[node] = asyncio.get_running_loop().time() + SHUN_S

    def shun_stream(self, log_stream: LogStreamID) -> None:
        self._shunned_streams[log_stream] = asyncio.get_running_loop().time() + SHUN_S

    def shunned_nodes(self) -> dict[NodeID, float]:
        return _unexpired(self._shunned_nodes)

    def shunned_streams(self) -> dict[LogStreamID, float]:
        return _unexpired(self._shunned_streams)

    def address_of(self, node: NodeID) -> str:
        found = self.view.node(node)
        if found is None:
            raise ConnectionLost(f"node {node} is not registered", False)
        return found.address

    async def connection_to(self, node: NodeID, timeout_s: float) -> Connection:
        """A connection to a storage node; ConnectionLost(sent=False) if there is none to be had."""
        self.check_open()
        return await self._pool.get(self.address_of(node), timeout_s)

    # --- The repository and the manager -----------------------------------------------------------------------------------

    async def ask_repository(
        self, request: Message, answer: type[M], timeout_s: float, attempt_s: float = ATTEMPT_S
    ) -> M:
        """One call that may be repeated without harm, tried again until its deadline while the repository is away."""
        backoff = Backoff(self.doors, timeout_s)
        while True:
            try:
                return await self.ask_once(
                    self.repository, request, answer, min(attempt_s, backoff.remaining_s)
                )
            except Unavailable as error:
                self.check_open()
                if backoff.spent:
                    raise self._silent(timeout_s, error) from error
            await backoff.wait()

    async def ask_once(self, address: str, request: Message, answer: type[M], timeout_s: float) -> M:
        """One try, the dialling included, within `timeout_s`."""
        self.check_open()
        got, _ = await self._pool.call(address, request, timeout_s=timeout_s)
        return expect(got, answer)

    async def tail(self, timeout_s: float) -> TailIs:
        """Newest ordered and newest trimmed position, as the repository has it: no acknowledged append is above it."""
        return await self.ask_repository(GetTail(self.topic.topic), TailIs, timeout_s)

    def _silent(self, timeout_s: float, error: BaseException) -> Unavailable:
        return Unavailable(
            f"the metadata repository at {self.repository} gave no answer within {timeout_s:g} s"
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
            logger.warning(told("a task of the client ended", task=name, error=error))


def expect(answer: Message, kind: type[M]) -> M:
    """The answer, if it is of the kind that the request promises: a peer's word is checked, not trusted."""
    if not isinstance(answer, kind):
        raise Unavailable(f"expected {kind.__name__}, got {type(answer).__name__}")
    return answer


K = TypeVar("K")


def _unexpired(shunned: dict[K, float]) -> dict[K, float]:
    if shunned:
        now = asyncio.get_running_loop().time()
        for key in [key for key, until in shunned.items() if until <= now]:
            del shunned[key]
    return shunned
