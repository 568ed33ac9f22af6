"""D2: how an operator sees and continues a STOPPED topic, on real processes.

Status, JSON, metric, `adopt-order`. Before, the topic was shown as running, and there was no command.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from varlog.model.cluster import Ordering
from varlog.testing.cluster_under_load import plan_for, process_of
from varlog.testing.harms.harmed_cluster import COMMITTED, harmed_cluster
from varlog.testing.processes import PATIENCE_S, started

pytestmark = pytest.mark.process


@pytest.mark.faults
def test_d2_an_operator_sees_a_stopped_topic_and_continues_without_a_node(tmp_path: Path) -> None:
    async def story() -> None:
        plan = plan_for(tmp_path, nodes=2, replicas=1)
        async with harmed_cluster(plan, [Ordering.COMMITTED]) as cluster:
            await cluster.append(5)
            left, away = (await cluster.status()).view.streams
            (node,) = away.replicas
            where = ("--cluster", cluster.address)
            assert cluster.varlog("status", *where).returncode == 0
            cluster.kill(process_of(node), "vmr")
            await cluster.restart("vmr")
            await cluster.wait_status(lambda seen: any(topic.stopped for topic in seen.view.topics))

            shown = cluster.varlog("status", *where)
            assert shown.returncode == 1
            (line,) = [found for found in shown.stdout.splitlines() if found.startswith("STOPPED:")]
            assert f"topic {COMMITTED}: no replica of log stream {away.log_stream} was reached" in line
            assert f"start node {node}" in shown.stdout and "adopt-order" in shown.stdout
            output = json.loads(cluster.varlog("status", "--json", *where).stdout)
            assert list(output["stopped"]) == [COMMITTED]
            with started(["proxy", *where, "--listen", "127.0.0.1:0"], "ready") as (_, ready):
                async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
                    metrics = (await http.get(f"http://{ready.split()[1]}/metrics")).text
            assert f'varlog_topic_stopped{{topic="{COMMITTED}"}} 1' in metrics

            dry = cluster.varlog("topic", "adopt-order", COMMITTED, *where)
            assert dry.returncode == 0 and "nothing was changed" in dry.stdout
            assert f"not reached: node {node}; what only it knows would be lost" in dry.stdout
            assert (await cluster.status()).view.topics[0].stopped
            done = cluster.varlog("topic", "adopt-order", COMMITTED, "--yes", *where)
            assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr
            assert cluster.varlog("status", *where).returncode == 0
            await cluster.append_to(left.log_stream, 1)

    asyncio.run(story())
