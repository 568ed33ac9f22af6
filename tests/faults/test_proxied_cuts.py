"""Network cuts by proxies, on every machine.

Requests in flight are delayed or lost, or their connection is broken; no kernel gives up on its own.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults.helpers import check_cut, first_stream
from varlog.testing.cluster_under_load import ClusterUnderLoad, process_of
from varlog.testing.network.cuttable_cluster import NODES, on_proxies
from varlog.testing.network.cuttable_network import CuttableNetwork, Loss, places

pytestmark = pytest.mark.process

LOSSES = [
    Loss.HELD,
    *(pytest.param(loss, marks=pytest.mark.faults) for loss in (Loss.SWALLOWED, Loss.BROKEN)),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_primary_that_is_cut_off_is_sealed_out_and_readmitted(loss: Loss, tmp_path: Path) -> None:
    """R-SEAL-2: the other stream accepts the appends; what the primary had in flight, or still receives, is fenced (law
    7)."""

    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        primary = process_of(stream.primary)
        for other in places(NODES):
            if other != primary:
                network.cut_both(primary, other)
        await cluster.wait_sealed(stream.log_stream)
        await cluster.wait_acknowledged(100)

    check_cut(tmp_path, cut, factory=partial(on_proxies, loss=loss))


@pytest.mark.faults
@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("way", ["there", "back"])
def test_one_direction_between_a_primary_and_its_backup_is_cut(way: str, loss: Loss, tmp_path: Path) -> None:
    """R-SEAL-6: all other processes reach both. The other stream accepts the appends, whether the primary learns of it
    or not."""

    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        primary, backup = map(process_of, (await first_stream(cluster)).replicas)
        network.cut(*((primary, backup) if way == "there" else (backup, primary)))
        await cluster.wait_acknowledged(100)

    check_cut(tmp_path, cut, factory=partial(on_proxies, loss=loss))
