"""Topics, log streams, nodes and the status over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.proxy.helpers import TEST_S, Proxy, running_proxy, with_proxy
from tests.proxy.live_helpers import EventReader, LiveProxy, wait_until, with_live_proxy
from varlog.client.admin import Admin
from varlog.model.errors import Unavailable
from varlog.proxy.gateway import EmbeddedBackend
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.wire import StatusOut


def test_a_topic_is_made_listed_shown_and_deleted(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        http = proxy.http
        made = await http.post("/v1/topics", json={"name": "orders", "streams": 2})
        assert (made.status_code, made.headers["location"]) == (201, "/v1/topics/orders")
        assert [stream["state"] for stream in made.json()["log_streams"]] == ["running", "running"]
        again = await http.post("/v1/topics", json={"name": "orders", "streams": 2})
        assert again.status_code == 200 and again.json()["topic_id"] == made.json()["topic_id"]
        await (await proxy.gateway.log("orders")).append_batch([b"a", b"b"])
        await (await proxy.gateway.log("orders")).set_reader("nightly", 1)
        proxy.gateway.status_changed()
        shown = (await http.get("/v1/topics/orders")).json()
        assert (shown["oldest"], shown["newest"], shown["log_stream_ids"]) == (1, 2, [1, 2])
        [reader] = (await http.get("/v1/topics/orders/readers")).json()["readers"]
        assert (reader["name"], reader["position"], reader["lag_entries"]) == ("nightly", 1, 1)
        assert [topic["name"] for topic in (await http.get("/v1/topics")).json()["topics"]] == ["orders"]
        assert (await http.delete("/v1/topics/orders")).status_code == 204
        gone = await http.get("/v1/topics/orders")
        assert (gone.status_code, gone.json()["type"]) == (404, "urn:varlog:unknown-topic")
        assert (await http.delete("/v1/topics/orders")).status_code == 404
        assert (await http.get("/v1/topics/orders/tail")).status_code == 404

    with_proxy(tmp_path, story, topic="")


def test_a_recreated_topic_is_another_one(tmp_path: Path) -> None:
    """The log that the proxy had opened for the old one is not used for it."""

    async def story(proxy: Proxy) -> None:
        for ordering in ("committed", "sequenced"):
            made = await proxy.http.post("/v1/topics", json={"name": "orders", "ordering": ordering})
            assert (made.status_code, made.json()["ordering"]) == (201, ordering)
            appended = await proxy.http.post(
                "/v1/topics/orders/entries", content="one", headers={"content-type": "text/plain"}
            )
            assert (appended.status_code, appended.json()["glsn"]) == (201, 1)
            assert (await proxy.http.delete("/v1/topics/orders")).status_code == 204

    with_proxy(tmp_path, story, topic="")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "no/slash"}, 422),
        ({"name": "x", "streams": -1}, 422),
        ({"name": "x", "strems": 1}, 422),
        ({"name": "x", "ordering": "alphabetical"}, 422),
        ({"name": "x", "replicas": 3}, 409),
        ({"name": "orders", "ordering": "sequenced"}, 409),
    ],
)
def test_a_topic_that_cannot_be_created_is_refused_with_the_reason(
    tmp_path: Path, body: dict[str, object], status: int
) -> None:
    async def story(proxy: Proxy) -> None:
        refused = await proxy.http.post("/v1/topics", json=body)
        assert refused.status_code == status, refused.text
        problem = refused.json()
        assert problem["outcome"] == "none" and problem["detail"] and problem["remedy"]

    with_proxy(tmp_path, story)


def test_a_log_stream_is_sealed_by_hand_and_unsealed(tmp_path: Path) -> None:
    """R-SEAL-1: a sealed stream accepts no appends; a request right after an action sees it."""

    async def story(proxy: Proxy) -> None:
        http = proxy.http
        sealed = (await http.post("/v1/log-streams/1/seal")).json()
        assert (sealed["state"], sealed["sealed_by_admin"]) == ("sealed", True)
        assert (await http.get("/v1/log-streams/1")).json()["sealed_by_admin"]
        refused = await http.post(
            "/v1/topics/orders/entries?timeout=0.2", content="x", headers={"content-type": "text/plain"}
        )
        assert (refused.status_code, refused.json()["outcome"]) == (503, "none")
        running = (await http.post("/v1/log-streams/1/unseal")).json()
        assert (running["state"], running["sealed_by_admin"]) == ("running", False)
        appended = await http.post(
            "/v1/topics/orders/entries", content="x", headers={"content-type": "text/plain"}
        )
        assert appended.status_code == 201
        for action in ("seal", "unseal"):
            assert (await http.post(f"/v1/log-streams/99/{action}")).status_code == 404

    with_proxy(tmp_path, story)


def test_the_streams_of_a_sequenced_topic_are_not_sealed_individually(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        await proxy.create_topic("fast", ordering="sequenced")
        [stream] = (await proxy.http.get("/v1/log-streams?topic=fast")).json()["log_streams"]
        assert [replica["role"] for replica in stream["replicas"]] == ["only"]
        refused = await proxy.http.post(f"/v1/log-streams/{stream['log_stream']}/seal")
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:varlog:precondition-failed")

    with_proxy(tmp_path, story)


def test_nodes_are_listed_with_what_they_hold(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        [node] = (await proxy.http.get("/v1/nodes")).json()["nodes"]
        assert (node["node"], node["alive"], node["replica_count"]) == (1, True, 1)
        [held] = (await proxy.http.get("/v1/nodes/1")).json()["replicas"]
        assert (held["log_stream"], held["topic"], held["role"]) == (1, "orders", "primary")
        missing = await proxy.http.get("/v1/nodes/2")
        assert (missing.status_code, missing.json()["type"]) == (404, "urn:varlog:no-such-node")

    with_proxy(tmp_path, story)


def test_a_status_has_rates_once_there_are_two_samples(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        first = StatusOut.model_validate((await proxy.http.get("/v1/status")).json())
        assert first.rates.append_entries_per_s is None and first.topics[0].append_entries_per_s is None
        log = await proxy.gateway.log("orders")
        await log.append_batch([b"x" * 1_000] * 50)
        await log.read(1)
        async with asyncio.timeout(TEST_S):
            while True:
                proxy.gateway.status_changed()
                seen = StatusOut.model_validate((await proxy.http.get("/v1/status")).json())
                if seen.rates.append_entries_per_s is not None:
                    break
                await asyncio.sleep(0.05)
        assert seen.rates.append_entries_per_s > 0.0 and seen.topics[0].append_entries_per_s
        assert seen.rates.append_bytes_per_s is not None and seen.rates.append_bytes_per_s > 50_000 / TEST_S
        assert seen.rates.read_entries_per_s and seen.nodes[0].append_entries_per_s
        assert seen.rates.append_latency_ms.p50 is not None and seen.rates.append_latency_ms.p50 > 0
        assert seen.topics[0].newest == 50 and seen.log_streams[0].newest_llsn == 50

    with_proxy(tmp_path, story)


class _Silent(EmbeddedBackend):
    """A cluster that can be administered, if at all, only sometimes."""

    reachable = True

    async def admin(self) -> Admin:
        if not self.reachable:
            raise Unavailable("nobody listens there")
        return await super().admin()


def test_a_cluster_that_cannot_be_reached_is_a_problem_and_the_process_lives(tmp_path: Path) -> None:
    async def run() -> None:
        opener = _Silent(tmp_path, sync=False)
        opener.reachable = False
        async with asyncio.timeout(TEST_S), running_proxy(tmp_path, topic="", opener=opener) as proxy:
            http = proxy.http
            assert (await http.get("/health/live")).json() == {"live": True}
            not_ready = await http.get("/health/ready")
            assert (not_ready.status_code, not_ready.json()["type"]) == (503, "urn:varlog:unavailable")
            assert not_ready.headers["retry-after"]
            assert (await http.get("/v1/status")).status_code == 503
            seen = (await http.get("/metrics")).text
            assert "varlog_cluster_up 0.0" in seen and "varlog_node_up{" not in seen
            opener.reachable = True
            ready = (await http.get("/health/ready")).json()
            assert ready["ready"] and ready["cluster"] > 0
            assert (await http.get("/v1/status")).status_code == 200

    asyncio.run(run())


def test_metrics_cover_the_proxy_and_the_cluster(tmp_path: Path) -> None:
    """Requests by route and status, entries and bytes, nodes, streams, replicas, readers."""

    async def story(proxy: Proxy) -> None:
        http = proxy.http
        entries = "/v1/topics/orders/entries"
        for _ in range(3):
            assert (
                await http.post(entries, content="abcd", headers={"content-type": "text/plain"})
            ).status_code == 201
        await http.get("/v1/topics/nothing/tail")
        await http.get("/somewhere/else")
        await (await proxy.gateway.log("orders")).set_reader("nightly", 1)
        answer = await http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        lines = answer.text.splitlines()
        for line in (
            'varlog_proxy_requests_total{method="POST",route="/v1/topics/{topic}/entries",status="201"} 3.0',
            'varlog_proxy_requests_total{method="GET",route="/v1/topics/{topic}/tail",status="404"} 1.0',
            'varlog_proxy_requests_total{method="GET",route="none",status="404"} 1.0',
            "varlog_proxy_appended_entries_total 3.0",
            "varlog_proxy_appended_bytes_total 12.0",
            "varlog_cluster_up 1.0",
            'varlog_node_append_entries_total{node="1"} 3.0',
            'varlog_node_append_duration_seconds_count{node="1"} 3.0',
            'varlog_topic_newest_position{topic="orders"} 3.0',
            'varlog_log_stream_running{log_stream="1",topic="orders"} 1.0',
            'varlog_log_stream_high_watermark{log_stream="1",topic="orders"} 3.0',
            'varlog_reader_lag_entries{reader="nightly",topic="orders"} 2.0',
        ):
            assert line in lines, f"{line}\nis not in\n{answer.text}"
        assert any(line.startswith("varlog_node_up{") and line.endswith(" 1.0") for line in lines)
        assert any(line.startswith('varlog_proxy_request_duration_seconds_bucket{le="0.') for line in lines)

    with_proxy(tmp_path, story)


@asynccontextmanager
async def status_events(proxy: LiveProxy) -> AsyncIterator[EventReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=2**24)
    try:
        writer.write(b"GET /v1/status/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield EventReader(reader, writer)
    finally:
        writer.close()


def test_the_status_comes_every_second_and_a_change_is_in_one_of_the_next(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with status_events(proxy) as events:
            assert await events.status() == 200
            name, _, first = await events.next()
            assert name == "status" and first["topics"][0]["newest"] == 0
            assert proxy.metric("varlog_proxy_subscriptions", kind="status") == 1.0
            await (await proxy.log()).append_batch([b"x"] * 5)
            # Not always the very next: that one may have been in flight before the append was done.
            newest, rate = 0, 0.0
            while not (newest and rate):
                name, _, seen = await events.next()
                newest = seen["topics"][0]["newest"]
                rate = max(rate, seen["rates"]["append_entries_per_s"] or 0.0)
                assert name == "status" and newest in (0, 5)
        await wait_until(lambda: proxy.metric("varlog_proxy_subscriptions", kind="status") == 0.0)

    with_live_proxy(tmp_path, story)


def test_looks_at_the_status_are_subscriptions_and_bounded_like_others(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        async with status_events(proxy) as one, status_events(proxy) as two:
            assert await one.status() == await two.status() == 200
            async with status_events(proxy) as three:
                assert await three.status() == 429

    with_live_proxy(tmp_path, story, limits=ProxyLimits(subscriptions_max=2))
