"""One log unit on a real node: what it takes, refuses, serves, and finds again after a restart."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from tests.storagenode.sequenced.chain import STREAM, TIMEOUT_S, TOPIC, Chain, batch_at, entries_in, run_chain
from varlog.model.batch import crc32c, junk, parse_header, place_batch, walk
from varlog.model.cluster import Ordering, changed
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    AlreadyWritten,
    BatchTooLarge,
    InvalidRequest,
    NotWritten,
    PreconditionFailed,
    StaleEpoch,
    Trimmed,
    UnknownLogStream,
)
from varlog.model.limits import BATCH_ENTRIES_MAX
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import Traffic
from varlog.rpc.messages import (
    AddLogStream,
    FindTimeReply,
    FindUnitTime,
    MeasureRangeReply,
    MeasureUnit,
    RemoveLogStream,
    SealUnit,
    WriteUnit,
)


def test_what_was_written_can_be_read_whole_and_entry_by_entry(tmp_path: Path) -> None:
    """The bytes are those that the client sent."""

    async def story(chain: Chain) -> None:
        await chain.serve()
        batch = batch_at(1, b"a", b"b")
        await chain.write(batch)
        assert await chain.read(1, whole=True) == batch
        assert entries_in(await chain.read(2)) == [b"b"]
        with pytest.raises(NotWritten):
            await chain.read(3)
        with pytest.raises(InvalidRequest):
            await chain.read(0)

    run_chain(tmp_path, story)


def test_a_position_is_written_once(tmp_path: Path) -> None:
    """R-SEQ-5, law 8: the very same batch is done already; whatever else overlaps is refused."""

    async def story(chain: Chain) -> None:
        await chain.serve()
        batch = batch_at(5, b"a", b"b", b"c")
        await chain.write(batch)
        await chain.write(batch)
        others = [
            batch_at(5, b"a", b"b", b"c", producer=8),
            batch_at(5, b"a", b"b", b"x"),
            batch_at(5, b"a", b"b", b"longer"),
            batch_at(5, b"a"),
            batch_at(7, b"c"),
            batch_at(3, b"x", b"y", b"z"),
            batch_at(1, *[b"x"] * 10),
        ]
        for other in others:
            with pytest.raises(AlreadyWritten):
                await chain.write(other)
        await chain.write(batch_at(4, b"before"))
        await chain.write(batch_at(8, b"behind"))
        assert entries_in((await chain.fetch(4))[1]) == [b"before", b"a", b"b", b"c", b"behind"]

    run_chain(tmp_path, story)


def test_writers_of_the_same_position_at_the_same_time_agree(tmp_path: Path) -> None:
    """Law 8: while a batch is on its way to the disk its positions are taken; the same one waits for it."""

    async def story(chain: Chain) -> None:
        await chain.serve()
        one, other = batch_at(1, b"a"), batch_at(1, b"b")
        ends = await asyncio.gather(
            *(chain.write(batch) for batch in (one, other, one, other, one)), return_exceptions=True
        )
        assert [type(end) for end in ends] == [
            type(None),
            AlreadyWritten,
            type(None),
            AlreadyWritten,
            type(None),
        ]
        assert entries_in(await chain.read(1)) == [b"a"]

    run_chain(tmp_path, story)


def test_holes_are_filled_with_the_same_junk_by_everybody(tmp_path: Path) -> None:
    """R-SEQ-7."""

    async def story(chain: Chain) -> None:
        await chain.serve()
        await asyncio.gather(*(chain.fill(3, 2) for _ in range(3)))
        await chain.write(junk(LLSN(3), 2))  # a reader copies it down the chain
        assert await chain.read(4, whole=True) == junk(LLSN(3), 2)
        assert parse_header(await chain.read(4)).is_junk
        with pytest.raises(AlreadyWritten):
            await chain.write(batch_at(3, b"late"))
        with pytest.raises(AlreadyWritten):
            await chain.write(batch_at(3, b"", b""))
        await chain.write(batch_at(1, b"a"))
        with pytest.raises(AlreadyWritten):
            await chain.fill(1)
        with pytest.raises(InvalidRequest):
            await chain.fill(0)
        with pytest.raises(BatchTooLarge):
            await chain.fill(100, BATCH_ENTRIES_MAX + 1)

    run_chain(tmp_path, story)


def test_what_a_client_sends_is_checked_before_it_is_taken(tmp_path: Path) -> None:
    """Law 10: refused is nowhere. Unsigned, flipped, cut, doubled, impossible offsets, odd junk, a future epoch."""

    async def story(chain: Chain) -> None:
        await chain.serve()
        good = batch_at(1, b"abc", b"def")
        flipped = bytearray(good)
        flipped[70] ^= 1
        unsigned = bytearray(good)
        unsigned[60] ^= 1
        backwards = bytearray(good)
        backwards[64:76] = struct.pack("<3i", 0, 7, 6)
        backwards[56:60] = struct.pack("<I", crc32c(backwards[64:]))
        place_batch(backwards, Epoch(1), LLSN(1))
        odd = batch_at(1, b"abc")
        odd[5] = 4
        place_batch(odd, Epoch(0), LLSN(1))
        for bad in (flipped, unsigned, backwards, odd, good[:-8], good + good, bytearray(), good[:64]):
            with pytest.raises(InvalidRequest):
                await chain.write(bad)
        with pytest.raises(InvalidRequest):
            await chain.write(batch_at(1, b"a", epoch=2))
        with pytest.raises(InvalidRequest):
            await chain.write(batch_at(0, b"a"))
        assert (await chain.status()).newest == 0

    run_chain(tmp_path, story)


def test_only_the_units_own_epoch_is_served(tmp_path: Path) -> None:
    """R-SEQ-5, law 7: an older one is over, and of a newer one the unit knows nothing."""

    async def story(chain: Chain) -> None:
        await chain.serve(epoch=2)
        for epoch in (1, 3):
            for ask in (
                chain.write(batch_at(1, b"a"), epoch=epoch),
                chain.fill(1, epoch=epoch),
                chain.read(1, epoch=epoch),
                chain.fetch(1, epoch=epoch, wait_s=5.0),
                chain.call(MeasureUnit(STREAM, Epoch(epoch), LLSN(1), LLSN(2))),
                chain.call(FindUnitTime(STREAM, Epoch(epoch), 1)),
            ):
                with pytest.raises(StaleEpoch) as refused:
                    await ask
                assert (refused.value.asked, refused.value.here) == (epoch, 2)
        await chain.write(batch_at(1, b"a", epoch=1), epoch=2)  # given in epoch 1, written in epoch 2

    run_chain(tmp_path, story)


def test_a_seal_reports_what_is_written_and_is_the_same_twice(tmp_path: Path) -> None:
    """R-SEQ-9."""

    async def story(chain: Chain) -> None:
        await chain.serve()
        assert (await chain.seal(1)).newest == 0
        await chain.write(batch_at(1, b"a", b"b"))
        await chain.write(batch_at(5, b"c"))
        for _ in range(2):
            sealed = await chain.seal(2)
            assert (sealed.epoch, sealed.newest, sealed.dense_end, sealed.trouble) == (2, 5, 3, "")
        with pytest.raises(StaleEpoch):
            await chain.seal(1)
        await chain.write(batch_at(3, b"d", epoch=1), epoch=2)

    run_chain(tmp_path, story)


def test_a_seal_cancels_requests_in_flight_and_counts_what_is_written(tmp_path: Path) -> None:
    """R-SEQ-9, law 7: no write of an older epoch is acknowledged after the seal, nor does it come later than the seal's answer."""

    async def story(chain: Chain) -> None:
        await chain.serve()
        connection = await chain.connect()
        writes = [
            asyncio.ensure_future(
                connection.call(WriteUnit(STREAM, Epoch(1)), batch_at(llsn, b"x" * 2000), timeout_s=20)
            )
            for llsn in range(1, 200)
        ]
        sealed, _ = await connection.call(SealUnit(STREAM, Epoch(2)), timeout_s=20)
        status = await chain.status()
        ends = await asyncio.gather(*writes, return_exceptions=True)
        refused = [end for end in ends if isinstance(end, StaleEpoch)]
        assert len(refused) + sum(isinstance(end, tuple) for end in ends) == len(ends)
        assert refused, "those that were not begun are not begun any more"
        assert status.newest == getattr(sealed, "newest", None) == (await chain.status()).newest
        for llsn, end in enumerate(ends, 1):
            if isinstance(end, tuple):
                await chain.read(llsn, epoch=2)
        connection.close()

    run_chain(tmp_path, story)


