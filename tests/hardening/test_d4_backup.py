"""D4: a consistent backup of a running repository.

The SQLite file without its journal lacks the newest commits. `varlog backup` makes a consistent copy of a running
repository, reads it back, and prints what it holds; put in place, it is a repository that starts.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.manager.sim_cluster import REPOSITORY, SimCluster
from varlog.metarepo.recovery import backup
from varlog.metarepo.recovery.backup import fetch_backup, read_store, write_backup
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.metarepo.store.sqlite import SqliteStore
from varlog.model.errors import PreconditionFailed, StartupError
from varlog.rpc import messages as m
from varlog.runtime.environment import system_environment
from varlog.testing.sim.core.loop import run_simulated


async def _fill(cluster: SimCluster, topic: str, count: int) -> None:
    log = await cluster.log(topic, create=True)
    for number in range(count):
        await log.append(f"{topic} {number}".encode())
    await log.close()


def test_a_backup_of_a_running_repository_holds_everything_and_starts() -> None:
    async def story() -> None:
        cluster = SimCluster()
        cluster.start()
        await _fill(cluster, "orders", 30)
        await _fill(cluster, "bills", 5)
        log = await cluster.log("orders")
        await log.set_reader("nightly", 12)
        await log.trim(7)
        await log.close()
        metadata = MemoryMetadata()
        copy = await write_backup(await fetch_backup(cluster.transport, REPOSITORY), MemoryStore(metadata))
        view = await cluster.view()
        assert copy.state.view.topics == view.topics
        assert copy.state.view.uuid == view.uuid
        by_name = {topic.name: topic for topic in view.topics}
        order = copy.state.order
        assert [order.high_watermark(by_name[name].topic) for name in ("orders", "bills")] == [30, 5]
        # Nothing was appended since: it continues as if it were the old one.
        cluster.manager.crash()
        cluster.repository.crash()
        cluster._metadata = metadata
        cluster.repository.boot()
        cluster.manager.boot()
        await cluster.wait_whole(2)
        log = await cluster.log("orders")
        assert [reader.position for reader in await log.readers()] == [12]
        assert (await log.append(b"after")).glsn == 31
        await log.close()
        assert not cluster.complaints

    run_simulated(story())


def test_a_backup_is_one_moment_though_it_is_fetched_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "PIECE_BYTES", 64)

    async def story() -> None:
        cluster = SimCluster()
        cluster.start()
        await _fill(cluster, "orders", 3)
        filling = asyncio.ensure_future(_fill(cluster, "orders", 200))
        copy = await write_backup(
            await fetch_backup(cluster.transport, REPOSITORY), MemoryStore(MemoryMetadata())
        )
        assert copy.state.order.high_watermark(copy.state.view.topics[0].topic) >= 3
        await filling

    run_simulated(story())


def test_a_piece_of_another_backup_is_refused() -> None:
    async def story() -> None:
        cluster = SimCluster()
        cluster.start()
        await _fill(cluster, "orders", 1)
        with pytest.raises(PreconditionFailed, match="start again"):
            await cluster.ask(REPOSITORY, m.GetBackup(64, 77))

    run_simulated(story())


def test_a_backup_is_restored_only_into_a_new_store(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = SimCluster()
        cluster.start()
        await _fill(cluster, "orders", 3)
        items = await fetch_backup(cluster.transport, REPOSITORY)
        (tmp_path / "items").write_bytes(msgspec.msgpack.encode(items))

    run_simulated(story())
    items = msgspec.msgpack.decode((tmp_path / "items").read_bytes(), type=dict[str, bytes])

    async def real() -> None:
        environment = system_environment()
        made = await write_backup(items, SqliteStore(tmp_path / "copy.db", environment))
        again = await read_store(SqliteStore(tmp_path / "copy.db", environment))
        copy = await write_backup(again, SqliteStore(tmp_path / "copy of the copy.db", environment))
        assert copy.state.view == made.state.view
        assert copy.state.order == made.state.order
        assert copy.term > made.term
        with pytest.raises(StartupError, match="not empty"):
            await write_backup(items, SqliteStore(tmp_path / "copy.db", environment))

    asyncio.run(real())
