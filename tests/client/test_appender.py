"""Appends: batched while a request is in flight, truthful about their outcome, over by their deadline (law 10)."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.fakes import FakeCluster, run, until
from varlog.client import appender as appender_module
from varlog.client import batcher as batcher_module
from varlog.client.committed import sender as batch_sender_module
from varlog.client.log import Log
from varlog.model.batch import Buffer, parse_header
from varlog.model.cluster import StreamState
from varlog.model.entry import Position, Run
from varlog.model.errors import (
    BatchTooLarge,
    EmptyBatch,
    EntryTooLarge,
    InvalidRequest,
    NotAccepted,
    NotInCluster,
    NotPrimary,
    OutcomeUnknown,
    Overloaded,
    Sealed,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import ClusterID, LogStreamID
from varlog.model.limits import (
    BATCH_BODY_BYTES_MAX,
    BATCH_ENTRIES_MAX,
    ENTRY_BYTES_MAX,
    GATHER_BYTES_MAX,
    GATHER_REQUESTS_MAX,
)
from varlog.rpc.messages import Append

ONE, TWO = LogStreamID(1), LogStreamID(2)


async def append_all(log: Log, count: int, prefix: bytes = b"e") -> list[asyncio.Task[Position]]:
    """Start `count` appends, and let them reach their queue."""
    tasks = [asyncio.create_task(log.append(prefix + b"%d" % i)) for i in range(count)]
    await asyncio.sleep(0)
    return tasks


async def until_held(cluster: FakeCluster, count: int) -> None:
    await until(lambda: len(cluster.held) == count)


def sent(cluster: FakeCluster) -> list[str]:
    return [address for address, message in cluster.requests if isinstance(message, Append)]


# --- Gathering ------------------------------------------------------------------------------------------------------------


def test_appends_of_one_turn_leave_as_one_batch_and_each_gets_its_own_position() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            positions = await asyncio.gather(*(log.append(b"%d" % i) for i in range(50)))
        assert cluster.batches_seen == [[b"%d" % i for i in range(50)]]
        assert positions == [Position(i, i, ONE) for i in range(1, 51)]  # type: ignore[arg-type]

    run(body())


def test_appends_that_wait_while_requests_are_in_flight_are_packed_into_the_next_batch() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            tasks = []
            for n in range(GATHER_REQUESTS_MAX):  # fill the in-flight window
                tasks += await append_all(log, 1, b"first")
                await until_held(cluster, n + 1)
            tasks += await append_all(log, 20, b"a")
            tasks += await append_all(log, 20, b"b")
            assert len(cluster.held) == GATHER_REQUESTS_MAX
            cluster.release()
            await until(lambda: len(cluster.held) == GATHER_REQUESTS_MAX)
            cluster.hold_appends = False
            cluster.release(GATHER_REQUESTS_MAX)
            await asyncio.gather(*tasks)
        assert [len(batch) for batch in cluster.batches_seen] == [1] * GATHER_REQUESTS_MAX + [40]

    run(body())


def test_a_gathered_batch_stops_at_its_bound_of_bytes() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            await asyncio.gather(*(log.append(bytes(GATHER_BYTES_MAX // 4)) for _ in range(10)))
        assert [len(batch) for batch in cluster.batches_seen] == [4, 4, 2]

    run(body())


def test_explicit_batches_leave_at_once_and_stay_atomic() -> None:
    """R-ORD-5: a batch is never merged with anything, and waits for nothing."""

    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            tasks = [asyncio.create_task(log.append_batch([b"a", b"b"])) for _ in range(8)]
            await until(lambda: len(cluster.held) == 8)
            cluster.release(8)
            runs = await asyncio.gather(*tasks)
        assert cluster.batches_seen == [[b"a", b"b"]] * 8
        assert runs[3] == Run(Position(7, 7, ONE), 2)  # type: ignore[arg-type]

    run(body())


def test_every_batch_has_the_client_s_producer_and_a_sequence_of_its_own() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            tasks = [asyncio.create_task(log.append_batch([b"x"])) for _ in range(3)]
            await until(lambda: len(cluster.held) == 3)
            headers = [parse_header(payload, signed=False) for _, _, payload in cluster.held]
            cluster.release(3)
            await asyncio.gather(*tasks)
        assert len({header.producer for header in headers}) == 1
        assert [header.sequence for header in headers] == [1, 2, 3]

    run(body())


def test_batches_are_spread_over_the_running_streams_and_a_chosen_stream_gets_its_own() -> None:
    """R-ORD-6."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=3)
        await cluster.start()
        async with await cluster.connect() as log:
            spread = [(await log.append_batch([b"x"])).first.log_stream for _ in range(9)]
            chosen = [(await log.append(b"x", log_stream=2)).log_stream for _ in range(4)]
        assert sorted(spread) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert chosen == [2] * 4

    run(body())


