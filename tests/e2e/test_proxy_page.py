"""docs/guide/http.md has every route, error, limit and metric.

Its curl lines print what is shown below them.
"""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from tests.e2e.pages import blocks, broken_links, page
from tests.e2e.shell import Shell, alike, typed_in
from varlog.cli.main import app as commands
from varlog.model import errors as model
from varlog.proxy.app import make_app
from varlog.proxy.errors import ChangeUnknown, ProxyError
from varlog.proxy.gateway import EmbeddedBackend, Gateway
from varlog.testing.processes import PATIENCE_S

PAGE = "docs/guide/http.md"
TABLES = page(PAGE)
# The address of the proxy on the page.
PORT = 7180
# Why an append found no log stream: the node's own reason, or the view's for all of them, whichever came first.
CHANCE = {r"took it within 2 s \([^)]*\)": "took it within 2 s (why)"}


@contextmanager
def proxy_of(directory: Path) -> Iterator[int]:
    """The port of a proxy that has opened the directory."""
    process = subprocess.Popen(
        [sys.executable, "-m", "varlog.cli", "proxy", f"--data={directory}", "--listen=127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        printed = process.stdout.readline()
        assert printed.startswith("ready"), process.stderr.read()
        yield int(printed.rpartition(":")[2])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
@pytest.mark.parametrize(
    "real_curl", [pytest.param(True, id="curl"), pytest.param(False, id="stand-in", marks=pytest.mark.faults)]
)
def test_every_curl_line_prints_what_is_shown_below_it(tmp_path: Path, real_curl: bool) -> None:
    """R-USE-1: with the machine's own curl, and with its stand-in where there is none."""
    shown = [typed for block in blocks(PAGE) if block.language == "console" for typed in typed_in(block)]
    assert len(shown) > 15
    with proxy_of(tmp_path / "data") as port:
        shell = Shell(tmp_path, {PORT: port}, real_curl=real_curl)
        for typed in shown:
            printed = shell.run(typed.command)
            assert alike(printed, typed.shown, masks=CHANCE), f"{typed.where}\n{printed}"


def application(directory: Path) -> FastAPI:
    return make_app(Gateway(EmbeddedBackend(directory, sync=False)))


def test_every_route_is_in_the_table_and_no_other(tmp_path: Path) -> None:
    paths = application(tmp_path).openapi()["paths"]
    there = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    there |= {"GET /metrics", "GET /openapi.json", "GET /", "WS /v1/topics/{topic}/socket"}
    table = TABLES.split("## Routes", 1)[1].split("## Errors", 1)[0]
    assert set(re.findall(r"^\| `([A-Z]+ /[^`]*)`", table, re.MULTILINE)) == there


def test_every_metric_is_in_the_table_and_no_other(tmp_path: Path) -> None:
    async def names() -> set[str]:
        app = application(tmp_path)
        transport = httpx.ASGITransport(app)
        async with (
            asyncio.timeout(PATIENCE_S),
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        ):
            assert (await http.post("/v1/topics", json={"name": "orders"})).status_code == 201
            text = (await http.get("/metrics")).text
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        # The library adds creation times, which are of no use here.
        return {name for name in kinds if not name.endswith("_created")}

    table = TABLES.split("## Metrics", 1)[1].split("Worth an alarm", 1)[0]
    documented = {
        name
        for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert documented == asyncio.run(names())


def test_every_limit_that_can_be_set_is_in_the_table() -> None:
    helped = CliRunner().invoke(commands, ["proxy", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    limits = helped.output.split("Limits", 1)[1].split("╰", 1)[0]
    options = set(re.findall(r"(--[a-z-]+)", limits))
    assert len(options) >= 8
    assert {option for option in options if f"`{option}`" not in TABLES} == set()


def test_every_error_of_the_proxy_is_in_the_table() -> None:
    kinds: list[type[Exception]] = [
        *ProxyError.__subclasses__(),
        *(
            ChangeUnknown,
            model.UnknownTopic,
            model.UnknownLogStream,
            model.NotWritten,
            model.Trimmed,
            model.JunkPosition,
        ),
        *(model.EntryTooLarge, model.BatchTooLarge, model.Sealed, model.NotAccepted, model.OutcomeUnknown),
        *(
            model.Unavailable,
            model.ReaderBehind,
            model.PreconditionFailed,
            model.TrimBeyondTail,
            model.InvalidRequest,
        ),
    ]
    names = {re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower() for kind in kinds}
    table = TABLES.split("## Errors", 1)[1].split("## Limits", 1)[0]
    assert {name for name in names if f"`{name}`" not in table} == set()


def test_every_link_of_the_page_resolves() -> None:
    assert broken_links(PAGE) == []
