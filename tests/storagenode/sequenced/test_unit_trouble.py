"""A log unit whose disk rots, fails or is full: nothing damaged is served, nothing unverified is believed, and it says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.storagenode.sequenced.chain import STREAM, TIMEOUT_S, TOPIC, Chain, batch_at, entries_in, run_chain
from varlog.model.epoch import Epoch
from varlog.model.errors import AlreadyWritten, CorruptBatch, Sealed, StaleEpoch, Unavailable
from varlog.model.limits import KIB
from varlog.model.lsn import LLSN
from varlog.model.status import SyncState, UnitStatus
from varlog.rpc.messages import CheckEntries, RebuildReplica, RemoveLogStream
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.drive import Drive
from varlog.testing.sim.core.loop import Process

RESERVE_BYTES = 64 * KIB


async def wait_status(chain: Chain, holds: Callable[[UnitStatus], object], node: int = 1) -> UnitStatus:
    async with asyncio.timeout(TIMEOUT_S):
        while not holds(status := await chain.status(node)):
            await asyncio.sleep(0.002)
    return status


def flip(root: Path, node: int, *, segment: int, at: int) -> None:
    (path,) = (root / f"volume{node}").rglob(f"{segment:020d}.seg")
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


# --- Corruption ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found_by", ["reader", "client", "scrub"])
def test_corruption_is_found_never_served_and_ends_with_a_rebuild(tmp_path: Path, found_by: str) -> None:
    """However it is found: the unit reports it in its status and to a seal, and is rebuilt from its chain (R-SEQ-14)."""

    async def story(chain: Chain) -> None:
        if found_by == "scrub":
            await chain.serve(1, scrub_bytes_per_s=10**9, scrub_interval_s=0.02)
        else:
            await chain.serve(1, scrub_bytes_per_s=0)
        await chain.serve(2)
        for llsn in range(1, 31):
            for node in (1, 2):
                await chain.write(batch_at(llsn, b"%03d " % llsn * 50), node=node)
        flip(tmp_path, 1, segment=1, at=3 * 272 + 100)  # in the body of the fourth
        if found_by == "reader":
            with pytest.raises(CorruptBatch):
                await chain.read(4)
        elif found_by == "client":
            await chain.call(CheckEntries(STREAM, LLSN(3), LLSN(6)))
        status = await wait_status(chain, lambda unit: unit.damage)
        assert status.damage == ((4, 5),)
        assert "damaged" in status.trouble
        assert entries_in(await chain.read(5)) == [b"005 " * 50]
        assert "damaged" in (await chain.seal(2)).trouble
        await chain.call(RebuildReplica(TOPIC, STREAM, Epoch(2)))
        assert (await chain.sync(1, 2)).state is SyncState.COMPLETE
        status = await chain.status(1)
        assert (status.damage, status.trouble, status.newest) == ((), "", 30)

    run_chain(tmp_path, story)


def test_rot_in_the_state_is_put_right_before_the_next_start_meets_it(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await chain.serve(1, scrub_bytes_per_s=10**9, scrub_interval_s=0.02)
        (path,) = (tmp_path / "volume1").rglob("unit")
        content = path.read_bytes()
        path.write_bytes(bytes(len(content)))
        async with asyncio.timeout(TIMEOUT_S):
            while path.read_bytes() != content:
                await asyncio.sleep(0.002)
        assert (await chain.status(1)).trouble == ""

    run_chain(tmp_path, story)


def test_a_retry_that_meets_rot_is_not_taken_for_another_batch(tmp_path: Path) -> None:
    """Law 10: it may well be there."""

    async def story(chain: Chain) -> None:
        await chain.serve(1, scrub_bytes_per_s=0)
        batch = batch_at(1, b"a" * 100)
        await chain.write(batch)
        flip(tmp_path, 1, segment=1, at=20)
        with pytest.raises(Unavailable):
            await chain.write(batch)
        with pytest.raises(AlreadyWritten):
            await chain.write(batch_at(1, b"b" * 100))

    run_chain(tmp_path, story)


def test_a_source_hands_out_nothing_that_is_damaged(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await chain.serve(1, scrub_bytes_per_s=0)
        for llsn in range(1, 11):
            await chain.write(batch_at(llsn, b"%03d " % llsn * 50))
        flip(tmp_path, 1, segment=1, at=5 * 272 + 100)
        await chain.start(2)
        await chain.add(2)
        assert (await chain.sync(2, 1)).state is SyncState.ERROR
        await wait_status(chain, lambda unit: unit.damage)

    run_chain(tmp_path, story)


def test_a_unit_that_cannot_be_opened_is_shown_and_rebuilt(tmp_path: Path) -> None:
    """It does not keep the node from starting."""

    async def story(chain: Chain) -> None:
        await chain.serve()
        await chain.write(batch_at(1, b"a"))
        await chain.stop()
        (path,) = tmp_path.rglob(f"lsid={STREAM}/unit")
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        await chain.start()
        status = await chain.status()
        assert status.log_stream == STREAM
        assert "damaged" in status.trouble
        await chain.call(RebuildReplica(TOPIC, STREAM, Epoch(1)))
        status = await chain.status()
        assert (status.trouble, status.epoch) == ("", 0)
        await chain.call(RemoveLogStream(STREAM))

    run_chain(tmp_path, story)


# --- A disk that fails, or is full ------------------------------------------------------------------------------------


class Trouble(Chain):
    """A node whose disk fails on demand."""

    def __init__(self, root: Path) -> None:
        self.drive = Drive()
        super().__init__(root, SimDisk(self.drive, Process("sn1"), random.Random(1), lambda: None))
        self.disk.make_directory(root / "volume1")


def run_trouble(tmp_path: Path, story: Callable[[Trouble], Awaitable[None]]) -> None:
    async def body() -> None:
        trouble = Trouble(tmp_path)
        try:
            await asyncio.wait_for(story(trouble), 60)
        finally:
            trouble.drive.fail_syncs = trouble.drive.fail_writes = 0
            trouble.drive.capacity_bytes = None
            await trouble.close()

    asyncio.run(body())


def test_a_failed_sync_is_never_taken_for_one_that_worked(tmp_path: Path) -> None:
    """Nothing is written after it until the store has been opened again, which a seal does."""

    async def story(trouble: Trouble) -> None:
        await trouble.serve(disk_reserve_bytes=RESERVE_BYTES)
        await trouble.write(batch_at(1, b"a"))
        trouble.drive.fail_syncs = 1
        with pytest.raises(Unavailable):
            await trouble.write(batch_at(2, b"b"))
        with pytest.raises(Unavailable):
            await trouble.write(batch_at(3, b"c"))
        assert "write failed" in (await trouble.status()).trouble
        assert entries_in(await trouble.read(1)) == [b"a"], "reads continue"
        sealed = await trouble.seal(2)
        assert sealed.trouble == ""
        await trouble.write(batch_at(3, b"c", epoch=1), epoch=2)
        if sealed.newest == 2:
            assert entries_in(await trouble.read(2, epoch=2)) == [b"b"]
        await trouble.write(batch_at(2, b"b", epoch=1), epoch=2)
        assert entries_in((await trouble.fetch(1, epoch=2))[1]) == [b"a", b"b", b"c"]

    run_trouble(tmp_path, story)


def test_a_seal_that_the_disk_refuses_is_not_acknowledged_and_nothing_older_is_served(tmp_path: Path) -> None:
    """R-SEQ-9, law 7."""

    async def story(trouble: Trouble) -> None:
        granter = await trouble.serve()
        await trouble.write(batch_at(1, b"a"))
        trouble.drive.fail_writes = 1000
        with pytest.raises(Unavailable):
            await trouble.seal(2)
        with pytest.raises(StaleEpoch):
            await trouble.read(1)
        granter.order(3, low=2)
        async with asyncio.timeout(TIMEOUT_S):
            while not (granter.asked[-1].units[0].epoch == 3 and granter.asked[-1].units[0].low == 2):
                await asyncio.sleep(0.001)
        assert (await trouble.status()).epoch == 1, (
            "not durable, but it answers by it: its node may have a lease"
        )
        trouble.drive.fail_writes = 0
        await wait_status(trouble, lambda unit: unit.epoch == 3 and not unit.trouble)

    run_trouble(tmp_path, story)


async def refused(trouble: Trouble, batch: bytearray) -> bool:
    """Whether there is no room for it."""
    try:
        await trouble.write(batch)
    except Sealed as full:
        return "is full: free space" in str(full)
    return False


def test_a_full_disk_refuses_writes_and_takes_seals_and_trims(tmp_path: Path) -> None:
    """A refused batch is nowhere; once there is space it continues on its own."""

    async def story(trouble: Trouble) -> None:
        granter = await trouble.serve(disk_reserve_bytes=RESERVE_BYTES)
        trouble.drive.capacity_bytes = trouble.drive.root.size() + 2 * RESERVE_BYTES
        llsn = 1
        while not await refused(trouble, batch_at(llsn, b"x" * 1500)):
            llsn += 1
        status = await trouble.status()
        assert (status.full, status.newest) == (True, llsn - 1)
        assert "full" in status.trouble
        assert "full" in (await trouble.seal(2)).trouble
        granter.order(2, low=llsn - 1)
        await wait_status(trouble, lambda unit: unit.low == llsn - 1 and not unit.full)
        await trouble.write(batch_at(llsn, b"x" * 1500), epoch=2)
        assert (await trouble.status()).trouble == ""

    run_trouble(tmp_path, story)


def test_a_unit_whose_disk_failed_at_the_start_is_opened_by_a_seal(tmp_path: Path) -> None:
    async def story(trouble: Trouble) -> None:
        await trouble.serve()
        await trouble.write(batch_at(1, b"a"))
        await trouble.stop()
        trouble.drive.fail_syncs = 1
        await trouble.start()
        if (await trouble.status()).trouble:
            assert "cannot be opened" in (await trouble.status()).trouble
            sealed = await trouble.seal(2)
            assert (sealed.newest, sealed.trouble) == (1, "")

    run_trouble(tmp_path, story)


def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path) -> None:
    """Law 1."""

    async def story(trouble: Trouble) -> None:
        await trouble.serve()
        for llsn in (3, 1, 2, 5):
            await trouble.write(batch_at(llsn, b"%d" % llsn * 700))
        await trouble.seal(2)
        await trouble.stop()
        rng = random.Random(2)
        while trouble.drive.crash(rng) != "lose all":
            pass
        await trouble.start()
        status = await trouble.status()
        assert (status.newest, status.dense_end, status.epoch) == (5, 4, 2)

    run_trouble(tmp_path, story)
