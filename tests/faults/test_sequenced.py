"""Sequenced topics under load and faults.

Each member of a chain and the sequencer killed or hung, leases, cuts, dead appenders.
"""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.faults.helpers import Cut, check_cut, check_story, kill_and_wait
from varlog.model.cluster import Ordering
from varlog.testing.cluster_under_load import ClusterUnderLoad, Story, process_of
from varlog.testing.network.cuttable_cluster import NODES, on_proxies
from varlog.testing.network.cuttable_network import CLIENTS, CuttableNetwork, Loss, places

pytestmark = pytest.mark.process

SEQUENCER = "vseq"
# Longer than the timeouts of the heartbeat and of a client's append, and than any lease.
LONGER_THAN_EVERY_TIMEOUT_S = 12.0


def check_sequenced(
    directory: Path, story: Story, *, nodes: int = 3, replicas: int = 3, trims: bool = False
) -> None:
    check_story(directory, story, nodes=nodes, replicas=replicas, trims=trims, ordering=Ordering.SEQUENCED)


def test_each_member_of_a_chain_and_the_sequencer_are_killed_in_turn(tmp_path: Path) -> None:
    """R-SEQ-2, R-SEQ-10, R-SEQ-14: head, middle, tail, sequencer. Appends continue, and each is soon back in its
    chain."""

    async def story(cluster: ClusterUnderLoad) -> None:
        for name in (*map(process_of, (await cluster.chain()).nodes), SEQUENCER):
            await kill_and_wait(cluster, [name])

    check_sequenced(tmp_path, story)


@pytest.mark.faults
def test_a_tail_that_hangs_answers_no_client_when_it_wakes(tmp_path: Path) -> None:
    """R-SEQ-13: it is paused while others continue without it, and its lease is over before it can reply."""

    async def story(cluster: ClusterUnderLoad) -> None:
        tail = (await cluster.chain()).tail
        cluster.supervisor.signal(process_of(tail), signal.SIGSTOP)
        await cluster.wait_without(tail)
        await cluster.wait_acknowledged(100)
        cluster.supervisor.signal(process_of(tail), signal.SIGCONT)

    check_sequenced(tmp_path, story)


