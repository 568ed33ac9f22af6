"""Attack surface: web pages in a browser that can reach the proxy.

Any page could read and change everything through a proxy: by a name of its own that resolves to the proxy's address
(DNS rebinding), and, from an old browser, by a plain form.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.proxy.helpers import Proxy, with_proxy
from tests.proxy.live_helpers import LiveProxy, with_live_proxy
from varlog.testing.processes import PATIENCE_S, command, started

ENTRIES = "/v1/topics/orders/entries"
OCTETS = {"Content-Type": "application/octet-stream"}
OLD_FIREFOX = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:52.0) Gecko/20100101 Firefox/52.0"}


async def newest(proxy: Proxy) -> int:
    return int((await proxy.http.get("/v1/topics/orders/tail")).json()["newest"])


# --- Host ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example",
        "rebound.example:7180",
        "127.0.0.1.rebound.example",
        "localhost.rebound.example:7180",
        "192.0.2.7:7180",
        "[2001:db8::1]:7180",
        "localhost:99999",
        "localhost:7180:7180",
        "localhost, rebound.example",
        "[::1",
        "",
        " ",
    ],
)
def test_a_foreign_host_reads_nothing_and_changes_nothing(tmp_path: Path, host: str) -> None:
    async def story(proxy: Proxy) -> None:
        given = {**OCTETS, "Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        for method, path in [("GET", "/"), ("GET", ENTRIES), ("POST", ENTRIES), ("GET", "/v1/status")]:
            refused = await proxy.http.request(method, path, content=b"x", headers=given)
            assert refused.status_code == 421, (method, path)
            problem = refused.json()
            assert problem["type"] == "urn:varlog:misdirected"
            assert "--public-name" in problem["remedy"]
            assert "localhost" in problem["detail"]
        assert await newest(proxy) == 0

    with_proxy(tmp_path, story)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:7180", "127.0.0.1:7180", "127.9.8.7", "[::1]:8080", "[0:0:0:0:0:0:0:1]"]
)
def test_names_of_the_loopback_are_accepted_at_any_port(tmp_path: Path, host: str) -> None:
    async def story(proxy: Proxy) -> None:
        assert (
            await proxy.http.post(ENTRIES, content=b"x", headers={**OCTETS, "Host": host})
        ).status_code == 201

    with_proxy(tmp_path, story)


def test_a_public_name_is_accepted_as_it_is_written() -> None:
    from varlog.proxy.header_rules import AcceptedNames, parse_authority

    names = AcceptedNames(["Log.Example", "other.example:8443", "[2001:db8::1]"])
    accepted = ["log.example", "LOG.example:1", "other.example:8443", "[2001:db8:0::1]:7"]
    refused = ["other.example", "other.example:8444", "sub.log.example", "example", "[2001:db8::2]"]
    assert [host for host in accepted + refused if names.accepts(host, "192.0.2.1")] == accepted
    assert names.accepts("192.0.2.1:80", "192.0.2.1")
    assert not names.accepts("192.0.2.2:80", "192.0.2.1")
    for wrong in ("", "a b", "host:", "host:port", "http://host", "host/path", "[::1", "a:1:2"):
        with pytest.raises(ValueError, match=r"host|port"):
            parse_authority(wrong)


def test_two_hosts_or_none_are_refused(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy) -> None:
        for head in (
            b"Host: localhost\r\nHost: rebound.example\r\n",
            b"Host: localhost\r\nHost: localhost\r\n",
            b"",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"GET /v1/topics HTTP/1.1\r\n" + head + b"\r\n")
            assert (await reader.readline()).split()[1] == b"421"
            writer.close()

    with_live_proxy(tmp_path, story)


@pytest.mark.process
def test_a_process_answers_for_its_public_names_and_says_which(tmp_path: Path) -> None:
    arguments = ["proxy", "--data", str(tmp_path), "--listen", "0.0.0.0:0", "--public-name", "log.example"]
    with started(arguments, "ready") as (process, ready):
        port = ready.split()[1].rpartition(":")[2]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            assert http.get("/health/live").status_code == 200
            assert http.get("/health/live", headers={"Host": f"log.example:{port}"}).status_code == 200
            assert http.get("/health/live", headers={"Host": "rebound.example"}).status_code == 421
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert "log.example" in said and "localhost" in said and "--public-name" in said
    wrong = command("varlog.cli", ["proxy", "--data", str(tmp_path), "--public-name", "http://log.example"])
    assert wrong.returncode == 2 and "no host" in wrong.stderr


# --- Where the page is from -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["cross-site", "same-site", "CROSS-SITE", "unreported-of"])
def test_a_page_of_another_site_gets_no_answer_but_may_link_to_the_dashboard(
    tmp_path: Path, site: str
) -> None:
    async def story(proxy: Proxy) -> None:
        fetch = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"}
        link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        frame = link | {"Sec-Fetch-Dest": "iframe"}
        for method, path, headers in [
            ("GET", ENTRIES, fetch),
            ("GET", "/", fetch),
            ("GET", "/", frame),
            ("GET", "/v1/status", link),
            ("GET", "/v1/topics/orders/events", fetch),
            ("GET", "/static/api.js", fetch),
            ("POST", ENTRIES, fetch),
            ("POST", ENTRIES, link),
            ("OPTIONS", ENTRIES, fetch),
        ]:
            refused = await proxy.http.request(method, path, headers=headers | OCTETS, content=b"x")
            assert refused.status_code == 403, (method, path)
            assert refused.json()["type"] == "urn:varlog:foreign-origin"
        assert (await proxy.http.get("/", headers=link)).status_code == 200
        assert await newest(proxy) == 0

    with_proxy(tmp_path, story)


@pytest.mark.parametrize("site", ["same-origin", "none", None])
def test_the_dashboard_an_address_bar_and_a_program_are_answered(tmp_path: Path, site: str | None) -> None:
    async def story(proxy: Proxy) -> None:
        headers = OCTETS | ({"Sec-Fetch-Site": site} if site else {})
        assert (await proxy.http.get(ENTRIES, headers=headers)).status_code == 200
        assert (await proxy.http.post(ENTRIES, content=b"x", headers=headers)).status_code == 201

    with_proxy(tmp_path, story)


@pytest.mark.parametrize(
    "media",
    [
        "text/plain",
        "text/plain; charset=utf-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "",
    ],
)
def test_a_form_of_an_old_browser_that_names_no_origin_is_refused(tmp_path: Path, media: str) -> None:
    async def story(proxy: Proxy) -> None:
        headers = OLD_FIREFOX | ({"Content-Type": media} if media else {})
        for path in (ENTRIES, "/v1/log-streams/1/seal", "/v1/topics/orders/trim", "/v1/topics"):
            refused = await proxy.http.post(path, content=b'{"name":"x","until":1}', headers=headers)
            assert refused.status_code == 403, path
        topics = (await proxy.http.get("/v1/topics", headers=OLD_FIREFOX)).json()
        assert [topic["name"] for topic in topics["topics"]] == ["orders"]
        assert await newest(proxy) == 0
        program = await proxy.http.post(ENTRIES, content=b"x", headers=OLD_FIREFOX | OCTETS)
        assert program.status_code == 201, "no form can send this type"

    with_proxy(tmp_path, story)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("rebound.example", "http://rebound.example", 421),
        (None, "http://elsewhere.example", 403),
        (None, "null", 403),
    ],
)
def test_a_websocket_of_a_foreign_page_is_not_opened(
    tmp_path: Path, host: str | None, origin: str, status: int
) -> None:
    async def story(proxy: LiveProxy) -> None:
        headers = {"Origin": origin}
        uri = f"ws://{host or '127.0.0.1'}:{proxy.port}/v1/topics/orders/socket"
        with pytest.raises(InvalidStatus) as refused:
            async with connect(uri, host="127.0.0.1", port=proxy.port, additional_headers=headers):
                pass
        assert refused.value.response.status_code == status
        async with proxy.socket(additional_headers={"Origin": f"http://127.0.0.1:{proxy.port}"}):
            pass

    with_live_proxy(tmp_path, story)


def test_no_response_admits_other_sites(tmp_path: Path) -> None:
    """No CORS header anywhere; every response keeps its type, and no other site may embed it."""

    async def story(proxy: Proxy) -> None:
        for path in ("/", ENTRIES, "/v1/status", "/nowhere", "/metrics", "/openapi.json", "/static/api.js"):
            answer = await proxy.http.get(path)
            assert not [name for name in answer.headers if name.startswith("access-control")], path
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert "vary" not in answer.headers
        policy = (await proxy.http.get("/")).headers["content-security-policy"]
        assert "script-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy

    with_proxy(tmp_path, story)


# --- Other malformed requests
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: 4\r\n Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
    ],
)
def test_a_body_with_two_lengths_is_rejected(tmp_path: Path, framing: bytes) -> None:
    """A proxy in between may use the other length, and treat the rest as a request of another client."""

    async def story(proxy: LiveProxy) -> None:
        smuggled = b"POST /v1/topics/orders/entries HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(smuggled + framing + b"\r\n0\r\n\r\n" + smuggled + b"Content-Length: 1\r\n\r\nx")
        writer.write_eof()
        answers = await reader.read()
        assert answers.startswith(b"HTTP/1.1 400"), answers[:200]
        assert answers.count(b"HTTP/1.1 ") == 1, "nothing that follows is a request"
        writer.close()
        assert await (await proxy.log()).tail() == 0

    with_live_proxy(tmp_path, story)


def test_paths_names_and_bodies_stay_what_they_are(tmp_path: Path) -> None:
    """Files beside the dashboard's, names that are headers, values nested without end, bodies that are compressed."""

    async def story(proxy: Proxy) -> None:
        for path in (
            "../pages.py",
            "..%2fpages.py",
            "%2e%2e/pages.py",
            "....//pages.py",
            "/etc/passwd",
            "%00",
        ):
            assert (await proxy.http.get(f"/static/{path}")).status_code in (404, 400), path
        for name in ("x%0d%0aSet-Cookie:%20a=b", "x%00", "%1b[31m"):
            answer = await proxy.http.post(f"/v1/topics/{name}/entries", content=b"x", headers=OCTETS)
            assert answer.status_code in (404, 422) and "set-cookie" not in answer.headers
        deep = b"[" * 1_000_000
        for body in (deep, b'{"entries":[{"json":' + deep, b'{"name":' + deep):
            for path in (ENTRIES, "/v1/topics"):
                bad = await proxy.http.post(path, content=body, headers={"Content-Type": "application/json"})
                assert bad.status_code == 422, (path, body[:30])
        packed = {**OCTETS, "Content-Encoding": "gzip"}
        refused = await proxy.http.post(ENTRIES, content=b"\x1f\x8b", headers=packed)
        assert refused.status_code == 415 and "Content-Encoding" in json.dumps(refused.json())
        assert (await proxy.http.get(ENTRIES, headers={"Range": "bytes=0-1,2-3," * 1000})).status_code == 200
        assert await newest(proxy) == 0

    with_proxy(tmp_path, story)