def test_epoch_pages_and_low_end_survive_a_restart(tmp_path: Path) -> None:
    """R-SN-3, laws 7, 8, 9; over several segments, in any order."""

    async def story(chain: Chain) -> None:
        granter = await chain.serve(epoch=2)
        for llsn in (9, 3, 1, 2, 7, 8, 4, 5):
            await chain.write(batch_at(llsn, b"%d" % llsn * 900), epoch=2)
        granter.order(2, low=3)
        await chain.leased()
        async with asyncio.timeout(TIMEOUT_S):
            while (await chain.status()).low != 3:
                await asyncio.sleep(0.001)
        before = await chain.status()
        await chain.stop()
        await chain.start()
        after = await chain.status()
        assert (after.epoch, after.low, after.newest, after.dense_end) == (2, 3, 9, 6)
        assert after == changed(before, traffic=Traffic(), unverified=True), "only the counters begin again"
        await chain.lease(term=2)
        with pytest.raises(Trimmed):
            await chain.read(2, epoch=2)
        fetched, payload = await chain.fetch(3, epoch=2)
        assert entries_in(payload) == [b"3" * 900, b"4" * 900, b"5" * 900]
        assert (fetched.next_llsn, fetched.newest, fetched.low) == (6, 9, 3)
        with pytest.raises(AlreadyWritten):
            await chain.write(batch_at(9, b"other"), epoch=2)

    run_chain(tmp_path, story)


