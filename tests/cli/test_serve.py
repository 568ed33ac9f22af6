"""How a service's process ends: by a signal, or by itself with an exit code when its service fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from varlog.cli import serve
from varlog.metarepo.store.base import PutItem
from varlog.model.errors import StartupError
from varlog.model.ids import ClusterID
from varlog.runtime.environment import system_environment
from varlog.testing.processes import PATIENCE_S

SCRIPT = """
import sys
from varlog.cli import serve

class Service:
    address = "here"
    async def start(self): pass
    async def stop(self): print("stopped", flush=True)
    async def wait_failed(self): return OSError("the disk is gone")

serve.run_service("vmr", "warning", Service)
"""


def test_a_service_that_fails_ends_its_process_with_the_reason() -> None:
    """A supervisor restarts what exits; a process that stays up without serving would never be noticed (law 10)."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout.split() == ["ready", "here", "stopped"]
    assert "the disk is gone" in ended.stderr


def test_a_journal_mirror_is_kept_where_configured_and_used_when_the_journal_is_cut(
    tmp_path: Path,
) -> None:
    """`vmr start --journal-mirror DIR`: the option reaches the store, and either file is enough."""
    environment, cluster, mirror = system_environment(), ClusterID(1), tmp_path / "mirror"
    with pytest.raises(StartupError, match="is not a directory"):
        serve._store(str(tmp_path / "metadata.db"), environment, cluster, 3, mirror)
    with pytest.raises(StartupError, match="is for a SQLite file"):
        serve._store("etcd://127.0.0.1:1", environment, cluster, 3, mirror)
    mirror.mkdir()

    async def commit_and_leave() -> None:
        store = serve._store(str(tmp_path / "metadata.db"), environment, cluster, 3, mirror)
        await store.open()
        await store.commit([PutItem("key", b"value")])
        shutil.copytree(tmp_path, tmp_path.with_name("left"))
        await store.close()

    asyncio.run(commit_and_leave())
    left = tmp_path.with_name("left")
    journal = left / "metadata.db.journal"
    os.truncate(journal, 4 * 4096)

    async def again() -> tuple[dict[str, bytes], list[str]]:
        store = serve._store(str(left / "metadata.db"), environment, cluster, 3, left / "mirror")
        opened = await store.open()
        await store.close()
        return dict(opened.items), list(store.complaints)

    items, complaints = asyncio.run(again())
    assert items["key"] == b"value"
    assert any("the other one was used" in complaint for complaint in complaints)
