"""The commands as processes.

`varlog up`, `varlog demo`, and how `vsn`, `vmr` and `vmc` refuse to start.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from varlog.localcluster.ports import free_block
from varlog.model.ids import LogStreamID, TopicID
from varlog.runtime.disk import OsDisk
from varlog.storage.committed.log_store import LogStore
from varlog.testing.processes import PATIENCE_S, children_of, command, living, started

pytestmark = pytest.mark.process


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


# --- what must not start ------------------------------------------------------------------------------------


def refused(arguments: list[str], code: int = 1) -> str:
    """One line on stderr, the given exit code, and no `ready`."""
    done = command("varlog.cli.serve", arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    errors = [line for line in done.stderr.splitlines() if ": error: " in line]
    assert len(errors) == 1 and "Traceback" not in done.stderr, done.stderr
    return errors[0]


def vsn(*volumes: Path, cluster: int = 1, node: int = 1, more: tuple[str, ...] = ()) -> list[str]:
    return [
        *("vsn", "start", f"--cluster-id={cluster}", f"--storage-node-id={node}", "--listen=127.0.0.1:0"),
        *(f"--volumes={volume}" for volume in volumes),
        *more,
    ]


@contextmanager
def running(arguments: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has printed `ready`, and its address."""
    with started(arguments, "ready", module="varlog.cli.serve") as (process, ready):
        yield process, ready.split()[1]


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(PATIENCE_S)


def test_a_volume_that_is_missing_a_file_or_read_only_is_named(tmp_path: Path) -> None:
    """R-SN-1."""
    file = tmp_path / "file"
    file.write_text("")
    for volume in (tmp_path / "missing", file, Path("/proc")):  # not writable, not even by root
        assert str(volume) in refused(vsn(volume))


def test_the_same_volume_twice_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path) in refused(vsn(tmp_path, tmp_path))


def test_the_same_stream_under_two_volumes_is_refused_with_both_paths(tmp_path: Path) -> None:
    """R-SN-4."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    with running(vsn(first, second)) as (process, _):
        assert stop(process) == 0
    for volume in (first, second):
        path = volume / "cid=1" / "snid=1" / "lsid=5"
        LogStore.create(OsDisk(), path, topic=TopicID(1), log_stream=LogStreamID(5)).close()
    printed = refused(vsn(first, second))
    assert str(first) in printed and str(second) in printed


def test_error_if_exists_refuses_existing_data(tmp_path: Path) -> None:
    """R-SN-5."""
    with running(vsn(tmp_path, more=("--error-if-exists",))) as (process, _):
        assert stop(process) == 0
    assert "snid=1" in refused(vsn(tmp_path, more=("--error-if-exists",)))


def test_a_directory_of_another_node_or_another_key_is_refused(tmp_path: Path) -> None:
    """R-SN-7: a directory is not trusted by its name."""
    own, stolen = tmp_path / "own", tmp_path / "stolen"
    own.mkdir()
    stolen.mkdir()
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    for file in (secret, wrong):
        file.write_text(file.name, "utf-8")
        file.chmod(0o600)
    with running(vsn(own, more=(f"--cluster-key-file={secret}",))) as (process, _):
        assert stop(process) == 0
    assert "key" in refused(vsn(own, more=(f"--cluster-key-file={wrong}",)))
    shutil.copytree(own / "cid=1" / "snid=1", stolen / "cid=1" / "snid=2")
    assert "snid=2" in refused(vsn(stolen, node=2, more=(f"--cluster-key-file={secret}",)))


def test_one_volume_has_one_node_at_a_time(tmp_path: Path) -> None:
    with running(vsn(tmp_path)) as (process, _):
        assert str(tmp_path) in refused(vsn(tmp_path))
        assert stop(process, signal.SIGINT) == 0


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"--listen=127.0.0.1:{taken.getsockname()[1]}"
        assert listen[9:] in refused(vsn(tmp_path, more=(listen,)))
        assert listen[9:] in refused(
            ["vmr", "start", "--cluster-id=1", f"--store={tmp_path / 'm.db'}", listen]
        )
        assert listen[9:] in refused(["vmc", "start", "--cluster-id=1", "--repository=127.0.0.1:1", listen])
        assert listen[9:] in refused(["vseq", "start", "--cluster-id=1", "--repository=127.0.0.1:1", listen])


@pytest.mark.parametrize("number", ["0", "-3", str(2**31)])
def test_an_impossible_id_is_wrong_usage(number: str, tmp_path: Path) -> None:
    assert number in refused(vsn(tmp_path, cluster=int(number)), code=2)
    assert number in refused(vsn(tmp_path, node=int(number)), code=2)


def test_an_invalid_address_is_named(tmp_path: Path) -> None:
    assert "nonsense" in refused(vsn(tmp_path, more=("--listen=nonsense",)))


def test_a_store_that_is_no_database_or_in_use_is_named(tmp_path: Path) -> None:
    text, store = tmp_path / "text", tmp_path / "metadata.db"
    text.write_text("this is no database, and never was one\n" * 100)
    vmr = ["vmr", "start", "--cluster-id=1", "--listen=127.0.0.1:0"]
    assert str(text) in refused([*vmr, f"--store={text}"])
    assert text.read_text().startswith("this is no database")
    assert str(tmp_path / "missing") in refused([*vmr, f"--store={tmp_path / 'missing' / 'm.db'}"])
    with running([*vmr, f"--store={store}"]) as (process, _):
        assert str(store) in refused([*vmr, f"--store={store}"])
        assert stop(process) == 0
    assert str(store) in refused(
        ["vmr", "start", "--cluster-id=2", "--listen=127.0.0.1:0", f"--store={store}"]
    )


def test_a_foreign_cluster_is_refused_by_manager_node_and_client(tmp_path: Path) -> None:
    store, volume = tmp_path / "metadata.db", tmp_path / "volume"
    volume.mkdir()
    vmr = ["vmr", "start", "--cluster-id=1", "--listen=127.0.0.1:0", f"--store={store}"]
    with running(vmr) as (_, repository), running(vsn(volume, cluster=2)) as (_, node):
        printed = refused(
            ["vmc", "start", "--cluster-id=2", f"--repository={repository}", "--listen=127.0.0.1:0"]
        )
        assert repository in printed and "cluster 1" in printed
        vmc = ["vmc", "start", "--cluster-id=1", f"--repository={repository}", "--listen=127.0.0.1:0"]
        with running(vmc):
            wait(lambda: _manager_known(repository), "the manager is known")
            done = command("varlog.cli", ["node", "add", node, "--cluster", repository])
            assert done.returncode == 2 and "cluster 2" in done.stderr, done.stderr
            printed = command("varlog.cli", ["topic", "create", "orders", "--cluster", repository]).stderr
            assert "3 replicas need 3 living storage nodes, and there are 0" in printed


def _manager_known(repository: str) -> bool:
    return "manager at 127" in command("varlog.cli", ["status", "--cluster", repository]).stdout


# --- varlog up ----------------------------------------------------------------------------------------------


@contextmanager
def up(directory: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A `varlog up` that is ready, and the address of its cluster. However the body ends, no process may be left
    behind."""
    with free_block() as port:
        arguments = ["up", f"--data={directory}", f"--port={port}", *more]
        with started(arguments, "Ctrl-C") as (process, _):
            children = children_of(process.pid)
            yield process, f"127.0.0.1:{port}"
            process.kill()
            wait(lambda: living(children) == [], "no child outlives its supervisor")


