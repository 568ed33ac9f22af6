"""Network cuts under load, in both directions and in one.

Real packets between real processes are lost silently.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.helpers import check_cut, first_stream
from varlog.testing.cluster_under_load import ClusterUnderLoad, process_of
from varlog.testing.network.cuttable_cluster import NODES
from varlog.testing.network.cuttable_network import CLIENTS, CuttableNetwork, places

pytestmark = [pytest.mark.process, pytest.mark.faults]

# Longer than the timeouts of the heartbeat, of a client's append, and of TCP's acknowledgements.
LONGER_THAN_EVERY_TIMEOUT_S = 12.0


def test_a_primary_is_cut_off_from_all_others(tmp_path: Path) -> None:
    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        primary = process_of((await first_stream(cluster)).primary)
        for other in places(NODES):
            if other != primary:
                network.cut_both(primary, other)

    check_cut(tmp_path, cut, seconds=LONGER_THAN_EVERY_TIMEOUT_S)


def test_a_primary_and_its_backup_are_cut_off_from_each_other(tmp_path: Path) -> None:
    """Both answer the manager; only the primary can detect it (R-SEAL-6)."""

    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        network.cut_both(*map(process_of, stream.replicas))

    check_cut(tmp_path, cut, seconds=LONGER_THAN_EVERY_TIMEOUT_S)


@pytest.mark.parametrize("way", ["there", "back"])
def test_one_direction_between_a_node_and_the_repository_is_cut(way: str, tmp_path: Path) -> None:
    """Reports do not arrive, or orders do not; the other direction works, and so do all other connections."""

    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        node = process_of((await first_stream(cluster)).primary)
        network.cut(*((node, "vmr") if way == "there" else ("vmr", node)))

    check_cut(tmp_path, cut, seconds=LONGER_THAN_EVERY_TIMEOUT_S)


@pytest.mark.parametrize("way", ["there", "back"])
def test_one_direction_between_a_node_and_the_clients_is_cut(way: str, tmp_path: Path) -> None:
    """The cluster is healthy; only its clients cannot reach one node, or get no replies from it."""

    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        node = process_of((await first_stream(cluster)).primary)
        network.cut(*((node, CLIENTS) if way == "there" else (CLIENTS, node)))

    check_cut(tmp_path, cut, seconds=LONGER_THAN_EVERY_TIMEOUT_S)


def test_the_manager_is_cut_off_from_all_others_and_a_node_is_killed(tmp_path: Path) -> None:
    """Nothing is repaired while it is away; when it is back it continues from the state that it finds."""

    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        for other in places(NODES):
            if other != "vmc":
                network.cut_both("vmc", other)
        node = process_of((await first_stream(cluster)).primary)
        cluster.supervisor.kill(node)
        await cluster.supervisor.wait_restarted(node)

    check_cut(tmp_path, cut, seconds=2.0)


def test_short_cuts_in_a_row_leave_no_trace(tmp_path: Path) -> None:
    """Alternately shorter than what the kernel repairs by retransmission and longer than every timeout."""

    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        primary, backup = map(process_of, stream.replicas)
        for seconds, (one, other) in zip(
            (0.3, 2.5) * 3, [(primary, backup), (primary, "vmr"), (backup, "vmr")] * 2, strict=True
        ):
            network.cut_both(one, other)
            await asyncio.sleep(seconds)
            network.heal()
            await cluster.wait_acknowledged(50)

    check_cut(tmp_path, cut, seconds=0.0)
