"""A log unit is filled from its chain while appends continue, or reports that it must be rebuilt."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.storagenode.sequenced.chain import STREAM, TOPIC, Chain, batch_at, entries_in, run_chain, until
from varlog.model.epoch import Epoch
from varlog.model.errors import AlreadySyncing, PreconditionFailed, Sealed, StaleEpoch, Unavailable
from varlog.model.lsn import LLSN
from varlog.model.status import SyncState
from varlog.rpc.messages import CopyUnit, CopyUnitReply, RebuildReplica, UnitOrder
from varlog.rpc.transport import Call
from varlog.storagenode.sequenced import reader as unit_reader
from varlog.storagenode.sequenced import sync as unit_sync


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few batches make several lists and copies."""
    for module in (unit_reader, unit_sync):
        monkeypatch.setattr(module, "LIST_PAGES_MAX", 5)
        monkeypatch.setattr(module, "COPY_BYTES_MAX", 700)


async def pair(chain: Chain, llsns: list[int]) -> None:
    """Node 1 serves and has these LLSNs, one entry each; node 2 has a new unit."""
    await chain.serve(1)
    for llsn in llsns:
        await chain.write(batch_at(llsn, b"%03d " % llsn * 50))
    await chain.start(2)
    await chain.add(2)


async def bytes_of(chain: Chain, node: int) -> bytes:
    """Everything a unit has, by LLSN."""
    found, llsn, end = b"", LLSN(1), LLSN((await chain.status(node)).newest + 1)
    while llsn < end:
        copied, payload = await chain.call(CopyUnit(STREAM, llsn, end), node=node)
        assert isinstance(copied, CopyUnitReply)
        found, llsn = found + bytes(payload), copied.next_llsn
    return found


def test_a_new_unit_gets_everything_with_its_holes(tmp_path: Path) -> None:
    """R-SEQ-14: rebuilt from its chain."""

    async def story(chain: Chain) -> None:
        await pair(chain, [llsn for llsn in range(1, 40) if llsn not in (7, 20, 21)])
        await chain.fill(20, 2)
        assert (await chain.sync_once(2, 1)).state is SyncState.IN_PROGRESS
        sync = await chain.sync(2, 1)
        assert (sync.state, sync.copied_end, sync.target_end, sync.rebuild) == (
            SyncState.COMPLETE,
            40,
            40,
            False,
        )
        assert sync.copied_bytes > 36 * 200
        assert await bytes_of(chain, 2) == await bytes_of(chain, 1)
        status = await chain.status(2)
        assert (status.newest, status.dense_end, status.epoch) == (39, 7, 0)
        assert (await chain.seal(5, 2)).newest == 39, "filled, it takes its place in the chain"

    run_chain(tmp_path, story)


def test_a_unit_that_was_away_gets_only_what_it_lacks(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 21)))
        await chain.sync(2, 1)
        for llsn in range(21, 31):
            await chain.write(batch_at(llsn, b"x" * 100))
        sync = await chain.sync(2, 1)
        assert sync.state is SyncState.COMPLETE
        assert 0 < sync.copied_bytes < 10 * 250
        assert await bytes_of(chain, 2) == await bytes_of(chain, 1)
        await chain.stop(2)
        await chain.start(2)
        assert (await chain.sync(2, 1)).copied_bytes == 0

    run_chain(tmp_path, story)


def test_it_continues_while_the_log_does_and_ends_with_what_was_sealed(tmp_path: Path) -> None:
    """R-SEQ-14: the last copy is of a source that is sealed, and so does not change."""

    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 30)))

        async def continue_appending() -> None:
            for llsn in range(30, 90):
                await chain.write(batch_at(llsn, b"y" * 100))

        writing = asyncio.create_task(continue_appending())
        while not writing.done():
            assert (await chain.sync(2, 1)).state is SyncState.COMPLETE
        await writing
        refused = await chain.sync(2, 1, epoch=2)
        assert refused.state is SyncState.ERROR
        assert "not sealed in 2" in refused.why
        await chain.seal(2, 1)
        await chain.seal(2, 2)
        assert (await chain.sync(2, 1, epoch=2)).state is SyncState.COMPLETE
        assert await bytes_of(chain, 2) == await bytes_of(chain, 1)

    run_chain(tmp_path, story)


