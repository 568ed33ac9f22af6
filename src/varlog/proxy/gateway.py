"""Gateway: the logs, administration and status behind a proxy.

Behind it is a cluster or a directory. A topic's Log is opened by the first request for it and shared by all; no topic is ever
created that way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from varlog import aio
from varlog.client.admin import Admin
from varlog.client.log import Log
from varlog.embedded import EmbeddedCluster
from varlog.model.errors import InvalidRequest, UnknownTopic, VarlogError
from varlog.model.ids import ANY_CLUSTER, ClusterID, TopicID, check_topic_name
from varlog.model.status import ClusterStatus
from varlog.runtime.environment import system_environment

T = TypeVar("T")

# The greatest age of a status: many open pages shall not load the manager.
STATUS_FRESH_S = 0.25
# One attempt to reach the cluster.
OPEN_TIMEOUT_S = 5.0


class Backend(Protocol):
    """Opens clients for a gateway; tests have their own."""

    async def start(self) -> None: ...

    async def admin(self) -> Admin: ...

    async def log(self, topic: str) -> Log:
        """The log of a topic; UnknownTopic if there is none."""
        ...

    async def close(self) -> None: ...


class ClusterBackend:
    """A running cluster, by the address of its metadata repository. It need not be up yet when the proxy starts."""

    def __init__(self, address: str, cluster: ClusterID = ANY_CLUSTER) -> None:
        self._address = address
        self._cluster = cluster

    async def start(self) -> None:
        pass

    async def admin(self) -> Admin:
        admin = await aio.admin(self._address, cluster=self._cluster, timeout_s=OPEN_TIMEOUT_S)
        # From now on this cluster and no other, even if another one gets the address.
        self._cluster = admin.cluster
        return admin

    async def log(self, topic: str) -> Log:
        return await aio.connect(
            self._address, topic, create=False, cluster=self._cluster, timeout_s=OPEN_TIMEOUT_S
        )

    async def close(self) -> None:
        pass


class EmbeddedBackend:
    """A directory, which this process alone has open."""

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self._cluster = EmbeddedCluster(path, system_environment(synced=sync), sync=sync)

    async def start(self) -> None:
        await self._cluster.start()
        try:
            await self._wait_node()
        except BaseException:
            await self._cluster.stop()
            raise

    async def _wait_node(self) -> None:
        """The manager has just started: until it knows the node it refuses to create a topic."""
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S), await self._cluster.admin() as admin:
                while True:
                    if any(health.alive for health in (await admin.status()).nodes):
                        return
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pass  # requests are served all the same, and report what is wrong

    async def admin(self) -> Admin:
        return await self._cluster.admin()

    async def log(self, topic: str) -> Log:
        return await self._cluster.connect(topic, create=False)

    async def close(self) -> None:
        await self._cluster.stop()


class _Shared(Generic[T]):
    """A result computed once for all concurrent callers; a caller that stops waiting does not cancel it for the others."""

    def __init__(self, make: Callable[[], Awaitable[T]], name: str) -> None:
        self._make = make
        self._name = name
        self._making: asyncio.Task[T] | None = None

    async def get(self) -> T:
        if self._making is None:
            self._making = asyncio.create_task(self._run(), name=f"proxy/{self._name}")
            # The callers may be gone when it fails: retrieve the error, so that asyncio does not log it.
            self._making.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._making)

    async def _run(self) -> T:
        return await self._make()

    @property
    def result(self) -> T | None:
        """The result, if there is one."""
        task = self._making
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    @property
    def failed(self) -> bool:
        task = self._making
        return task is not None and task.done() and (task.cancelled() or task.exception() is not None)

    async def cancel(self) -> None:
        if self._making is not None and not self._making.done():
            self._making.cancel()
            await asyncio.wait([self._making])


class Gateway:
    """Everything behind one proxy. Opened and closed with the application; used from its event loop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._admin: _Shared[Admin] | None = None
        self._logs: dict[str, _Shared[tuple[Log, TopicID]]] = {}
        self._status: _Shared[tuple[ClusterStatus, float]] | None = None

    async def start(self) -> None:
        """StartupError says what is in the way. A cluster that cannot be reached yet is not."""
        await self._backend.start()

    async def close(self) -> None:
        """Close everything: what is in flight fails as it does when a client is closed."""
        for name in list(self._logs):
            await self.forget(name)
        for shared in (self._status, self._admin):
            if shared is not None:
                await shared.cancel()
        if self._admin is not None and (admin := self._admin.result) is not None:
            await admin.close()
        self._admin = self._status = None
        await self._backend.close()

    async def admin(self) -> Admin:
        """Administration of the cluster; Unavailable while it cannot be reached."""
        if self._admin is None or self._admin.failed:
            self._admin = _Shared(self._backend.admin, "admin")
        return await self._admin.get()

    async def log(self, topic: str) -> Log:
        """The log of a topic. UnknownTopic if there is none: it is not created."""
        _check_topic(topic)
        shared = self._logs.get(topic)
        if shared is not None and (opened := shared.result) is not None and _same_topic(*opened):
            return opened[0]
        if shared is not None and (shared.failed or shared.result is not None):
            await self.forget(topic)
        shared = self._logs.get(topic)
        if shared is None:
            shared = self._logs[topic] = _Shared(lambda: self._open(topic), f"open/{topic}")
        try:
            return (await shared.get())[0]
        except VarlogError:
            if self._logs.get(topic) is shared:
                del self._logs[topic]
            raise

    async def forget(self, topic: str) -> None:
        """Close the log of a deleted topic: the next request opens it again."""
        shared = self._logs.pop(topic, None)
        if shared is not None:
            await shared.cancel()
            if (opened := shared.result) is not None:
                await opened[0].close()

    async def status(self) -> ClusterStatus:
        """The cluster as its manager sees it, at most `STATUS_FRESH_S` old; concurrent callers share one request."""
        shared, now = self._status, asyncio.get_running_loop().time()
        stale = (
            shared is not None and (known := shared.result) is not None and now - known[1] >= STATUS_FRESH_S
        )
        if shared is None or shared.failed or stale:
            shared = self._status = _Shared(self._ask_status, "status")
        return (await shared.get())[0]

    def status_changed(self) -> None:
        """The cluster was changed through this gateway: later requests get a new status."""
        self._status = None

    async def _ask_status(self) -> tuple[ClusterStatus, float]:
        asked = asyncio.get_running_loop().time()
        return await (await self.admin()).status(), asked

    async def _open(self, topic: str) -> tuple[Log, TopicID]:
        # Checked first, over the existing connection: a wrong name shall not open a new one each time.
        if (await (await self.admin()).view()).topic_named(topic) is None:
            raise UnknownTopic(topic)
        log = await self._backend.log(topic)
        return log, log.topic.topic


def _same_topic(log: Log, topic: TopicID) -> bool:
    """Whether the name still means the topic that was opened: a deleted one may have been recreated."""
    try:
        return log.topic.topic == topic
    except UnknownTopic:
        return False


def _check_topic(topic: str) -> None:
    try:
        check_topic_name(topic)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
