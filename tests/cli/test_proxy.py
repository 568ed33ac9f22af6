"""`varlog proxy` and the proxy of `varlog up`, as far as they are decided before a process is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import varlog.cli.proxy
from varlog.cli import up
from varlog.cli.main import app
from varlog.localcluster.plan import ClusterPlan, ports_from, proxy_port_from, sequencer_port_from
from varlog.localcluster.ports import free_ports, is_free

runner = CliRunner()


def refused(*arguments: str) -> str:
    result = runner.invoke(app, ["proxy", *arguments])
    assert result.exit_code != 0 and "Traceback" not in result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr


def test_a_proxy_of_two_logs_is_refused(tmp_path: Path) -> None:
    assert "name two different logs" in refused("--cluster", "127.0.0.1:1", "--data", str(tmp_path))


def test_a_directory_of_a_cluster_of_processes_is_refused_and_the_remedy_named(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    assert "varlog up --data" in refused("--data", str(tmp_path))


def test_limits_that_contradict_each_other_are_refused() -> None:
    assert "timeout_s" in refused("--timeout", "20", "--timeout-max", "10")


def test_an_address_that_is_none_or_is_taken_is_refused(tmp_path: Path) -> None:
    assert "host:port" in refused("--listen", "nowhere", "--data", str(tmp_path))
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        output = refused("--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--data", str(tmp_path))
    assert "choose another --listen" in output


def test_without_the_extra_the_command_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlog.cli.proxy, "find_spec", lambda name: None if name == "fastapi" else object())
    assert "the proxy needs fastapi: pip install 'varlog[proxy]'" in refused()


def test_without_the_extra_a_cluster_starts_without_a_proxy_and_prints_one_line_about_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(varlog.cli.proxy, "find_spec", lambda name: None)
    assert up._proxy_port(8_080, 7_100, 3) is None
    [line] = capsys.readouterr().err.splitlines()
    assert "pip install 'varlog[proxy]'" in line


def test_the_proxy_has_the_default_port_or_the_requested_one_or_any() -> None:
    assert proxy_port_from(7_100, 3) == 7_180
    assert proxy_port_from(7_100, 100) == sequencer_port_from(7_100, 100) + 1
    assert up._proxy_port(12_345, 7_100, 3) == 12_345
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = up._proxy_port(None, port - 80, 3)
        assert other is not None and other != port and not is_free(port)


def test_a_plan_has_a_proxy_only_on_request(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, ports_from(7_100, 1), replicas=1, streams=1)
    assert plan.proxy == "" and "proxy" not in [process.name for process in plan.processes()]
    [port] = free_ports(1)
    with_proxy = replace(plan, proxy_port=port)
    assert with_proxy.proxy == f"127.0.0.1:{port}"
    assert [process.name for process in with_proxy.stages()[-1]] == ["proxy"]