def test_a_restored_unit_is_unproven_until_it_is_backfilled_and_keeps_what_is_on_its_way(
    tmp_path: Path,
) -> None:
    """A disk that went back in time looks sound: only the chain knows what it acknowledged."""

    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 11)))
        await chain.seal(1, 2)
        await chain.lease(2)
        await chain.write(batch_at(5, b"x" * 100), node=2)
        await chain.write(batch_at(20, b"on its way"), node=2)
        assert not (await chain.status(2)).unverified
        await chain.stop(2)
        await chain.start(2)
        assert (await chain.status(2)).unverified
        assert (await chain.seal(2, 2)).unverified
        strict = await chain.sync(2, 1)
        assert (strict.state, strict.rebuild) == (SyncState.ERROR, True)
        assert (await chain.sync(2, 1, backfill=True)).state is SyncState.ERROR, "another value at LLSN 5"

    run_chain(tmp_path, story)


def test_a_restored_unit_answers_no_client_before_it_was_compared_or_is_alone(tmp_path: Path) -> None:
    """What a drive that went back in time lacks would be taken for holes, and filled."""

    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 11)))
        await chain.seal(1, 2)
        await chain.stop(2)
        await chain.start(2)
        granter = await chain.lease(2, alone=False)
        for refused, asked in (
            (Unavailable, chain.read(1, node=2)),
            (Unavailable, chain.fetch(11, node=2)),
            (Sealed, chain.fill(11, node=2)),
            (Sealed, chain.write(batch_at(11, b"new"), node=2)),
        ):
            with pytest.raises(refused, match="not been compared"):
                await asked
        with pytest.raises(StaleEpoch):  # a stale caller gets that error first
            await chain.fill(11, epoch=9, node=2)
        granter.alone = True
        granter.send(granter.lease_s)
        await until(lambda: not chain.nodes[2]._units[STREAM].unverified)
        await chain.fill(11, node=2)

    run_chain(tmp_path, story)


def test_a_unit_that_is_compared_with_several_is_proven_by_the_last_one(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 11)))
        await chain.seal(1, 2)
        await chain.stop(2)
        await chain.start(2)
        for proves in (False, True):
            while (await chain.sync_once(2, 1, backfill=True, proves=proves)).state is SyncState.IN_PROGRESS:
                await asyncio.sleep(0.001)
            assert (await chain.status(2)).unverified is not proves

    run_chain(tmp_path, story)


def test_a_restored_unit_of_an_older_epoch_than_its_chain_reports_that_it_went_back(tmp_path: Path) -> None:
    """Every member of a chain has the projection's epoch on its disk; a seal is of the next one."""

    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 11)))
        await chain.seal(1, 2)
        for epoch, went_back in ((2, False), (4, True)):
            await chain.stop(2)
            await chain.start(2)
            for _ in range(2):  # said again to who asks again
                assert (await chain.seal(epoch, 2)).went_back is went_back

    run_chain(tmp_path, story)


def test_backfilling_proves_a_unit_that_lacks_something(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 11)))
        await chain.seal(1, 2)
        await chain.lease(2)
        await chain.write(batch_at(20, b"on its way"), node=2)
        await chain.stop(2)
        await chain.start(2)
        assert (await chain.sync(2, 1, backfill=True)).state is SyncState.COMPLETE
        status = await chain.status(2)
        assert (status.unverified, status.newest, status.dense_end) == (False, 20, 11)

    run_chain(tmp_path, story)


@pytest.mark.parametrize("other", [3, 12, 40])
def test_what_the_chain_has_not_cannot_stay(tmp_path: Path, other: int) -> None:
    """Law 8: another value at a position of the chain, or one where the chain has none, is foreign: the unit is rebuilt."""

    async def story(chain: Chain) -> None:
        await pair(chain, [llsn for llsn in range(1, 21) if llsn != 12])
        await chain.seal(1, 2)
        await chain.lease(2)
        await chain.write(batch_at(other, b"mine alone"), node=2)
        sync = await chain.sync(2, 1)
        assert (sync.state, sync.rebuild) == (SyncState.ERROR, True)
        await chain.call(RebuildReplica(TOPIC, STREAM, Epoch(1)), node=2)
        assert ((await chain.status(2)).epoch, (await chain.status(2)).newest) == (0, 0)
        await chain.call(RebuildReplica(TOPIC, STREAM, Epoch(1)), node=2)  # asked again
        with pytest.raises(PreconditionFailed):
            await chain.seal(2, 2)
        assert list(tmp_path.glob("volume2/*/*/aside-*"))
        assert (await chain.sync(2, 1)).state is SyncState.COMPLETE
        assert await bytes_of(chain, 2) == await bytes_of(chain, 1)
        await until(lambda: not list(tmp_path.glob("volume2/*/*/aside-*")))

    run_chain(tmp_path, story)


