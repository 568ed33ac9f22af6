"""The proxy as a process.

In front of a directory, beside a cluster that `varlog up` runs, restarted, and stopped in order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from varlog.localcluster.ports import free_block
from varlog.testing.processes import PATIENCE_S, children_of, living, started

pytestmark = pytest.mark.process

TEXT = {"content-type": "text/plain"}


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def stop(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(PATIENCE_S)


def test_a_proxy_serves_a_directory_and_its_data_stays(tmp_path: Path) -> None:
    """R-USE-1. A subscriber that never leaves does not keep it from stopping, and is notified."""
    arguments = ["proxy", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--page-max", "2"]
    with started(arguments, "ready") as (process, ready):
        with httpx.Client(base_url=f"http://{ready.split()[1]}", timeout=PATIENCE_S) as http:
            assert http.post("/v1/topics", json={"name": "orders"}).status_code == 201
            appended = http.post("/v1/topics/orders/entries", content="a\nb\nc", headers=TEXT)
            assert appended.json()["count"] == 3
            page = http.get("/v1/topics/orders/entries?limit=3").json()
            assert (len(page["entries"]), page["next"]) == (2, 3), "--page-max is kept"
            assert http.get("/").headers["content-type"].startswith("text/html")
            with http.stream("GET", "/v1/topics/orders/events") as events:
                lines = events.iter_lines()
                seen = [next(line for line in lines if line.startswith("id:")) for _ in range(3)]
                process.send_signal(signal.SIGTERM)
                assert seen[-1] == "id: 3"
                assert "event: end" in list(lines)
        assert process.wait(PATIENCE_S) == 0
    with (
        started(["proxy", "--data", str(tmp_path), "--listen", "127.0.0.1:0"], "ready") as (process, ready),
        httpx.Client(base_url=f"http://{ready.split()[1]}", timeout=PATIENCE_S) as http,
    ):
        assert [entry["data"] for entry in http.get("/v1/topics/orders/entries").json()["entries"]] == [
            "a",
            "b",
            "c",
        ]
        second = subprocess.run(
            [sys.executable, "-m", "varlog.cli", "proxy", "--data", str(tmp_path), "--listen", "127.0.0.1:0"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert second.returncode == 1 and "is open already" in second.stderr
        assert stop(process) == 0


def test_a_proxy_started_before_its_cluster_waits_for_it_and_reports_it(tmp_path: Path) -> None:
    """It may be started first: what it cannot do yet is a problem with a remedy, and it keeps running."""
    with (
        free_block() as port,
        started(["proxy", "--cluster", f"127.0.0.1:{port}", "--listen", "127.0.0.1:0"], "ready") as (
            process,
            ready,
        ),
        httpx.Client(base_url=f"http://{ready.split()[1]}", timeout=PATIENCE_S) as http,
    ):
        assert http.get("/health/live").status_code == 200
        assert http.get("/health/ready").status_code in (503, 504)
        problem = http.get("/v1/topics/orders/tail?timeout=0.5").json()
        assert problem["status"] in (503, 504) and problem["remedy"]
        up = ["up", f"--data={tmp_path}", f"--port={port}", "--nodes=1", "--no-proxy"]
        with started(up, "Ctrl-C") as (cluster, said):
            assert "http://" not in said
            wait(lambda: http.get("/health/ready").status_code == 200, "the proxy finds its cluster")
            assert http.get("/v1/topics/default/tail").json()["newest"] == 0
            assert stop(cluster) == 0
        assert stop(process) == 0


def test_up_runs_a_proxy_and_its_status_shows_a_node_die_and_come_back(tmp_path: Path) -> None:
    """R-SEAL-2: what the dashboard shows, without the dashboard."""
    with free_block() as port:
        _watch_a_node_die(
            ["up", f"--data={tmp_path}", f"--port={port}", "--nodes=3", "--streams=1"], port + 99
        )


def _watch_a_node_die(up: list[str], proxy_port: int) -> None:
    with started([*up, f"--proxy-port={proxy_port}"], "Ctrl-C") as (process, ready):
        assert f"open http://127.0.0.1:{proxy_port}" in ready
        children = children_of(process.pid)
        with httpx.Client(base_url=f"http://127.0.0.1:{proxy_port}", timeout=PATIENCE_S) as http:

            def status() -> dict[str, Any]:
                found: dict[str, Any] = http.get("/v1/status").json()
                return found

            def restarts() -> int:
                return sum("storage node 3 answers again" in event["message"] for event in status()["events"])

            wait(lambda: [node["alive"] for node in status()["nodes"]] == [True] * 3, "all nodes are seen")
            assert http.post("/v1/topics/default/entries", content="x", headers=TEXT).status_code == 201
            [node] = [found for found in children if "--storage-node-id=3" in found.cmdline()]
            os.kill(node.pid, signal.SIGKILL)
            wait(lambda: restarts() >= 1, "the manager sees it go, and come back")
            wait(lambda: status()["log_streams"][0]["state"] == "running", "its stream runs again")
            assert any("does not answer" in event["message"] for event in status()["events"])
            assert http.post("/v1/topics/default/entries", content="y", headers=TEXT).status_code == 201
        [proxy] = [found for found in children_of(process.pid) if "proxy" in found.cmdline()]
        os.kill(proxy.pid, signal.SIGKILL)

        def answers() -> bool:
            try:
                return (
                    httpx.get(f"http://127.0.0.1:{proxy_port}/health/ready", timeout=PATIENCE_S).status_code
                    == 200
                )
            except httpx.TransportError:
                return False

        wait(answers, "a proxy that died is restarted")
        newest = httpx.get(f"http://127.0.0.1:{proxy_port}/v1/topics/default/tail", timeout=PATIENCE_S).json()
        assert newest["newest"] == 2
        children = children_of(process.pid)
        assert stop(process) == 0
        assert living(children) == []