def test_a_caller_that_gives_up_does_not_disturb_the_batch_it_was_in() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            tasks = await append_all(log, 3)
            await until(lambda: len(cluster.held) == 1)
            tasks[1].cancel()
            await asyncio.sleep(0)
            cluster.release()
            first, _, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(first, Position) and first.glsn == 1
        assert isinstance(last, Position) and last.glsn == 3

    run(body())


# --- Outcomes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal",
    [
        Sealed(ONE),
        NotPrimary(ONE),
        NotInCluster(ClusterID(1), ClusterID(2)),
        UnknownLogStream(ONE),
        NotAccepted("full"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("batched", [False, True])
def test_what_is_refused_goes_to_another_stream(refusal: VarlogError, batched: bool) -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.fail_always[cluster.primary_of(ONE)] = refusal
        await cluster.start()
        async with await cluster.connect() as log:
            for _ in range(4):
                at = (await log.append_batch([b"x"])).first if batched else await log.append(b"x")
                assert at.log_stream == TWO
        assert cluster.tail == 4

    run(body())


def test_a_primary_that_nobody_listens_for_is_left_for_another_stream() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        await cluster.start("repository", cluster.primary_of(TWO))
        async with await cluster.connect() as log:
            assert [(await log.append(b"x")).log_stream for _ in range(3)] == [TWO] * 3

    run(body())


def test_a_chosen_stream_is_tried_again_until_it_takes_it() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.fail[cluster.primary_of(ONE)] = [Sealed(ONE), Sealed(ONE)]
        await cluster.start()
        async with await cluster.connect() as log:
            assert (await log.append(b"x", log_stream=ONE)).log_stream == ONE
        assert sent(cluster) == [cluster.primary_of(ONE)] * 3

    run(body())


def test_a_sealed_stream_is_used_again_once_the_view_shows_it_running() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.set_state(ONE, StreamState.SEALED)
        await cluster.start()
        async with await cluster.connect() as log:
            waiting = asyncio.create_task(log.append(b"x"))
            await until(lambda: len(cluster.requests) > 2)
            assert not waiting.done()
            cluster.set_state(ONE, StreamState.RUNNING)
            assert (await waiting).glsn == 1

    run(body())


def test_the_deadline_of_a_refused_append_reports_that_it_is_certainly_not_in_the_log() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=1, streams=2)
        cluster.fail_always["node-1"] = Sealed(ONE)
        await cluster.start()
        async with await cluster.connect() as log:
            with pytest.raises(NotAccepted, match=r"no log stream of the topic took it within 0\.05 s"):
                await log.append(b"x", timeout_s=0.05)
            with pytest.raises(NotAccepted):
                await log.append_batch([b"x"], timeout_s=0.05)
            with pytest.raises(Sealed):
                await log.append(b"x", log_stream=ONE, timeout_s=0.05)
        assert cluster.tail == 0

    run(body())


@pytest.mark.parametrize("batched", [False, True])
def test_no_answer_by_the_deadline_is_outcome_unknown(batched: bool) -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            call = log.append_batch([b"x"], timeout_s=0.05) if batched else log.append(b"x", timeout_s=0.05)
            with pytest.raises(OutcomeUnknown):
                await call

    run(body())


def test_members_of_one_batch_end_by_their_own_deadlines() -> None:
    """A short deadline beside long ones: it alone ends in OutcomeUnknown, the others are acknowledged later."""

    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            patient = asyncio.create_task(log.append(b"patient"))
            hasty = asyncio.create_task(log.append(b"hasty", timeout_s=0.05))
            with pytest.raises(OutcomeUnknown):
                await hasty
            assert cluster.held and not patient.done()
            cluster.release()
            assert (await patient).glsn == 1
        assert cluster.batches_seen == [[b"patient", b"hasty"]]

    run(body())


def test_an_append_reported_as_not_in_the_log_is_left_out_of_the_next_try() -> None:
    """Law 10: refused is nowhere, although the rest of its batch is tried again and gets there."""

    async def body() -> None:
        cluster = FakeCluster()
        cluster.fail_always["node-1"] = Sealed(ONE)
        await cluster.start()
        async with await cluster.connect() as log:
            patient = asyncio.create_task(log.append(b"patient"))
            with pytest.raises(NotAccepted):
                await log.append(b"hasty", timeout_s=0.05)
            cluster.fail_always.clear()
            assert (await patient).glsn == 1
        assert cluster.batches_seen == [[b"patient"]]

    run(body())


def test_an_append_that_never_left_its_queue_is_not_accepted() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            first = []
            for n in range(GATHER_REQUESTS_MAX):
                first += await append_all(log, 1)
                await until_held(cluster, n + 1)
            with pytest.raises(NotAccepted):
                await log.append(b"queued", timeout_s=0.05)
            cluster.hold_appends = False
            cluster.release(GATHER_REQUESTS_MAX)
            await asyncio.gather(*first)
            await log.append(b"later")
        assert [b"queued"] not in cluster.batches_seen

    run(body())


def test_a_stuck_stream_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sender_module, "SLOW_S", 0.01)

    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            stuck = asyncio.create_task(log.append(b"stuck"))
            await until(lambda: cluster.held)
            cluster.hold_appends = False
            stuck_in = cluster.held[0][1]
            await until(lambda: log._appender.sender.stalled)
            streams = [(await log.append(b"x")).log_stream for _ in range(5)]
            assert set(streams) == {ONE, TWO} - {stuck_in}
            cluster.release()
            await stuck

    run(body())