@pytest.mark.faults
def test_repository_and_manager_are_killed_in_turn(tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        for name in ("vmr", "vmc"):
            await kill_and_wait(cluster, [name])

    check_sequenced(tmp_path, story)


@pytest.mark.faults
def test_everything_is_killed_at_once(tmp_path: Path) -> None:
    """No process that counted is left: the tail is found on the disks (R-SEQ-2)."""

    async def story(cluster: ClusterUnderLoad) -> None:
        await kill_and_wait(cluster, list(cluster.supervisor.pids()))

    check_sequenced(tmp_path, story)


@pytest.mark.faults
def test_a_cluster_that_is_stopped_and_started_under_load_has_everything(tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        await cluster.supervisor.stop()
        await cluster.start()

    check_sequenced(tmp_path, story)


@pytest.mark.faults
@pytest.mark.parametrize(
    "victims",
    [("head", "middle"), ("middle", "tail"), ("head", "tail"), ("head", SEQUENCER), ("vmr", SEQUENCER)],
)
def test_two_are_killed_at_once(victims: tuple[str, str], tmp_path: Path) -> None:
    """Two of three nodes: the log continues with one replica until they are back (R-SEQ-10)."""

    async def story(cluster: ClusterUnderLoad) -> None:
        chain = dict(
            zip(("head", "middle", "tail"), map(process_of, (await cluster.chain()).nodes), strict=True)
        )
        for _ in range(2):
            await kill_and_wait(cluster, [chain.get(victim, victim) for victim in victims])

    check_sequenced(tmp_path, story)


@pytest.mark.faults
def test_the_log_continues_with_two_of_three_nodes_permanently_lost(tmp_path: Path) -> None:
    """R-SEQ-10: with one replica; the status reports that there is no other."""

    async def story(cluster: ClusterUnderLoad) -> None:
        head, middle, _ = (await cluster.chain()).nodes
        for node in (head, middle):
            cluster.supervisor.kill(process_of(node), restart=False)
        await cluster.wait_without(head, middle)
        await cluster.wait_status(lambda seen: any(wait.one_copy for wait in seen.waits))
        await cluster.wait_acknowledged(200)
        for node in (head, middle):
            await cluster.supervisor.restart(process_of(node))

    check_sequenced(tmp_path, story)


@pytest.mark.faults
@pytest.mark.parametrize("sleeper", ["head", "tail", SEQUENCER, "vmr", "vmc"])
def test_one_hangs_for_longer_than_every_timeout(sleeper: str, tmp_path: Path) -> None:
    async def story(cluster: ClusterUnderLoad) -> None:
        chain = await cluster.chain()
        name = {"head": process_of(chain.head), "tail": process_of(chain.tail)}.get(sleeper, sleeper)
        cluster.supervisor.signal(name, signal.SIGSTOP)
        await asyncio.sleep(LONGER_THAN_EVERY_TIMEOUT_S)  # the fault is the time that passes
        cluster.supervisor.signal(name, signal.SIGCONT)

    check_sequenced(tmp_path, story)


@pytest.mark.faults
def test_all_hang_and_wake_together(tmp_path: Path) -> None:
    """A machine that was suspended: every lease is over at once, and no process is dead."""

    async def story(cluster: ClusterUnderLoad) -> None:
        names = list(cluster.supervisor.pids())
        for name in names:
            cluster.supervisor.signal(name, signal.SIGSTOP)
        await asyncio.sleep(LONGER_THAN_EVERY_TIMEOUT_S)  # the fault is the time that passes
        for name in names:
            cluster.supervisor.signal(name, signal.SIGCONT)

    check_sequenced(tmp_path, story)


@pytest.mark.faults
def test_killed_clients_leave_half_written_positions_that_others_finish(tmp_path: Path) -> None:
    """R-SEQ-8: their writes in flight are copied down the chain, or filled, by the next reader."""

    async def story(cluster: ClusterUnderLoad) -> None:
        for client in cluster.clients[:2]:
            client.kill()
            await cluster.wait_acknowledged(100)
        await kill_and_wait(cluster, [process_of((await cluster.chain()).head)])
        cluster.start_clients(2)
        await cluster.wait_acknowledged(200)

    check_sequenced(tmp_path, story)


@pytest.mark.faults
def test_trims_hold_over_kills(tmp_path: Path) -> None:
    """Law 9: what was trimmed stays trimmed, also on a node that was away."""

    async def story(cluster: ClusterUnderLoad) -> None:
        for name in (*map(process_of, (await cluster.chain()).nodes[:2]), "vmr", SEQUENCER):
            await kill_and_wait(cluster, [name])

    check_sequenced(tmp_path, story, trims=True)


@pytest.mark.faults
def test_a_node_that_stays_away_is_replaced(tmp_path: Path) -> None:
    """R-SEQ-14: on the fourth node, from the chain, while the log continues."""

    async def story(cluster: ClusterUnderLoad) -> None:
        gone = (await cluster.chain()).head
        cluster.supervisor.kill(process_of(gone), restart=False)
        await cluster.wait_status(
            lambda seen: all(
                gone not in chain.members and not chain.out_of_sync
                for projection in seen.view.projections
                for chain in projection.chains
            )
        )
        await cluster.wait_acknowledged(100)
        await cluster.supervisor.restart(process_of(gone))

    check_story(tmp_path, story, nodes=4, replicas=3, ordering=Ordering.SEQUENCED, replace_after_s=2.0)


# --- Cuts -------------------------------------------------------------------------------------------------------------


def check_sequenced_cut(directory: Path, cut: Cut, *, loss: Loss, seconds: float = 0.0) -> None:
    factory = partial(on_proxies, loss=loss, ordering=Ordering.SEQUENCED)
    check_cut(directory, cut, seconds=seconds, factory=factory)


@pytest.mark.faults
@pytest.mark.parametrize("loss", [Loss.HELD, Loss.BROKEN])
def test_a_node_that_is_cut_off_from_the_repository_leaves_its_chain(loss: Loss, tmp_path: Path) -> None:
    """R-SEQ-13: clients reach it, and it answers none of them once its lease is over; so they continue without it."""

    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        tail = (await cluster.chain()).tail
        network.cut_both(process_of(tail), "vmr")
        await cluster.wait_without(tail)
        await cluster.wait_acknowledged(100)

    check_sequenced_cut(tmp_path, cut, loss=loss)


@pytest.mark.faults
@pytest.mark.parametrize("loss", [Loss.HELD, Loss.BROKEN])
def test_a_head_is_cut_off_from_all_others(loss: Loss, tmp_path: Path) -> None:
    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        head = (await cluster.chain()).head
        for other in places(NODES):
            if other != process_of(head):
                network.cut_both(process_of(head), other)
        await cluster.wait_without(head)
        await cluster.wait_acknowledged(100)

    check_sequenced_cut(tmp_path, cut, loss=loss, seconds=LONGER_THAN_EVERY_TIMEOUT_S)


@pytest.mark.faults
@pytest.mark.parametrize("way", ["there", "back"])
def test_one_direction_between_the_clients_and_a_tail_is_cut(way: str, tmp_path: Path) -> None:
    """The cluster is healthy; only its clients cannot reach one node, or get no replies from it: they reconfigure on
    their own."""

    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        tail = process_of((await cluster.chain()).tail)
        network.cut(*((tail, CLIENTS) if way == "there" else (CLIENTS, tail)))
        await cluster.wait_acknowledged(100)

    check_sequenced_cut(tmp_path, cut, loss=Loss.HELD, seconds=5.0)


@pytest.mark.faults
def test_the_sequencer_is_cut_off_from_the_repository(tmp_path: Path) -> None:
    async def cut(network: CuttableNetwork, cluster: ClusterUnderLoad) -> None:
        network.cut_both(SEQUENCER, "vmr")

    check_sequenced_cut(tmp_path, cut, loss=Loss.HELD, seconds=5.0)