def test_up_serves_shell_and_python_and_leaves_no_process_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data, "--nodes=3", "--streams=2") as (process, address):
        cluster = ["--cluster", address]
        assert command("varlog.cli", ["append", "default", "hello", *cluster]).stdout.startswith(
            "position 1 "
        )
        script = (
            "import sys, varlog\n"
            "with varlog.connect(sys.argv[1], topic='default') as log:\n"
            "    at = log.append(b'from python')\n"
            "    print(log.read(at.glsn).data.decode(), log.tail())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, address],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.stdout == "from python 2\n", done.stderr

        def alive() -> list[bool]:
            status = json.loads(command("varlog.cli", ["status", "--json", *cluster]).stdout)
            return [node["alive"] for node in status["nodes"]]

        wait(lambda: alive() == [True] * 3, "all nodes are seen")
        children = children_of(process.pid)
        assert len(children) == 7  # a sequencer and a proxy among them
        second = command("varlog.cli", ["up", f"--data={data}", "--port=20000"])
        assert second.returncode == 1 and "in use by another `varlog up`" in second.stderr
        elsewhere = command("varlog.cli", ["up", f"--data={tmp_path / 'other'}", f"--port={address[10:]}"])
        assert elsewhere.returncode == 1 and address[10:] in elsewhere.stderr
        assert stop(process, signal.SIGINT) == 0
        assert living(children) == []
    few = command("varlog.cli", ["up", f"--data={data}", "--nodes=1", "--port=20000"])
    assert few.returncode == 1 and "--nodes 3" in few.stderr
    with up(data, "--nodes=3") as (process, address):
        printed = command("varlog.cli", ["tail", "default", "--cluster", address]).stdout
        assert printed == "hello\nfrom python\n"
        assert stop(process) == 0


def test_children_of_a_killed_supervisor_die_with_it(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes=1") as (process, _):
        children = children_of(process.pid)
        assert len(children) == 5
        process.kill()
        process.wait()
        wait(lambda: living(children) == [], "no child outlives its supervisor")
        assert living(children) == []


def test_up_restarts_what_died_and_reports_it(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes=1") as (process, address):
        [node] = [found for found in children_of(process.pid) if "vsn" in found.cmdline()]
        os.kill(node.pid, signal.SIGKILL)
        assert process.stderr is not None
        said = ""
        while "vsn-1 is back" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert "vsn-1 was ended by SIGKILL; restarting it" in said
        assert command("varlog.cli", ["append", "default", "again", "--cluster", address]).returncode == 0


def test_a_followed_tail_shows_what_comes_and_ends_with_its_reader(tmp_path: Path) -> None:
    """`varlog tail -f | head -2`, and Ctrl-C: neither leaves a traceback."""
    with up(tmp_path, "--nodes=1") as (_, address):
        follow = [sys.executable, "-m", "varlog.cli", "tail", "-f", "default", "--cluster", address]
        for end in ("pipe", "signal"):
            tail = subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                assert tail.stdout is not None and tail.stderr is not None
                command("varlog.cli", ["append", "default", "now", "--cluster", address])
                assert tail.stdout.readline() == "now\n"
                if end == "signal":
                    tail.send_signal(signal.SIGINT)
                else:
                    tail.stdout.close()
                    command("varlog.cli", ["append", "default", "nobody reads this", "--cluster", address])
                assert tail.wait(PATIENCE_S) == (130 if end == "signal" else 1)
                assert tail.stderr.read() == ""
            finally:
                tail.kill()
                tail.wait()
                for pipe in filter(None, (tail.stdout, tail.stderr)):
                    pipe.close()


# --- varlog demo --------------------------------------------------------------------------------------------


def test_demo_shows_that_nothing_is_lost_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # Its step on Spark has tests of its own: starting Java takes longer than everything else.
    done = command("varlog.cli", ["demo", "--no-spark"], timeout_s=2 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was lost." in done.stdout
    assert list(tmp_path.iterdir()) == []
