"""A storage node reports how a range of its entries lies on disk, and where a time is, without serving an entry."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from tests.storagenode.scripted import STREAM, Bench, Repository, entries_in, row, run, until
from varlog.model.batch import pack
from varlog.model.errors import Trimmed, Unavailable, UnknownLogStream
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.limits import MEASURE_POINTS_MAX
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import (
    Append,
    Fetch,
    FetchReply,
    FindTime,
    FindTimeReply,
    MeasureRange,
    MeasureRangeReply,
    Message,
)

BATCHES, ENTRIES, ENTRY_BYTES = 60, 10, 300


async def filled(bench: Bench, *, gap: int = 0) -> Repository:
    """Batches of ten entries, a millisecond apart, over several segments; ordered at LLSN + `gap`."""
    await bench.start(segment_bytes=50_000)
    await bench.run_stream()
    repository = await bench.session()
    appends = []
    for number in range(BATCHES):
        batch = pack(
            [bytes(ENTRY_BYTES)] * ENTRIES,
            producer=ProducerID(7),
            sequence=number + 1,
            time_us=1_000_000 + 1000 * number,
        )
        appends.append(asyncio.create_task(bench.call(Append(STREAM), batch)))
        await durable(repository, (number + 1) * ENTRIES + 1)
    total = BATCHES * ENTRIES
    repository.commit(row(1, total + 1, glsn=1 + gap), high=total + gap)
    await asyncio.gather(*appends)
    return repository


async def durable(repository: Repository, end: int) -> None:
    await until(lambda: any(report.durable_end >= end for report in repository.reports))


async def ask(bench: Bench, request: Message) -> Message:
    return (await bench.call(request))[0]


async def measured(bench: Bench, begin: int, end: int, points_max: int = 16) -> MeasureRangeReply:
    found = await ask(bench, MeasureRange(STREAM, GLSN(begin), GLSN(end), points_max))
    assert isinstance(found, MeasureRangeReply)
    return found


def test_a_range_is_returned_as_starts_of_batches_evenly_spaced_in_bytes(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await filled(bench, gap=100)
        found = await measured(bench, 101, 701, 9)
        assert (found.begin, found.end, found.complete) == (1, 601, True)
        assert found.bytes >= BATCHES * ENTRIES * ENTRY_BYTES
        assert len(found.points) == 9
        for llsn, before in found.points:
            assert (llsn - 1) % ENTRIES == 0, "a batch begins there"
            assert abs(before / found.bytes - (llsn - 1) / 600) < 0.02
        places = [0, *(before for _, before in found.points), found.bytes]
        steps = [high - low for low, high in pairwise(places)]
        assert max(steps) < 2 * min(steps)
        part, payload = await bench.call(Fetch(STREAM, found.points[0][0], bytes_max=1))
        assert isinstance(part, FetchReply)
        assert len(entries_in(payload)) == ENTRIES

    run(tmp_path, story)


def test_a_part_of_a_batch_is_measured_by_its_share(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await filled(bench)
        whole, part = await measured(bench, 1, 601), await measured(bench, 204, 209)
        assert (part.begin, part.end, part.points) == (204, 209, ())
        assert part.bytes == pytest.approx(whole.bytes * 5 / 600, rel=0.2)
        nothing = await measured(bench, 50, 50)
        assert (nothing.begin, nothing.end, nothing.bytes, nothing.points) == (50, 50, 0, ())
        many = await measured(bench, 1, 601, 10 * MEASURE_POINTS_MAX)
        assert 20 < len(many.points) < BATCHES, "no more than there are points"

    run(tmp_path, story)


def test_a_replica_that_does_not_know_the_end_yet_reports_that(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        repository = await filled(bench)
        beyond = await measured(bench, 590, 700)
        assert (beyond.begin, beyond.end, beyond.complete) == (590, 601, False)
        repository.commit(high=699)
        await until(lambda: repository.marks_applied == repository.serial)
        assert (await measured(bench, 590, 700)).complete

    run(tmp_path, story)


def test_what_is_trimmed_is_not_measured_and_not_found(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        repository = await filled(bench)
        repository.commit(high=600, trimmed=155)
        await until(lambda: repository.marks_applied == repository.serial)
        with pytest.raises(Trimmed):
            await measured(bench, 155, 300)
        assert (await measured(bench, 156, 300)).begin == 156
        found = await ask(bench, FindTime(STREAM, 0))
        assert found == FindTimeReply(LLSN(156), GLSN(156))
        with pytest.raises(UnknownLogStream):
            await ask(bench, MeasureRange(LogStreamID(9), GLSN(1), GLSN(2)))

    run(tmp_path, story)


def test_a_time_is_found_at_the_first_batch_that_is_not_older(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await filled(bench, gap=40)
        for number in range(BATCHES):
            time_us = 1_000_000 + 1000 * number
            first = 1 + number * ENTRIES
            assert await ask(bench, FindTime(STREAM, time_us)) == FindTimeReply(LLSN(first), GLSN(first + 40))
            assert await ask(bench, FindTime(STREAM, time_us - 999)) == FindTimeReply(
                LLSN(first), GLSN(first + 40)
            )
        assert await ask(bench, FindTime(STREAM, 0)) == FindTimeReply(LLSN(1), GLSN(41))
        assert await ask(bench, FindTime(STREAM, 2_000_000)) == FindTimeReply(LLSN(601), GLSN(641))

    run(tmp_path, story)


def test_a_node_that_has_just_started_measures_nothing(tmp_path: Path) -> None:
    """Law 9: it does not know yet what is trimmed."""

    async def story(bench: Bench) -> None:
        await filled(bench)
        await bench.stop()
        await bench.start(segment_bytes=50_000)
        for request in (MeasureRange(STREAM, GLSN(1), GLSN(9)), FindTime(STREAM, 0)):
            with pytest.raises(Unavailable):
                await ask(bench, request)

    run(tmp_path, story)
