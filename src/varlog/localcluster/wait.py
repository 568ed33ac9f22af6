"""Waits for a cluster on this machine: until its nodes are registered, its topic is made, and all of its replicas run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from varlog.model.cluster import Ordering

if TYPE_CHECKING:
    from varlog.client.admin import Admin
    from varlog.localcluster.plan import ClusterPlan
    from varlog.model.cluster import LogStream
    from varlog.model.status import ClusterStatus

READY_TIMEOUT_S = 60.0
STREAMS_TIMEOUT_S = 10.0
LOOK_S = 0.05


async def make_topic(
    plan: ClusterPlan,
    topic: str,
    *,
    ordering: Ordering = Ordering.COMMITTED,
    stripe_size: int = 0,
    say: Callable[[str], None] = print,
) -> None:
    """Wait until every node is registered and alive, make the topic, and wait until all streams run.

    One stream that does not come back, with a damaged replica perhaps, is told of, and keeps nobody from the
    others.
    """
    from varlog.model.errors import PreconditionFailed, Unavailable

    loop = asyncio.get_running_loop()
    silent: list[int] = []
    await wait_nodes(plan)
    patience = loop.time() + STREAMS_TIMEOUT_S
    async with _looking(plan) as look:
        while True:
            try:
                seen = await look.admin.status()
                silent = _not_running(seen)
                if seen.view.topic_named(topic) is None:
                    await look.admin.create_topic(
                        topic,
                        streams=plan.streams,
                        replicas=plan.replicas,
                        ordering=ordering,
                        stripe_size=stripe_size,
                    )
                elif not silent or loop.time() > patience:
                    break
            except (PreconditionFailed, Unavailable) as error:
                # On a busy machine a node that answered a moment ago may not, or a stream takes its time: look again.
                look.why = f" ({error})"
            await asyncio.sleep(LOOK_S)
    if silent:
        say(f"log streams {silent} do not run: see `varlog status --cluster {plan.repository}`")


async def wait_nodes(plan: ClusterPlan) -> None:
    """Until every node is registered and alive: processes that are ready may not have met yet."""
    from varlog.model.errors import Unavailable

    async with _looking(plan) as look:
        while True:
            try:
                if sum(health.alive for health in (await look.admin.status()).nodes) >= plan.nodes:
                    return
            except Unavailable as error:
                look.why = f" ({error})"
            await asyncio.sleep(LOOK_S)


async def all_run(admin: Admin) -> None:
    """Until every replica of every stream runs. Who cannot say so just now is asked again."""
    from varlog.model.errors import Unavailable

    while True:
        try:
            if runs_whole(await admin.status()):
                return
        except Unavailable:
            pass
        await asyncio.sleep(0.05)


def runs_whole(seen: ClusterStatus) -> bool:
    from varlog.client.cluster_status import chain_is_whole, is_sequenced, replica_statuses
    from varlog.model.cluster import StreamState
    from varlog.model.status import ReplicaState

    def whole(found: LogStream) -> bool:
        if is_sequenced(seen.view, found):
            return chain_is_whole(seen, found)
        statuses = replica_statuses(seen, found).values()
        return all(status is not None and status.state is ReplicaState.RUNNING for status in statuses)

    return all(found.state is StreamState.RUNNING and whole(found) for found in seen.view.streams)


async def wait_until(there: Callable[[], bool], every_s: float = 0.01) -> None:
    """Look again and again: what happens in other processes tells nobody. The caller sets the deadline."""
    while True:
        if there():
            return
        await asyncio.sleep(every_s)


@dataclass
class _Look:
    """`why`: what stood in the way the last time."""

    admin: Admin
    why: str = ""


@asynccontextmanager
async def _looking(plan: ClusterPlan) -> AsyncIterator[_Look]:
    """Somebody looks at the cluster again and again; StartupError if that takes too long."""
    from varlog import aio
    from varlog.model.errors import StartupError

    why = ""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S), aio.admin(plan.repository) as admin:
            look = _Look(admin)
            try:
                yield look
            finally:
                why = look.why
    except TimeoutError:
        raise StartupError(
            f"the cluster did not come up within {READY_TIMEOUT_S:g} s{why}: see the logs in {plan.data / 'logs'}"
        ) from None


def _not_running(seen: ClusterStatus) -> list[int]:
    from varlog.model.cluster import StreamState

    return [found.log_stream for found in seen.view.streams if found.state is not StreamState.RUNNING]