# --- In a browser ---------------------------------------------------------------------------------------------------------

# What a page of another origin tries: read, append and subscribe in each way that a browser has. Returns what it could
# see.
_TRIES = """async (proxy) => {
  const entries = proxy + '/v1/topics/orders/entries';
  const seen = [];
  const attempt = async (name, work) => {
    try { seen.push([name, await work()]); } catch (error) { seen.push([name, 'failed']); }
  };
  const post = (mode, type) => fetch(entries, {method: 'POST', mode, body: 'stolen', headers: {'Content-Type': type}});
  await attempt('read', async () => (await fetch(entries)).text());
  await attempt('blind read', async () => (await fetch(entries, {mode: 'no-cors'})).type);
  await attempt('blind append', async () => (await post('no-cors', 'text/plain')).type);
  await attempt('append', async () => (await post('cors', 'application/json')).status);
  await attempt('beacon', async () => navigator.sendBeacon(entries, 'stolen'));
  await attempt('socket', () => new Promise((done) => {
    const socket = new WebSocket(entries.replace('http', 'ws').replace('/entries', '/socket'));
    socket.onopen = () => { socket.send('{"append": [{"text": "stolen"}]}'); done('open'); };
    socket.onerror = () => done('failed');
  }));
  await attempt('events', () => new Promise((done) => {
    const events = new EventSource(entries.replace('/entries', '/events'));
    events.onopen = () => done('open');
    events.onerror = () => { events.close(); done('failed'); };
  }));
  await attempt('form', () => new Promise((done) => {
    const frame = document.createElement('iframe');
    frame.name = 'target';
    frame.onload = () => done('sent');
    const form = document.createElement('form');
    Object.assign(form, {method: 'POST', action: entries, enctype: 'text/plain', target: 'target'});
    form.append(Object.assign(document.createElement('input'), {name: 'stolen', value: '1'}));
    document.body.append(frame, form);
    form.submit();
    setTimeout(() => done('sent'), 2000);
  }));
  return Object.fromEntries(seen);
}"""


