"""Attack surface: the modes of files.

Before, every user of the machine could read the entries, the metadata and the logs of a cluster: data files were 0644
and directories 0755.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import varlog
from varlog.localcluster.plan import ClusterPlan
from varlog.localcluster.ports import free_ports
from varlog.localcluster.supervisor import Supervisor
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.runtime.disk import OsDisk, make_ours_private
from varlog.storage.committed.log_store import LogStore
from varlog.storage.volume import NodeVolumes
from varlog.testing.processes import PATIENCE_S


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """As a careless user sets it: others may read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


def wide(*paths: Path) -> list[str]:
    """Files and directories that users other than the owner can reach."""
    every = [found for path in paths for found in (path, *path.rglob("*"))]
    return [str(found) for found in every if stat.S_IMODE(found.lstat().st_mode) & 0o077]


def open_volumes(volume: Path) -> NodeVolumes:
    return NodeVolumes.open(
        OsDisk(), random.Random(1), cluster=ClusterID(1), node=NodeID(1), volumes=[volume]
    )


def test_everything_on_a_volume_is_private_to_its_user(tmp_path: Path) -> None:
    volumes = open_volumes(tmp_path)
    path = volumes.place(LogStreamID(5))
    LogStore.create(OsDisk(), path, topic=TopicID(1), log_stream=LogStreamID(5)).close()
    volumes.release()
    assert wide(tmp_path / "cid=1") == []
    assert any(found.is_file() for found in path.iterdir())


def test_an_embedded_directory_is_private_to_its_user(tmp_path: Path) -> None:
    with varlog.open(tmp_path / "data", topic="orders") as log:
        log.append(b"private")
        assert wide(tmp_path / "data") == []
    assert wide(tmp_path / "data") == []


def test_a_volume_with_wider_modes_is_tightened_at_start_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    volumes = open_volumes(tmp_path)
    path = volumes.place(LogStreamID(5))
    LogStore.create(OsDisk(), path, topic=TopicID(1), log_stream=LogStreamID(5)).close()
    volumes.release()
    for found in (tmp_path / "cid=1").rglob("*"):
        found.chmod(0o755 if found.is_dir() else 0o644)
    with caplog.at_level(logging.WARNING, "varlog.disk"):
        open_volumes(tmp_path).release()
    assert wide(tmp_path / "cid=1") == []
    assert str(tmp_path / "cid=1") in caplog.text


def test_an_embedded_directory_with_wider_modes_is_tightened(tmp_path: Path) -> None:
    data = tmp_path / "data"
    varlog.open(data, topic="orders").close()
    for found in (data, *data.rglob("*")):
        found.chmod(0o755 if found.is_dir() else 0o644)
    varlog.open(data, topic="orders").close()
    assert wide(data) == []


def test_what_is_not_ours_keeps_its_modes(tmp_path: Path) -> None:
    """A directory may hold more than a log, and a symbolic link may lead anywhere."""
    for name in ("report.pdf", "varlog.json"):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / name).chmod(0o644)
    (tmp_path / "volume").symlink_to(tmp_path / "report.pdf")
    tmp_path.chmod(0o755)
    make_ours_private(OsDisk(), tmp_path, r"varlog\.json|volume")
    assert {Path(path).name for path in wide(tmp_path)} >= {tmp_path.name, "report.pdf"}
    assert stat.S_IMODE((tmp_path / "varlog.json").stat().st_mode) == 0o600


def test_a_directory_that_all_share_is_left_alone(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    assert OsDisk().make_private(shared) == 0


@pytest.mark.process
def test_everything_of_varlog_up_is_private_to_its_user(tmp_path: Path) -> None:
    async def body() -> None:
        plan = ClusterPlan(
            tmp_path / "data", free_ports(3), replicas=1, streams=1, sequencer_port=free_ports(1)[0]
        )
        async with asyncio.timeout(PATIENCE_S):
            supervisor = Supervisor(plan)
            await supervisor.start()
            try:
                assert wide(tmp_path / "data" / "vmr", tmp_path / "data" / "vsn-1") == []
            finally:
                await supervisor.stop()

    asyncio.run(body())
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
