"""Disk faults under load: full, emptied, a flipped bit, lost with its node.

The cluster recovers without an operator.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.faults.helpers import check_story, first_stream
from varlog import aio
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.limits import DISK_RESERVE_BYTES, KIB
from varlog.model.status import ClusterStatus, ReplicaStatus
from varlog.testing.cluster_under_load import TOPIC, WAIT_TIMEOUT_S, ClusterUnderLoad, process_of
from varlog.testing.faulty_disk import NoSmallDisk, SmallDisk

pytestmark = pytest.mark.process


def replicas_on(seen: ClusterStatus, node: NodeID) -> list[ReplicaStatus]:
    return [
        replica
        for health in seen.nodes
        if health.node == node and health.status is not None
        for replica in health.status.replicas
    ]


# --- full


@pytest.mark.faults
@pytest.mark.parametrize(
    "left_bytes", [DISK_RESERVE_BYTES, 0], ids=["the reserve is left", "nothing is left"]
)
def test_a_full_disk_stops_appends_there_and_recovers_automatically(left_bytes: int, tmp_path: Path) -> None:
    """R-SEAL-6: the replica reports that it is full, reads from it continue, the other stream accepts the appends; then
    space is freed."""
    try:
        with SmallDisk(tmp_path / "vsn-1", size_mib=256) as disk:

            async def story(cluster: ClusterUnderLoad) -> None:
                disk.fill(leave_bytes=left_bytes)
                await cluster.wait_status(
                    lambda seen: any(replica.full for replica in replicas_on(seen, NodeID(1)))
                )
                await check_reads_continue(cluster)
                await cluster.wait_acknowledged(100)
                disk.free()

            # Four nodes: the streams share none, so one of them is not affected. Large entries fill a disk quickly.
            check_story(tmp_path, story, nodes=4, entry_bytes_max=64 * KIB)
    except NoSmallDisk as refused:
        pytest.skip(f"NOT TESTED: no small disk can be mounted here ({refused}); run it as root")


async def check_reads_continue(cluster: ClusterUnderLoad) -> None:
    async with aio.connect(cluster.address, TOPIC, timeout_s=WAIT_TIMEOUT_S) as log:
        for stream in log.streams:
            assert (await log.read_stream(stream.log_stream, 1)).llsn == 1


# --- deleted


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["primary", "backup"])
def test_a_node_whose_directory_was_deleted_is_filled_again(victim: str, tmp_path: Path) -> None:
    """R-SYNC-1: it comes back empty, under its old name; the other nodes have everything."""

    async def story(cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        node = process_of(stream.primary if victim == "primary" else stream.replicas[-1])
        cluster.supervisor.kill(node, restart=False)
        for path in (cluster.plan.data / node).iterdir():
            shutil.rmtree(path)
        await cluster.supervisor.restart(node)

    check_story(tmp_path, story)


@pytest.mark.faults
def test_every_node_loses_its_directory_one_after_the_other(tmp_path: Path) -> None:
    """In the end no byte of any replica is where it was first written."""

    async def story(cluster: ClusterUnderLoad) -> None:
        for node in ("vsn-1", "vsn-2", "vsn-3"):
            cluster.supervisor.kill(node, restart=False)
            for path in (cluster.plan.data / node).iterdir():
                shutil.rmtree(path)
            await cluster.supervisor.restart(node)
            await cluster.wait_healed()
            await cluster.wait_acknowledged(50)

    check_story(tmp_path, story, trims=True)


# --- gone for good


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["primary", "backup"])
def test_a_node_that_never_comes_back_is_replaced(victim: str, tmp_path: Path) -> None:
    """R-REG-6: another node gets its replicas from the survivors, and the primary moves away from a dead node."""

    async def story(cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        dead = stream.primary if victim == "primary" else stream.replicas[-1]
        cluster.supervisor.kill(process_of(dead), restart=False)
        await cluster.wait_status(lambda seen: not seen.view.streams_on(dead))
        await cluster.wait_healed()
        async with aio.admin(cluster.address, timeout_s=WAIT_TIMEOUT_S) as admin:
            await admin.remove_node(dead)

    check_story(tmp_path, story, nodes=4, replace_after_s=3.0)


# --- corrupt


@pytest.mark.faults
def test_a_flipped_bit_is_never_served_and_is_repaired(tmp_path: Path) -> None:
    """A reader finds it, gets the entry from another replica, and the damaged one is repaired while the stream runs."""

    async def story(cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        before = await entry_at(cluster, stream.log_stream, 1)
        path = first_segment(cluster, stream.replicas[-1], stream.log_stream)
        whole = turn_a_bit(path)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while path.read_bytes()[: len(whole)] != whole:
                assert await entry_at(cluster, stream.log_stream, 1) == before
                await asyncio.sleep(0.05)

    check_story(tmp_path, story)


@pytest.mark.faults
def test_a_bit_flipped_while_the_node_was_down_is_found_and_repaired(tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        stream = await first_stream(cluster)
        node = stream.replicas[-1]
        cluster.supervisor.kill(process_of(node), restart=False)
        turn_a_bit(first_segment(cluster, node, stream.log_stream))
        await cluster.supervisor.restart(process_of(node))

    check_story(tmp_path, story)


async def entry_at(cluster: ClusterUnderLoad, log_stream: LogStreamID, llsn: int) -> bytes:
    async with aio.connect(cluster.address, TOPIC, timeout_s=WAIT_TIMEOUT_S) as log:
        return bytes((await log.read_stream(log_stream, llsn)).data)


def first_segment(cluster: ClusterUnderLoad, node: NodeID, log_stream: LogStreamID) -> Path:
    [replica] = (cluster.plan.data / process_of(node)).glob(f"cid=*/snid=*/lsid={log_stream}")
    return min(replica.glob("*.seg"))


def turn_a_bit(path: Path) -> bytes:
    """Flip one bit in the first entry; returns the former beginning of the file."""
    with path.open("r+b") as file:
        before = file.read(KIB)
        at = 64 + 8  # behind the header of the first batch and its offsets
        file.seek(at)
        file.write(bytes([before[at] ^ 0x10]))
    return before
