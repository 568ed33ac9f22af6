"""Attack surface: secrets on the command line.

Before, `vsn start --cluster-key=…` was accepted: every user of the machine could read the key in the list of processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from varlog.cli.serve import vsn
from varlog.model.ids import ClusterID
from varlog.storage.identity import fingerprint
from varlog.testing.processes import PATIENCE_S


def started(volume: Path, *more: str) -> list[str]:
    return [
        "start",
        "--cluster-id=1",
        "--storage-node-id=1",
        f"--volumes={volume}",
        "--listen=127.0.0.1:0",
        *more,
    ]


def test_a_cluster_key_on_the_command_line_is_refused_and_the_remedy_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(vsn, started(tmp_path, "--cluster-key=secret"))
    assert result.exit_code == 2
    output = result.output
    assert "--cluster-key-file" in output and "VARLOG_CLUSTER_KEY" in output
    assert "=secret" not in output
    assert list(tmp_path.iterdir()) == []


def test_the_help_names_the_file_and_not_the_value() -> None:
    output = CliRunner().invoke(vsn, ["start", "--help"], env={"COLUMNS": "200"}).output
    assert "--cluster-key-file" in output
    assert "--cluster-key " not in output


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret", "utf-8")
    key.chmod(0o644)
    result = CliRunner().invoke(vsn, started(tmp_path, f"--cluster-key-file={key}"))
    assert result.exit_code == 1
    assert f"chmod 600 {key}" in " ".join(result.output.split())


@pytest.mark.process
@pytest.mark.parametrize("way", ["file", "environment"])
def test_the_key_comes_from_a_file_or_the_environment_and_is_in_no_argument(tmp_path: Path, way: str) -> None:
    volume, key = tmp_path / "volume", tmp_path / "key"
    volume.mkdir()
    key.write_text("secret\n", "utf-8")
    key.chmod(0o600)
    more = [f"--cluster-key-file={key}"] if way == "file" else []
    environment = os.environ | ({"VARLOG_CLUSTER_KEY": "secret"} if way == "environment" else {})
    arguments = [sys.executable, "-m", "varlog.cli.serve", "vsn", *started(volume, *more)]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        assert b"secret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    identity = (volume / "cid=1" / "snid=1" / "identity").read_text("utf-8")
    assert fingerprint(ClusterID(1), "secret") in identity