@pytest.mark.process
@pytest.mark.parametrize("rebound", [True, False], ids=["rebound name", "another origin"])
def test_in_chromium_no_page_of_another_site_reads_or_appends(tmp_path: Path, rebound: bool) -> None:
    from tests.e2e.browser import STORY_S, browser, visit

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<!doctype html><title>elsewhere</title><body>"
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (len(body), body)
        )
        writer.close()

    async def story(proxy: LiveProxy) -> None:
        log = await proxy.log()
        await log.append(b"secret")
        elsewhere = await asyncio.start_server(page, "127.0.0.1", 0)
        port = elsewhere.sockets[0].getsockname()[1]
        async with (
            asyncio.timeout(STORY_S),
            elsewhere,
            browser("--host-resolver-rules=MAP *.example 127.0.0.1") as opened,
        ):
            context = await opened.new_context()
            tab = await context.new_page()
            if rebound:
                # As after the name resolves to the proxy: to the browser, page and proxy are one site.
                answer = await tab.goto(f"http://rebound.example:{proxy.port}/v1/status")
                assert answer is not None and answer.status == 421
                target = f"http://rebound.example:{proxy.port}"
            else:
                await tab.goto(f"http://elsewhere.example:{port}/")
                target = f"http://127.0.0.1:{proxy.port}"
            seen = await tab.evaluate(_TRIES, target)
            assert "secret" not in json.dumps(seen)
            assert (seen["socket"], seen["events"]) == ("failed", "failed"), seen
            await context.close()
            async with visit(opened, f"http://127.0.0.1:{proxy.port}") as own:
                await own.open()
                await own.wait("#entries tr", text="secret")
        assert await log.tail() == 1, "nothing was appended"

    with_live_proxy(tmp_path, story)