def test_a_fetch_waits_for_the_write_and_reports_a_hole(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await chain.serve()
        waiting = asyncio.create_task(chain.fetch(1, wait_s=20.0))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await chain.write(batch_at(1, b"a"))
        assert entries_in((await waiting)[1]) == [b"a"]

        waiting = asyncio.create_task(chain.fetch(2, wait_s=10 * TIMEOUT_S))
        await asyncio.sleep(0.02)
        await chain.write(batch_at(4, b"d"))
        fetched, payload = await waiting
        assert (fetched.next_llsn, fetched.newest, bytes(payload)) == (2, 4, b"")
        assert (await chain.fetch(2))[0].next_llsn == 2
        fetched, _ = await chain.fetch(5, wait_s=0.01)
        assert (fetched.next_llsn, fetched.newest) == (5, 4)

        waiting = asyncio.create_task(chain.fetch(5, wait_s=20.0))
        await asyncio.sleep(0.02)
        await chain.seal(2)
        with pytest.raises(StaleEpoch):
            await waiting

    run_chain(tmp_path, story)


def test_a_fetch_brings_whole_batches_without_a_gap_up_to_its_size(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await chain.serve()
        for llsn in (1, 4, 7, 10):
            await chain.write(batch_at(llsn, *[b"%02d" % (llsn + at) * 200 for at in range(3)]))
        fetched, payload = await chain.fetch(5, bytes_max=1)
        assert [header.first_llsn for _, header in walk(payload)] == [4]
        assert fetched.next_llsn == 7
        fetched, payload = await chain.fetch(1, bytes_max=3500)
        assert [header.first_llsn for _, header in walk(payload)] == [1, 4]
        fetched, payload = await chain.fetch(2)
        assert fetched.next_llsn == 13

    run_chain(tmp_path, story)


def test_ranges_are_measured_and_times_are_found(tmp_path: Path) -> None:
    async def story(chain: Chain) -> None:
        await chain.serve()
        for llsn in range(1, 21):
            if llsn != 10:
                await chain.write(batch_at(llsn, b"x" * 100))
        measured, _ = await chain.call(MeasureUnit(STREAM, Epoch(1), LLSN(1), LLSN(10)))
        assert isinstance(measured, MeasureRangeReply)
        assert measured.complete
        assert measured.bytes > 900
        measured, _ = await chain.call(MeasureUnit(STREAM, Epoch(1), LLSN(1), LLSN(15)))
        assert isinstance(measured, MeasureRangeReply)
        assert not measured.complete
        measured, _ = await chain.call(MeasureUnit(STREAM, Epoch(1), LLSN(11), LLSN(100)))
        assert isinstance(measured, MeasureRangeReply)
        assert (measured.begin, measured.end, measured.complete) == (11, 21, False)
        assert (await chain.call(FindUnitTime(STREAM, Epoch(1), 12_000)))[0] == FindTimeReply(
            LLSN(12), GLSN(0)
        )
        assert (await chain.call(FindUnitTime(STREAM, Epoch(1), 99_000)))[0] == FindTimeReply(
            LLSN(21), GLSN(0)
        )

    run_chain(tmp_path, story)


def test_a_unit_is_made_once_and_can_be_removed(tmp_path: Path) -> None:
    """R-SN-6, R-REG-5."""

    async def story(chain: Chain) -> None:
        await chain.serve()
        with pytest.raises(PreconditionFailed):
            await chain.add()
        with pytest.raises(PreconditionFailed):
            await chain.call(AddLogStream(TOPIC, STREAM, ordering=Ordering.COMMITTED))
        with pytest.raises(PreconditionFailed):
            await chain.call(RemoveLogStream(STREAM, 7))
        waiting = asyncio.create_task(chain.fetch(1, wait_s=20.0))
        await asyncio.sleep(0.01)
        await chain.call(RemoveLogStream(STREAM, 1))
        with pytest.raises(Exception, match="closed here"):
            await waiting
        with pytest.raises(UnknownLogStream):
            await chain.read(1)
        assert not (await chain.node_status()).status.units
        await chain.add()
        assert (await chain.status()).epoch == 0

    run_chain(tmp_path, story)


def test_a_unit_that_was_just_made_takes_no_seal_but_a_new_streams(tmp_path: Path) -> None:
    """R-SEQ-12: made in place of a lost one it would otherwise say, for its chain, that nothing was ever
    written."""

    async def story(chain: Chain) -> None:
        await chain.start()
        await chain.add()
        with pytest.raises(PreconditionFailed, match="sync it"):
            await chain.seal(3)
        granter = await chain.lease()
        granter.order(3)
        await asyncio.sleep(0.01)
        assert (await chain.status()).epoch == 0, "an order does not move it either"
        await chain.leased()
        assert not granter.asked[-1].units, "and nobody waits for it"
        with pytest.raises(StaleEpoch):
            await chain.read(1, epoch=3)

    run_chain(tmp_path, story)
