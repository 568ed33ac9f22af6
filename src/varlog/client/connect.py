"""connect_log, connect_admin: a Log or an Admin from an address and a transport."""

from __future__ import annotations

from varlog.client.admin import Admin
from varlog.client.log import TIMEOUT_S, Log
from varlog.client.routing import Routing
from varlog.model.cluster import Grouping, Ordering
from varlog.model.errors import InvalidRequest, UnknownTopic
from varlog.model.ids import ANY_CLUSTER, ClusterID, check_topic_name
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.transport import Transport
from varlog.runtime.environment import Environment


async def connect_log(
    transport: Transport,
    environment: Environment,
    repository: str,
    *,
    topic: str,
    cluster: ClusterID = ANY_CLUSTER,
    create: bool | None = None,
    streams: int = 0,
    replicas: int = 0,
    ordering: Ordering | str = Ordering.COMMITTED,
    stripe_size: int = 0,
    grouping: Grouping | str = Grouping.STREAM,
    timeout_s: float = TIMEOUT_S,
) -> Log:
    """Open the log of one topic. `create` creates a missing topic (None: if the cluster allows it); otherwise UnknownTopic is
    raised.

    `streams`, `replicas`, `ordering`, `stripe_size` and `grouping` apply if the topic is created now (see Admin.create_topic).
    `timeout_s` applies to this call and to every later call that passes none.
    """
    try:
        check_topic_name(topic)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    routing = Routing(ConnectionPool(transport), environment, repository, topic_name=topic, cluster=cluster)
    try:
        view = await routing.refresh(timeout_s)
        if view.topic_named(topic) is None:
            if not (view.auto_create_topics if create is None else create):
                raise UnknownTopic(topic)
            await Admin(routing, timeout_s).create_topic(
                topic,
                streams=streams,
                replicas=replicas,
                ordering=ordering,
                stripe_size=stripe_size,
                grouping=grouping,
            )
            await routing.refresh(timeout_s)
        return Log(routing, timeout_s)
    except BaseException:
        await routing.close()
        raise


async def connect_admin(
    transport: Transport,
    environment: Environment,
    repository: str,
    *,
    cluster: ClusterID = ANY_CLUSTER,
    timeout_s: float = 15.0,
) -> Admin:
    """Open the administration of the cluster whose metadata repository listens at `repository`."""
    routing = Routing(ConnectionPool(transport), environment, repository, cluster=cluster)
    try:
        await routing.refresh(timeout_s)
    except BaseException:
        await routing.close()
        raise
    return Admin(routing, timeout_s)
