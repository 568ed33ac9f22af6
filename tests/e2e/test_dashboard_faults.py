"""The dashboard in front of a cluster of real processes.

A node is killed and the page shows it, then shows it healed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Route

from tests.e2e.browser import SCREENSHOTS, STORY_S, browser, chromium, visit
from varlog import aio
from varlog.client.log import Log
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.ports import free_ports
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import ensure_topic
from varlog.model.cluster import Ordering
from varlog.model.errors import VarlogError
from varlog.testing.harms.harmed_cluster import COMMITTED, harmed_cluster
from varlog.testing.processes import PATIENCE_S

chromium()  # without one, all of this is skipped, loudly
pytestmark = pytest.mark.process


@asynccontextmanager
async def cluster_with_proxy(path: Path) -> AsyncIterator[Supervisor]:
    """Three nodes, a topic of two log streams on all of them, and a proxy: what `varlog up` runs."""
    ports = free_ports(6)
    plan = ClusterPlan(path, ports[:5], replicas=3, streams=2, proxy_port=ports[5])
    supervisor = Supervisor(plan, say=print)
    try:
        await supervisor.start()
        await ensure_topic(plan, "orders")
        yield supervisor
    finally:
        await supervisor.stop()


def test_a_killed_node_shows_and_then_shows_healed(tmp_path: Path) -> None:
    """R-FAIL-1, as a viewer sees it: which node, which log streams, what the manager does, and that it is over."""

    async def story() -> None:
        async with (
            asyncio.timeout(STORY_S),
            cluster_with_proxy(tmp_path) as supervisor,
            aio.connect(supervisor.address, "orders", timeout_s=PATIENCE_S) as log,
            browser() as opened,
            visit(opened, f"http://{supervisor.plan.proxy}") as page,
        ):
            await log.append(b"before")
            await page.open()
            await page.wait_health("ok")
            await page.wait("#health", text="All well: 3 nodes, 2 log streams running")
            await page.wait("#entries tr", text="before")
            await page.wait_count(".replica[data-state='running']", 6)

            supervisor.kill("vsn-2", restart=False)
            await page.wait_health("bad")
            await page.wait("#health", text="Node 2 is unreachable")
            await page.wait("th[data-node='2'][data-state='unreachable'] .condition", text="unreachable")
            await page.wait_count(".replica[data-node='2'][data-state='missing']", 2)
            await page.wait("tr[data-stream='1'][data-state='sealed']")
            await page.wait("#events .now li", text="node 2 does not answer")
            assert (await page.page.title()).startswith("● varlog: Node 2 is unreachable")
            # Existing entries can still be read.
            await page.page.fill("#position", "1")
            await page.page.keyboard.press("Enter")
            await page.wait("dialog.inspector pre", text="before")
            await page.close_dialog()

            # It is shown for a few seconds.
            await page.record("#health")
            await supervisor.restart("vsn-2")
            await page.wait_health("ok")
            await page.wait_recorded("Healed: everything runs again, after")
            await page.wait_count(".replica[data-state='running']", 6)
            await page.wait("#events .lately li", text="running")
            await page.wait_true("document.querySelectorAll('.chart .band.bad').length > 0")
            await log.append(b"after")
            await page.wait("#entries tr:first-child", text="after")

    asyncio.run(story())


def test_a_proxy_that_is_gone_is_noticed_and_found_again(tmp_path: Path) -> None:
    """The displayed data are old then, and look like it."""

    async def story() -> None:
        async with (
            asyncio.timeout(STORY_S),
            cluster_with_proxy(tmp_path) as supervisor,
            aio.connect(supervisor.address, "orders", timeout_s=PATIENCE_S) as log,
            browser() as opened,
            visit(opened, f"http://{supervisor.plan.proxy}", refusals=True) as page,
        ):
            await log.append(b"before")
            await page.open()
            await page.wait("#entries tr", text="before")
            supervisor.kill("proxy", restart=False)
            await page.wait_health("silent")
            await page.wait("#health", text="No answer from the proxy")
            await page.wait("body[data-stale]")
            await supervisor.restart("proxy")
            await page.wait_health("ok")
            await page.wait("body:not([data-stale])")
            await log.append(b"after")
            await page.wait("#entries tr:first-child", text="after")

    asyncio.run(story())


def test_a_stopped_topic_shows_with_its_reason_and_its_remedy(tmp_path: Path) -> None:
    """The repository was restored from an older copy while a node is away: in the top line, at its log streams and at
    the topic, in words that are text to the page; and gone when the order was adopted."""

    async def story() -> None:
        ports = free_ports(6)
        plan = ClusterPlan(tmp_path, ports[:5], replicas=3, streams=2, heartbeat_s=0.1, proxy_port=ports[5])
        async with (
            asyncio.timeout(STORY_S),
            harmed_cluster(plan, [Ordering.COMMITTED]) as cluster,
            browser() as opened,
        ):
            await cluster.append(30)
            copy = cluster.copy("older", "vmr")
            await cluster.append(30)
            await cluster.wait_rows_synced()
            cluster.kill_all()
            cluster.restore(copy, "vmr")
            await cluster.restart(*(name for name in cluster.names() if name != "vsn-3"))
            await cluster.wait_status(lambda seen: any(topic.stopped for topic in seen.view.topics))
            async with visit(opened, f"http://{plan.proxy}") as page:
                await page.open()
                await page.wait_health("bad")
                await page.wait("#health", text=f"Topic {COMMITTED} is STOPPED: ")
                await page.wait("#health", text=f"varlog topic adopt-order {COMMITTED}")
                assert (await page.page.title()).startswith(f"● varlog: Topic {COMMITTED} is STOPPED")
                await page.wait("#problems li", text="Node 3 is unreachable")
                await page.wait("#topology .topic-row[data-stopped]", text="STOPPED")
                await page.wait("#topics .stopped", text="knows")
                assert await page.text("#topics .stopped code") == f"varlog topic adopt-order {COMMITTED}"
                await page.picture("dashboard-stopped")
                done = cluster.varlog(
                    "topic", "adopt-order", COMMITTED, "--cluster", cluster.address, "--yes"
                )
                assert done.returncode == 0, done.stdout + done.stderr
                await cluster.restart("vsn-3")
                await page.wait_health("ok")
                await page.wait("#topics .stopped", gone=True)
                await page.wait_count("#topology .topic-row[data-stopped]", 0)

    asyncio.run(story())


def test_what_the_page_shows_of_slow_nodes_evidence_and_foreign_data_is_text(tmp_path: Path) -> None:
    """A prepared status with markup in every sentence: each is shown as it is, and nothing of it becomes an element."""
    mark = "<img src=x onerror=alert(1)>"

    async def story() -> None:
        async with (
            asyncio.timeout(STORY_S),
            cluster_with_proxy(tmp_path) as supervisor,
            browser() as opened,
            visit(opened, f"http://{supervisor.plan.proxy}") as page,
        ):
            async with httpx.AsyncClient() as http:
                status = (await http.get(f"http://{supervisor.plan.proxy}/v1/status", timeout=60)).json()
            status["topics"][0] |= {"stopped_reason": mark, "remedy": mark}
            status["nodes"][0] |= {"slow": True, "write_latency_ms": 83.2, "foreign_log_streams": [7, 9]}
            status["nodes"][1] |= {"alive": False, "reason": f"it belongs to the cluster with UUID {mark}"}
            status["log_streams"][0]["replicas"][0] |= {
                "evidence": f"it knows more: {mark}",
                "state": "frozen",
            }
            status["repository_errors"] = [f"the journal has no mirror any more: {mark}"]
            event = f"event: status\ndata: {json.dumps(status)}\n\n"

            async def prepared(route: Route) -> None:
                await route.fulfill(status=200, content_type="text/event-stream", body=event)

            await page.page.route("**/v1/status/events", prepared)
            await page.open()
            await page.wait("#health", text=f"Topic orders is STOPPED: {mark}")
            await page.wait("#problems li[data-level='bad']", text="Node 2 is not of this cluster")
            await page.wait("#problems li[data-level='bad']", text="contradicts the metadata repository")
            await page.wait("#problems li[data-level='warn']", text="Node 1 is slow: its disk takes 83.2 ms")
            await page.wait(
                "#problems li[data-level='warn']", text="Metadata repository: the journal has no mirror"
            )
            await page.wait(
                "#problems li[data-level='note']", text="Node 1 has data of another cluster: 2 replicas"
            )
            await page.wait("th[data-node='1'][data-state='slow'] .condition", text="slow 83.2 ms")
            await page.wait(".replica[data-state='frozen'] .remark", text="evidence")
            await page.picture("dashboard-words")
            assert await page.look("document.querySelectorAll('img').length") == 0

    asyncio.run(story())


# --- pictures for the documentation -------------------------------------------------------------------------------------

# The time span of the charts; it does not matter where no picture is taken.
PICTURE_S = 150.0 if SCREENSHOTS else 2.0
ITEMS = ("espresso", "flat white", "cortado", "filter", "matcha", "croissant")
PEOPLE = ("Ada", "Grace", "Edsger", "Barbara", "Radia", "Ken", "Frances")


def test_screenshot_of_a_cluster_at_work(tmp_path: Path) -> None:
    """A little traffic, and a node that is lost and comes back. `make screenshot` stores its pictures in docs/, light
    and dark."""

    async def story() -> None:
        async with (
            asyncio.timeout(STORY_S + PICTURE_S),
            cluster_with_proxy(tmp_path) as supervisor,
            aio.connect(supervisor.address, "orders", timeout_s=PATIENCE_S) as orders,
            aio.admin(supervisor.address, timeout_s=PATIENCE_S) as admin,
            browser() as opened,
        ):
            await admin.create_topic("clicks", streams=1, ordering="sequenced")
            async with (
                aio.connect(supervisor.address, "clicks", timeout_s=PATIENCE_S) as clicks,
                visit(opened, f"http://{supervisor.plan.proxy}", height=1030) as light,
                visit(opened, f"http://{supervisor.plan.proxy}", height=1030, colours="dark") as dark,
            ):
                work = [_shop(orders), _clicks(clicks), *(_reader(orders, *reader) for reader in READERS)]
                tasks = [asyncio.create_task(one, name=f"traffic/{i}") for i, one in enumerate(work)]
                for page in (light, dark):
                    await page.open("/#orders")
                await asyncio.sleep(PICTURE_S * 0.6)
                supervisor.kill("vsn-2", restart=False)
                await light.wait_health("bad")
                await light.picture("dashboard-fault")
                await supervisor.restart("vsn-2")
                for page in (light, dark):
                    await page.wait_health("ok")
                await asyncio.sleep(PICTURE_S * 0.4)
                for page in (light, dark):
                    await page.wait("#health", text="All well: 3 nodes, 3 log streams running")
                await light.wait_count("#topics .readers li", len(READERS))
                await light.picture("dashboard")
                await dark.picture("dashboard-dark")
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    asyncio.run(story())


# The interval at which a reader reports its position, and how many entries it reads in between.
READERS = (("billing", 0.5, 10_000), ("search-index", 1.0, 28), ("spark:archive", 6.0, 260))


async def _shop(log: Log) -> None:
    chance = random.Random(7)
    for number in range(1, 1_000_000):
        order = {
            "order": number,
            "item": chance.choice(ITEMS),
            "for": chance.choice(PEOPLE),
            "paid": chance.random() < 0.8,
        }
        await _append(log, json.dumps(order).encode())
        await asyncio.sleep(chance.expovariate(40))


async def _clicks(log: Log) -> None:
    chance = random.Random(8)
    while True:
        await _append(log, chance.randbytes(24))
        await asyncio.sleep(chance.expovariate(8))


async def _append(log: Log, data: bytes) -> None:
    try:
        await log.append(data)
    except VarlogError as error:
        print(f"an append while a node is away: {error}")


async def _reader(log: Log, name: str, every_s: float, entries: int) -> None:
    position = 0
    while True:
        try:
            position = min(await log.tail(), position + entries)
            if position:
                await log.set_reader(name, position)
        except VarlogError as error:
            print(f"a reader while a node is away: {error}")
        await asyncio.sleep(every_s)