def test_closing_the_log_ends_each_append_with_what_is_known_of_it() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        log = await cluster.connect()
        in_flight = []
        for n in range(GATHER_REQUESTS_MAX):
            in_flight += await append_all(log, 1)
            await until_held(cluster, n + 1)
        queued = await append_all(log, 1)
        batch = asyncio.create_task(log.append_batch([b"x"]))
        await until(lambda: len(cluster.held) == GATHER_REQUESTS_MAX + 1)
        await log.close()
        outcomes = await asyncio.gather(*in_flight, batch, *queued, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * (GATHER_REQUESTS_MAX + 1) + [
            NotAccepted
        ]
        with pytest.raises(NotAccepted):
            await log.append(b"x")

    run(body())


# --- Back-pressure ----------------------------------------------------------------------------------------------------------


def test_what_finds_the_queue_full_is_refused_and_the_others_proceed_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batcher_module, "GATHER_WAITING_ENTRIES_MAX", 5)

    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            tasks = []
            for n in range(GATHER_REQUESTS_MAX):
                tasks += await append_all(log, 1)
                await until_held(cluster, n + 1)
            tasks += await append_all(log, 5)
            with pytest.raises(Overloaded, match="about 5 appends are waiting"):
                await log.append(b"x", timeout_s=0.05)
            cluster.hold_appends = False
            cluster.release(GATHER_REQUESTS_MAX)
            await asyncio.gather(*tasks)
            await log.append(b"x")
        assert cluster.tail == GATHER_REQUESTS_MAX + 6

    run(body())


def test_batches_wait_while_too_many_bytes_are_sent_and_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender_module, "SENT_BYTES_MAX", 1000)

    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            tasks = [asyncio.create_task(log.append_batch([bytes(300)])) for _ in range(4)]
            await until(lambda: len(cluster.held) == 2)
            with pytest.raises(NotAccepted, match="earlier batches were not answered"):
                await log.append_batch([b"x"], timeout_s=0.05)
            cluster.release(2)
            await until(lambda: len(cluster.held) == 2)
            cluster.release(2)
            runs = await asyncio.gather(*tasks)
        assert [at.first.glsn for at in runs] == [1, 2, 3, 4]

    run(body())


# --- Bad input: refused before anything is sent -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([], EmptyBatch),
        ([bytes(ENTRY_BYTES_MAX + 1)], EntryTooLarge),
        ([bytes(ENTRY_BYTES_MAX)] * (BATCH_BODY_BYTES_MAX // ENTRY_BYTES_MAX), BatchTooLarge),
        ([b""] * (BATCH_ENTRIES_MAX + 1), BatchTooLarge),
        (["text"], TypeError),
        (b"one entry, not a list", TypeError),
    ],
    ids=["empty", "entry over the limit", "bytes over the limit", "count over the limit", "text", "bytes"],
)
def test_a_bad_batch_is_refused(entries: list[bytes], error: type[Exception]) -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            with pytest.raises(error):
                await log.append_batch(entries)
            assert (await log.append_batch([b"good"])).first.glsn == 1
        assert len(sent(cluster)) == 1

    run(body())


def test_a_bad_entry_is_refused_and_the_appends_beside_it_are_not() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            good, large, text = await asyncio.gather(
                log.append(b"good"),
                log.append(bytes(ENTRY_BYTES_MAX + 1)),
                log.append("text"),  # type: ignore[arg-type]
                return_exceptions=True,
            )
        assert isinstance(good, Position)
        assert isinstance(large, EntryTooLarge)
        assert isinstance(text, TypeError)

    run(body())


def test_an_unknown_stream_is_refused_at_once() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            for call in (log.append(b"x", log_stream=9), log.append_batch([b"x"], log_stream=9)):
                with pytest.raises(UnknownLogStream):
                    await call
        assert sent(cluster) == []

    run(body())


def test_an_empty_entry_and_any_bytes_are_fine() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"")
            await log.append(bytearray(b"ab"))
            some: list[Buffer] = [memoryview(b"cd"), b""]
            await log.append_batch(iter(some))
        assert cluster.batches_seen == [[b""], [b"ab"], [b"cd", b""]]

    run(body())


def test_a_changed_buffer_does_not_change_what_was_appended() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            mutable = bytearray(b"before")
            task = asyncio.create_task(log.append(mutable))
            await asyncio.sleep(0)
            mutable[:] = b"after!"
            await task
        assert cluster.batches_seen == [[b"before"]]

    run(body())


def test_positions_of_trims_are_checked() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            with pytest.raises(InvalidRequest):
                await log.trim(0)

    run(body())
