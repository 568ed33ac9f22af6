"""Three metadata repositories over three etcd members, under load.

Real processes: the leader dies, hangs, and wakes up again.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from varlog.localcluster.etcd import etcd_is_here
from varlog.localcluster.wait import leading_repository
from varlog.model.errors import NotLeader
from varlog.model.ids import ANY_CLUSTER, TopicID
from varlog.rpc.messages import GetTail, GetTailReply, GetView
from varlog.rpc.tcp import TcpTransport
from varlog.rpc.transport import Connection
from varlog.testing.cluster_under_load import WAIT_TIMEOUT_S, ClusterUnderLoad, Story, plan_for, run_story
from varlog.testing.processes import pause_process

pytestmark = pytest.mark.process


def check(directory: Path, story: Story) -> None:
    if not etcd_is_here():
        pytest.skip("NOT TESTED: there is no etcd here; install it, or `pip install -e '.[test-etcd]'`")
    assert asyncio.run(run_story(plan_for(directory, replicated=True), story)) == []


async def leader(cluster: ClusterUnderLoad) -> str:
    return await leading_repository(cluster.plan, WAIT_TIMEOUT_S)


async def wait_pause_over(cluster: ClusterUnderLoad) -> None:
    """Wait until appends continue. How soon that is, `make bench-faults` measures."""
    await cluster.wait_acknowledged(20)


def test_the_leader_is_killed_and_what_it_ordered_stands(tmp_path: Path) -> None:
    """R-ORD-2, law 3: the order is replicated; the next leader continues from there, without a human. A second
    start finds it all."""

    async def story(cluster: ClusterUnderLoad) -> None:
        before = await leader(cluster)
        # Not restarted immediately: on a busy machine it could win the next election itself.
        cluster.supervisor.kill(before, restart=False)
        await wait_pause_over(cluster)
        assert await leader(cluster) != before
        await cluster.supervisor.restart(before)
        await cluster.wait_healed()
        await cluster.supervisor.stop()
        await cluster.supervisor.start()

    check(tmp_path, story)


def test_a_leader_that_hung_longer_than_its_lease_wakes_up_powerless(tmp_path: Path) -> None:
    """Law 7: it first reports that it does not lead, and it orders nothing any more."""

    async def story(cluster: ClusterUnderLoad) -> None:
        sleeper, witness = await _leader_and_witness(cluster)

        pause_process(cluster.supervisor.pids()[sleeper])
        await wait_pause_over(cluster)
        # Sent while it is paused: these wait in its socket, and are the first thing it reads.
        asked = [
            asyncio.create_task(witness.call(request, timeout_s=WAIT_TIMEOUT_S))
            for request in (GetTail(TopicID(1)), GetView(), GetTail(TopicID(1)))
        ]
        await cluster.wait_acknowledged(50)
        assert await leader(cluster) != sleeper
        cluster.supervisor.signal(sleeper, signal.SIGCONT)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [NotLeader] * 3
        await cluster.wait_acknowledged(50)
        witness.close()

    check(tmp_path, story)


async def _leader_and_witness(cluster: ClusterUnderLoad) -> tuple[str, Connection]:
    """The leader, and a connection on which it has answered as the leader."""
    while True:
        name = await leader(cluster)
        address = cluster.plan.repositories[int(name.removeprefix("vmr-")) - 1]
        witness = await TcpTransport(ANY_CLUSTER).connect(address, timeout_s=WAIT_TIMEOUT_S)
        try:
            answer, _ = await witness.call(GetTail(TopicID(1)), timeout_s=WAIT_TIMEOUT_S)
        except NotLeader:  # a machine that paused for longer than a lease has another leader since
            witness.close()
            continue
        assert isinstance(answer, GetTailReply)
        return name, witness
