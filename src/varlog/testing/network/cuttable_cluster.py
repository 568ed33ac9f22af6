"""CuttableCluster: a cluster under load on a network that tests can cut.

The network is made of namespaces where this machine permits them, otherwise of proxies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from varlog.model.cluster import Ordering
from varlog.testing.cluster_under_load import ClusterUnderLoad, running_cluster
from varlog.testing.network.cuttable_network import CLIENTS, CuttableNetwork, Loss, places
from varlog.testing.network.namespaces import Namespaces, NoNamespaces, namespaced_plan
from varlog.testing.network.proxied_network import ProxiedNetwork, proxied_plan

NODES = 4
REPLICAS = 2


@dataclass(frozen=True)
class CuttableCluster:
    """It runs, and has no clients yet."""

    network: CuttableNetwork
    cluster: ClusterUnderLoad


# What a cluster stands on: in this directory, as long as the context lasts.
ClusterFactory = Callable[[Path], AbstractAsyncContextManager[CuttableCluster]]


@asynccontextmanager
async def on_namespaces(directory: Path, spaces: Namespaces) -> AsyncIterator[CuttableCluster]:
    plan = namespaced_plan(directory, spaces, nodes=NODES, replicas=REPLICAS)
    async with running_cluster(ClusterUnderLoad(plan, client_prefix=spaces.prefix(CLIENTS))) as cluster:
        yield CuttableCluster(spaces, cluster)


@asynccontextmanager
async def on_proxies(
    directory: Path, loss: Loss = Loss.HELD, ordering: Ordering = Ordering.COMMITTED
) -> AsyncIterator[CuttableCluster]:
    plan = proxied_plan(directory, nodes=NODES, replicas=REPLICAS)
    cluster = ClusterUnderLoad(plan, ordering=ordering)
    async with ProxiedNetwork(plan, cluster.supervisor.pids, loss=loss) as network, running_cluster(cluster):
        yield CuttableCluster(network, cluster)


@asynccontextmanager
async def on_available_network(directory: Path) -> AsyncIterator[CuttableCluster]:
    """Namespaces first: there the kernels themselves are cut off."""
    with ExitStack() as stack:
        try:
            spaces = stack.enter_context(Namespaces(places(NODES)))
        except NoNamespaces as refused:
            print(f"cut by proxies, because there are no network namespaces here ({refused})")
            factory = on_proxies(directory)
        else:
            factory = on_namespaces(directory, spaces)
        async with factory as found:
            yield found