@pytest.mark.parametrize("junk", [True, False])
def test_batches_with_the_same_entries_are_distinguished(tmp_path: Path, junk: bool) -> None:
    """Law 8: junk has the body of an empty entry, and two clients may have appended the same bytes."""

    async def story(chain: Chain) -> None:
        await pair(chain, [1])
        if junk:
            await chain.fill(2)
        else:
            await chain.write(batch_at(2, b"", producer=1))
        await chain.seal(1, 2)
        await chain.lease(2)
        await chain.write(batch_at(2, b"", producer=2), node=2)
        assert (await chain.sync(2, 1)).rebuild

    run_chain(tmp_path, story)


def test_a_usable_unit_is_not_rebuilt(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await chain.serve(epoch=2)
        await chain.write(batch_at(1, b"a"), epoch=2)
        with pytest.raises(PreconditionFailed):
            await chain.call(RebuildReplica(TOPIC, STREAM, Epoch(2)))
        with pytest.raises(StaleEpoch):
            await chain.call(RebuildReplica(TOPIC, STREAM, Epoch(1)))

    run_chain(tmp_path, story)


def test_trims_are_carried_along(tmp_path: Path) -> None:
    """Law 9: what was trimmed does not come back, on either side."""

    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 21)))
        await chain.sync(2, 1)
        granter = await chain.lease(1, term=2)
        granter.order(1, low=9)
        await until(lambda: granter.asked[-1].units[0].low == 9)
        assert (await chain.sync(2, 1)).state is SyncState.COMPLETE
        status = await chain.status(2)
        assert (status.low, status.newest) == (9, 20)
        await chain.start(3)
        await chain.add(3)
        assert (await chain.sync(3, 1)).state is SyncState.COMPLETE
        assert (await chain.status(3)).low == 9
        assert await bytes_of(chain, 3) == await bytes_of(chain, 2) == await bytes_of(chain, 1)

    run_chain(tmp_path, story)


@pytest.mark.parametrize("backfill", [False, True])
def test_a_trim_between_the_last_list_and_its_copy_is_carried_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backfill: bool
) -> None:
    """R-SEQ-14: complete, it lacks nothing above its low end; what was not copied because it is trimmed is trimmed here."""
    copy = unit_reader.UnitReader.copy

    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 21)))
        source = chain.nodes[1]._units[STREAM]

        def trim_first(reader: unit_reader.UnitReader, call: Call, request: CopyUnit) -> None:
            if (request.llsn, request.end) == (16, 21):  # all of the last list
                source.order(UnitOrder(STREAM, Epoch(1), LLSN(19)))
            copy(reader, call, request)

        monkeypatch.setattr(unit_reader.UnitReader, "copy", trim_first)
        assert (await chain.sync(2, 1, backfill=backfill)).state is SyncState.COMPLETE
        status = await chain.status(2)
        assert (status.low, status.newest, status.dense_end) == (19, 20, 21)
        assert await bytes_of(chain, 2) == await bytes_of(chain, 1)

    run_chain(tmp_path, story)


def test_what_was_listed_and_is_not_copied_is_no_complete_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-SEQ-14: the source may have been opened again, or rebuilt, since it was asked for its list."""
    copy = unit_reader.UnitReader.copy

    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 21)))

        def lose(reader: unit_reader.UnitReader, call: Call, request: CopyUnit) -> None:
            if (request.llsn, request.end) == (16, 21):
                call.reply(CopyUnitReply(request.end))
            else:
                copy(reader, call, request)

        with monkeypatch.context() as patched:
            patched.setattr(unit_reader.UnitReader, "copy", lose)
            sync = await chain.sync(2, 1)
        assert (sync.state, sync.rebuild) == (SyncState.ERROR, False)
        assert "LLSN 16" in sync.why
        assert (await chain.sync(2, 1)).state is SyncState.COMPLETE
        assert await bytes_of(chain, 2) == await bytes_of(chain, 1)

    run_chain(tmp_path, story)


def test_one_source_at_a_time_and_a_dead_one_is_reported(tmp_path: Path) -> None:
    """R-SYNC-2."""

    async def story(chain: Chain) -> None:
        await pair(chain, list(range(1, 60)))
        await chain.start(3)
        await chain.add(3)
        await chain.sync_once(2, 1)
        with pytest.raises(AlreadySyncing):
            await chain.sync_once(2, 3)
        assert (await chain.sync(2, 1)).state is SyncState.COMPLETE
        await chain.stop(1)
        sync = await chain.sync(2, 1)
        assert (sync.state, sync.rebuild) == (SyncState.ERROR, False)
        assert entries_in(bytearray(await bytes_of(chain, 2)))[-1] == b"059 " * 50

    run_chain(tmp_path, story)
