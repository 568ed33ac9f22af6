"""A chain is in the log once, however many attempts write it, in turn or at once, in any order, over whatever breaks."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.client.fakes import run, run_in_real_time, until
from tests.client.idempotent_cluster import ChainedCluster
from varlog import aio
from varlog.client.log import Log
from varlog.client.writers import window as inflight_window_module
from varlog.client.writers.idempotent import IdempotentWriter, IdempotentWriteResult
from varlog.client.writers.idempotent_rules import IndeterminateInput, TrimmedWrite
from varlog.model.batch import Columns, pack, parse_header
from varlog.model.entry import Position
from varlog.model.errors import EmptyBatch, NotAccepted, OutcomeUnknown, Rejected, Sealed, Unavailable
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import AppendAt, AppendIdempotent, ListIdempotentBatches

ONE, CHAIN = LogStreamID(1), ProducerID(77)
ROWS = [b"row %d" % n for n in range(20)]


def chain_of(log: Log, *, timeout_s: float | None = None) -> IdempotentWriter:
    return log.idempotent_writer(ONE, CHAIN, 0, timeout_s=timeout_s)


async def write(chain: IdempotentWriter, rows: list[bytes], size: int = 3) -> IdempotentWriteResult:
    for begin in range(0, len(rows), size):
        await chain.append(rows[begin : begin + size])
    return await chain.finish()


def packed(
    sequence: int, rows: list[bytes], previous: bytearray | None = None
) -> tuple[AppendIdempotent, bytearray]:
    """A batch of another attempt."""
    crc = parse_header(previous, signed=False).body_crc if previous is not None else 0
    batch = pack(rows, producer=CHAIN, sequence=sequence, time_us=1)
    return AppendIdempotent(ONE, previous_crc=crc), batch


def lists(cluster: ChainedCluster) -> int:
    return sum(isinstance(message, ListIdempotentBatches) for _, message in cluster.requests)


# --- One attempt --------------------------------------------------------------------------------------------------------------


def test_rows_are_written_in_order_and_their_last_position_is_returned() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            assert await write(chain_of(log), ROWS) == IdempotentWriteResult(
                20, 0, Position(GLSN(20), LLSN(20), ONE)
            )
        assert cluster.rows == ROWS
        assert lists(cluster) == 0

    run(body())


def test_an_empty_chain_is_finished_at_once() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            assert await chain_of(log).finish() == IdempotentWriteResult(0, 0, None)

    run(body())


def test_batches_travel_before_those_before_them_are_answered_as_many_as_the_window_has_room_for() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            writing = asyncio.create_task(write(chain_of(log), [bytes(1 << 20)] * 12, 1))
            await until(lambda: len(cluster.held) == 8)
            await asyncio.sleep(0.02)
            assert len(cluster.held) == 8
            cluster.take_held(answer=True)
            await until(lambda: len(cluster.held) == 8)
            cluster.hold_appends = False
            while cluster.held:
                cluster.take_held(answer=True)
            assert (await writing).rows_written == 12

    run(body())


def test_arrow_buffers_are_packed_as_they_are_from_any_offset_on() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        offsets = np.array([2, 4, 4, 7], dtype="<i4")
        async with await cluster.connect() as log:
            chain = chain_of(log)
            await chain.append(Columns(offsets.tobytes(), b"..aabbbcc"))
            with pytest.raises(EmptyBatch):
                await chain.append(Columns(offsets[:1].tobytes(), b""))
            assert (await chain.finish()).rows_written == 3
        assert cluster.rows == [b"aa", b"", b"bbb"]

    run(body())


def test_a_row_in_the_same_place_of_two_orders_lets_nothing_behind_it_in_twice() -> None:
    """All batches of the second attempt are in flight before the first is refused; its third seems to continue behind "b"."""

    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            first = chain_of(log)
            for row in (b"a", b"b"):
                await first.append([row])
            await first.finish()
            assert await write(chain_of(log), [b"c", b"b", b"a"], 1) == IdempotentWriteResult(
                1, 2, Position(GLSN(3), LLSN(3), ONE)
            )
        assert cluster.rows == [b"a", b"b", b"c"]

    run(body())


# --- Attempts in turn ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [1, 7, 20])
@pytest.mark.parametrize("page", [1, 1000])
def test_an_attempt_continues_where_an_earlier_one_was_interrupted(written: int, page: int) -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        cluster.page = page
        await cluster.start()
        async with await cluster.connect() as log:
            first = chain_of(log)
            for row in ROWS[:written]:
                await first.append([row])
            await until(lambda: len(cluster.rows) == written)
        async with await cluster.connect(seed=2) as log:
            end = await write(chain_of(log), ROWS, 1)
            assert end.rows_written + end.rows_found == 20
            assert end.last == Position(GLSN(20), LLSN(20), ONE)
        assert cluster.rows == ROWS

    run(body())


@pytest.mark.parametrize("seed", range(8))
def test_the_same_rows_in_another_order_and_other_batches_are_each_left_out(seed: int) -> None:
    """With rows that occur several times."""

    async def body() -> None:
        rng, cluster = Random(seed), ChainedCluster()
        rows = [b"twice", b"twice", b"a long row " * 9, b"a long row " * 9, *ROWS]
        await cluster.start()
        async with await cluster.connect() as log:
            for attempt in range(4):
                mine = rng.sample(rows, len(rows))
                chain = chain_of(log)
                for begin in range(0, len(mine), 2 + attempt):
                    if attempt < 3 and rng.random() < 0.3:
                        break
                    await chain.append(mine[begin : begin + 2 + attempt])
                else:
                    end = await chain.finish()
                    assert end.rows_written + end.rows_found == len(rows)
        assert Counter(cluster.rows) == Counter(rows)

    run(body())


def test_rows_of_an_earlier_attempt_that_are_not_in_the_input_any_more_are_reported() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            await write(chain_of(log), ROWS)
            for mine, foreign in ((ROWS[:18], 2), ([b"new", *ROWS[1:]], 1), ([], 0)):
                chain = chain_of(log)
                if not foreign:
                    assert (await chain.finish()).rows_found == 0  # nothing was asked, so nothing is known
                    continue
                with pytest.raises(IndeterminateInput, match=rf"brought {foreign} rows .* orderBy"):
                    await write(chain, mine)
                with pytest.raises(IndeterminateInput):
                    await chain.append([b"more"])
        assert Counter(cluster.rows) == Counter([*ROWS, b"new"])

    run(body())


def test_an_attempt_whose_predecessors_were_trimmed_fails_as_undecidable() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            await write(chain_of(log), ROWS)
            await log.trim(6)
            with pytest.raises(TrimmedWrite, match="batches 1 to 2"):
                await write(chain_of(log), ROWS)
        assert cluster.rows == ROWS

    run(body())


# --- Attempts at once ---------------------------------------------------------------------------------------------------------


def test_an_attempt_that_loses_its_place_again_and_again_writes_what_is_left() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        rows = [b"0", b"1", b"2", b"3", b"4", b"5"]
        theirs: list[tuple[AppendIdempotent | AppendAt, bytearray]] = []
        for number, mine in enumerate(([b"5"], [b"3", b"1"], [b"4"]), 1):
            theirs.append(packed(number, mine, theirs[-1][1] if theirs else None))
        cluster.rivals = theirs
        await cluster.start()
        async with await cluster.connect() as log:
            end = await write(chain_of(log), rows, 2)
            assert (end.rows_written, end.rows_found) == (2, 4)
        assert sorted(cluster.rows) == rows

    run(body())


@pytest.mark.parametrize("shuffled", [False, True])
def test_attempts_that_run_at_once_write_each_row_once_and_all_succeed(shuffled: bool) -> None:
    """R-USE-4: a task of Spark that runs twice writes its rows once."""

    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        logs = [await cluster.connect(seed=seed) for seed in range(4)]
        orders = [Random(seed).sample(ROWS, 20) if shuffled else ROWS for seed in range(4)]
        ends = await asyncio.gather(
            *(write(chain_of(log), rows, 2) for log, rows in zip(logs, orders, strict=True))
        )
        assert [end.rows_written + end.rows_found for end in ends] == [20] * 4
        assert sorted(cluster.rows) == sorted(ROWS)
        for log in logs:
            await log.close()

    run(body())


# --- What breaks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrived", [0, 1, 3, 5])
def test_after_a_lost_connection_everything_without_an_answer_is_sent_again_in_order(arrived: int) -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            writing = asyncio.create_task(write(chain_of(log), ROWS[:5], 1))
            await until(lambda: len(cluster.held) == 5)
            for _ in range(arrived):
                cluster.take_held(answer=False)
            cluster.hold_appends = False
            cluster.held.clear()
            await cluster.stop("node-1")
            await cluster.start("node-1")
            end = await writing
            assert end.rows_written + end.rows_found == 5
            assert end.last == Position(GLSN(5), LLSN(5), ONE)
        assert cluster.rows == ROWS[:5]

    run(body())


def test_a_chain_goes_over_a_seal_to_the_next_primary() -> None:
    async def body() -> None:
        cluster = ChainedCluster(nodes=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            writing = asyncio.create_task(write(chain_of(log), ROWS[:4], 1))
            await until(lambda: len(cluster.held) == 4)
            cluster.take_held(answer=False)
            held, cluster.held = cluster.held, []
            cluster.hold_appends = False
            cluster.requests_held.clear()
            cluster.seal(ONE)
            for call, _, _ in held:
                call.fail(Sealed(ONE))
            await asyncio.sleep(0.05)
            assert not writing.done()
            cluster.unseal(ONE, 2, 1)
            assert (await writing).last == Position(GLSN(4), LLSN(4), ONE)
        assert cluster.rows == ROWS[:4]

    run(body())


def test_a_silent_primary_is_left_when_the_view_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inflight_window_module, "SLOW_S", 0.01)
    monkeypatch.setattr(inflight_window_module, "TRY_S", 50.0)

    async def body() -> None:
        cluster = ChainedCluster(nodes=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect(timeout_s=50.0) as log:
            writing = asyncio.create_task(write(chain_of(log), ROWS[:4], 1))
            await until(lambda: len(cluster.held) == 4)
            cluster.hold_appends = False
            cluster.seal(ONE)
            cluster.unseal(ONE, 2, 1)
            assert (await writing).rows_written == 4
        assert cluster.rows == ROWS[:4]

    run(body())


def test_a_window_that_is_too_much_for_the_primary_becomes_smaller() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        cluster.hold_appends, cluster.in_flight_most = True, 2
        await cluster.start()
        async with await cluster.connect() as log:
            writing = asyncio.create_task(write(chain_of(log), [bytes(60_000)] * 30, 1))
            while not writing.done():
                await asyncio.sleep(0.001)
                while cluster.held:
                    cluster.take_held(answer=True)
            assert (await writing).rows_written == 30
        assert len(cluster.rows) == 30

    run(body())


@pytest.mark.parametrize("sent", [False, True])
def test_without_progress_for_too_long_it_fails_for_good_and_names_how_to_continue(sent: bool) -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            chain = chain_of(log, timeout_s=0.2)
            if sent:
                cluster.fail_always["node-1"] = Unavailable("not now")
            else:
                cluster.seal(ONE)
                await log.connector.view()
            kind = OutcomeUnknown if sent else NotAccepted
            with pytest.raises(kind, match="Write it again from its beginning: it continues"):
                await write(chain, ROWS)
            with pytest.raises(kind):
                await chain.finish()

    run(body())


def test_a_batch_that_can_never_be_taken_fails_the_chain_at_once() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        await cluster.start()
        async with await cluster.connect(timeout_s=50.0) as log:
            cluster.fail_always["node-1"] = EmptyBatch("whatever the primary does not like")
            with pytest.raises(Rejected, match="whatever"):
                await write(chain_of(log), ROWS)

    run(body())


def test_a_chain_of_a_closed_log_ends() -> None:
    async def body() -> None:
        cluster = ChainedCluster()
        cluster.hold_appends = True
        await cluster.start()
        log = await cluster.connect(timeout_s=50.0)
        writing = asyncio.create_task(write(chain_of(log), ROWS))
        await until(lambda: cluster.held)
        await log.close()
        with pytest.raises(OutcomeUnknown, match="the log was closed"):
            await writing

    run(body())


def test_a_task_that_is_run_again_after_a_restart_finds_its_rows_on_disk(tmp_path: Path) -> None:
    """Embedded: the primary's memory is gone, other writers wrote in between, and the order is another one."""

    async def body() -> None:
        async with await aio.open(tmp_path / "log", topic="t") as log:
            stream = log.streams[0].log_stream
            await log.append(b"before", log_stream=stream)
            after = await log.tail()
            first = log.idempotent_writer(stream, CHAIN, after)
            await first.append(ROWS[:3])
            await first.append(ROWS[3:6])
            await first.finish()
            await log.append(b"between", log_stream=stream)
        async with await aio.open(tmp_path / "log", topic="t") as log:
            again = log.idempotent_writer(stream, CHAIN, after)
            end = await write(again, [*ROWS[:3], *ROWS[:2:-1]])
            assert (end.rows_written, end.rows_found) == (14, 6)
            entries = [entry.data async for entry in log.subscribe(1, await log.tail() + 1)]
        assert Counter(entries) == Counter([b"before", b"between", *ROWS])

    run_in_real_time(body())
