"""leading_repository: which metadata repository of a local cluster is the leader."""

from __future__ import annotations

import asyncio

from varlog.localcluster.plan import ClusterPlan
from varlog.model.errors import Unavailable
from varlog.model.ids import ClusterID
from varlog.rpc.leader import LeaderClient
from varlog.rpc.messages import GetView
from varlog.rpc.pool import ConnectionPool
from varlog.rpc.tcp import TcpTransport

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
