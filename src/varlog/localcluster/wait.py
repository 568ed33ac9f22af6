"""Waits for a local cluster: nodes registered, topic created, replicas running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from varlog.localcluster.plan import ClusterPlan
from varlog.model.cluster import Ordering
from varlog.model.errors import Unavailable
from varlog.model.ids import ClusterID
from varlog.rpc.leader import LeaderClient
from varlog.rpc.messages import GetView
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.tcp import TcpTransport

if TYPE_CHECKING:
    from varlog.client.admin import Admin
    from varlog.model.cluster import LogStream
    from varlog.model.status import ClusterStatus

READY_TIMEOUT_S = 60.0
STREAMS_TIMEOUT_S = 10.0
POLL_S = 0.05


async def ensure_topic(
    plan: ClusterPlan,
    topic: str,
    *,
    ordering: Ordering = Ordering.COMMITTED,
    stripe_size: int = 0,
    say: Callable[[str], None] = print,
) -> None:
    """Wait until every node is registered and alive, create the topic, and wait until all streams run.

    A stream that does not start, for example because of a damaged replica, is reported through `say` and not waited for.
    """
    from varlog.model.errors import PreconditionFailed, Unavailable

    loop = asyncio.get_running_loop()
    stopped: list[int] = []
    await wait_nodes(plan)
    deadline = loop.time() + STREAMS_TIMEOUT_S
    async with _polling(plan) as poll:
        while True:
            try:
                seen = await poll.admin.status()
                stopped = _not_running(seen)
                if seen.view.topic_named(topic) is None:
                    await poll.admin.create_topic(
                        topic,
                        streams=plan.streams,
                        replicas=plan.replicas,
                        ordering=ordering,
                        stripe_size=stripe_size,
                    )
                elif not stopped or loop.time() > deadline:
                    break
            except (PreconditionFailed, Unavailable) as error:
                # On a busy machine a node may stop answering for a moment, or a stream may start slowly: try again.
                poll.why = f" ({error})"
            await asyncio.sleep(POLL_S)
    if stopped:
        say(f"log streams {stopped} do not run: see `varlog status --cluster {plan.repository}`")


async def wait_nodes(plan: ClusterPlan) -> None:
    """Until every node is registered and alive: processes that are ready may not be connected yet."""
    from varlog.model.errors import Unavailable

    async with _polling(plan) as poll:
        while True:
            try:
                if sum(health.alive for health in (await poll.admin.status()).nodes) >= plan.nodes:
                    return
            except Unavailable as error:
                poll.why = f" ({error})"
            await asyncio.sleep(POLL_S)


async def wait_all_running(admin: Admin) -> None:
    """Until every replica of every stream runs. An unavailable manager is asked again."""
    from varlog.model.errors import Unavailable

    while True:
        try:
            if is_fully_running(await admin.status()):
                return
        except Unavailable:
            pass
        await asyncio.sleep(0.05)


def is_fully_running(seen: ClusterStatus) -> bool:
    from varlog.client.cluster_status import chain_is_whole, is_sequenced, replica_statuses
    from varlog.model.cluster import StreamState
    from varlog.model.status import ReplicaState

    def whole(found: LogStream) -> bool:
        if is_sequenced(seen.view, found):
            return chain_is_whole(seen, found)
        statuses = replica_statuses(seen, found).values()
        return all(status is not None and status.state is ReplicaState.RUNNING for status in statuses)

    return all(found.state is StreamState.RUNNING and whole(found) for found in seen.view.streams)


async def wait_until(condition: Callable[[], bool], every_s: float = 0.01) -> None:
    """Poll a condition: other processes do not notify us. The caller sets the deadline."""
    while True:
        if condition():
            return
        await asyncio.sleep(every_s)


@dataclass
class _Poll:
    """`why`: what prevented it the last time."""

    admin: Admin
    why: str = ""


@asynccontextmanager
async def _polling(plan: ClusterPlan) -> AsyncIterator[_Poll]:
    """Poll the cluster; StartupError if that takes too long."""
    from varlog import aio
    from varlog.model.errors import StartupError

    why = ""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S), aio.admin(plan.repository) as admin:
            poll = _Poll(admin)
            try:
                yield poll
            finally:
                why = poll.why
    except TimeoutError:
        raise StartupError(
            f"the cluster did not come up within {READY_TIMEOUT_S:g} s{why}: see the logs in {plan.data / 'logs'}"
        ) from None


def _not_running(seen: ClusterStatus) -> list[int]:
    from varlog.model.cluster import StreamState

    return [found.log_stream for found in seen.view.streams if found.state is not StreamState.RUNNING]


# leading_repository: which metadata repository of a local cluster is the leader.

ASK_TIMEOUT_S = 1.0
RETRY_S = 0.05


async def leading_repository(plan: ClusterPlan, timeout_s: float) -> str:
    """The name of its process. Waits while there is no leader; TimeoutError if there is none by then."""
    if not plan.replicated:
        return "vmr"
    pool = ConnectionPool(TcpTransport(ClusterID(plan.cluster)))
    leader = LeaderClient(pool, plan.repository)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await leader.call(GetView(), timeout_s=ASK_TIMEOUT_S)
                except Unavailable:
                    await asyncio.sleep(RETRY_S)
                else:
                    return f"vmr-{plan.repositories.index(leader.address) + 1}"
    finally:
        await pool.close()
