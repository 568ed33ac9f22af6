"""An append whose answer was lost is found out: it ends at its one position, or as a certain no, or, late, as unknown."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.fakes import FakeCluster, run_in_real_time, until
from varlog.client.committed import sender as batch_sender_module
from varlog.client.committed.sender import BatchSender
from varlog.client.log import Log
from varlog.model.batch import parse_header
from varlog.model.entry import Position
from varlog.model.epoch import Epoch
from varlog.model.errors import OutcomeUnknown, Sealed, Unavailable
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import Append, FindAppend

ONE, TWO = LogStreamID(1), LogStreamID(2)
BATCHED = pytest.mark.parametrize("batched", [False, True])


def appends(cluster: FakeCluster) -> list[tuple[str, Append]]:
    return [(address, message) for address, message in cluster.requests if isinstance(message, Append)]


def questions(cluster: FakeCluster) -> list[tuple[str, FindAppend]]:
    return [(address, message) for address, message in cluster.requests if isinstance(message, FindAppend)]


async def append(log: Log, data: bytes, batched: bool = False, **more: float) -> Position:
    return (await log.append_batch([data], **more)).first if batched else await log.append(data, **more)  # type: ignore[arg-type]


async def sent_and_lost(cluster: FakeCluster, *, kept: bool) -> tuple[LogStreamID, str]:
    """The append in flight reached its primary, which dies before it can answer; `kept`: after it was ordered."""
    await until(lambda: cluster.held)
    _, log_stream, payload = cluster.held.pop()
    if kept:
        cluster.order(log_stream, payload)
    cluster.hold_appends = False
    primary = cluster.primary_of(log_stream)
    await cluster.stop(primary)
    return log_stream, primary


# --- The stream continues in the same epoch ----------------------------------------------------------------------------------


@BATCHED
@pytest.mark.parametrize("kept", [False, True])
def test_a_batch_is_sent_again_to_the_same_primary_and_is_in_the_log_once(batched: bool, kept: bool) -> None:
    """R-ORD-7: a retry returns the position of the first try."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(append(log, b"x", batched))
            log_stream, primary = await sent_and_lost(cluster, kept=kept)
            await cluster.start(primary)
            assert await task == Position(1, 1, log_stream)  # type: ignore[arg-type]
        assert cluster.batches_seen == [[b"x"]]
        assert {address for address, _ in appends(cluster)} == {primary}
        assert [message.is_retry for _, message in appends(cluster)] == [False, True]

    run_in_real_time(body())


def test_the_refusal_of_a_retry_does_not_decide_the_first_try() -> None:
    """The primary that answers Sealed to the second try may have ordered the first."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(log.append(b"x"))
            log_stream, primary = await sent_and_lost(cluster, kept=True)
            cluster.fail_always[primary] = Sealed(log_stream)
            await cluster.start(primary)
            await until(lambda: len(appends(cluster)) >= 3)
            assert not task.done()
            del cluster.fail_always[primary]
            assert (await task).log_stream == log_stream
        assert cluster.batches_seen == [[b"x"]]

    run_in_real_time(body())


def test_a_retry_carries_the_position_above_which_to_search() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start()
        async with await cluster.connect() as log:
            for _ in range(5):
                await log.append(b"before")
            cluster.hold_appends = True
            task = asyncio.create_task(log.append(b"x"))
            _, primary = await sent_and_lost(cluster, kept=True)
            await cluster.start(primary)
            await task
        assert appends(cluster)[-1][1] == Append(ONE, Epoch(1), True, LLSN(5), GLSN(5))

    run_in_real_time(body())


def test_the_first_append_of_a_client_is_searched_behind_the_tail_it_learned() -> None:
    """Not in the whole log, of which it knows nothing."""

    async def body() -> None:
        cluster = FakeCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect() as other:
            await other.append_batch([b"before"] * 9)
        cluster.hold_appends = True
        async with await cluster.connect(seed=2) as log:
            sender = log._appender.sender
            assert isinstance(sender, BatchSender)
            first = asyncio.create_task(log.append_batch([b"first"]))
            await until(lambda: cluster.held and sender._tail)
            second = asyncio.create_task(log.append_batch([b"second"]))
            await until(lambda: len(cluster.held) == 2)
            await sent_and_lost(cluster, kept=False)
            cluster.seal(ONE)
            cluster.unseal(ONE, 2, 3)
            await asyncio.gather(first, second)
        after = {message.sequence: message.min_glsn for _, message in questions(cluster)}
        assert after == {1: 0, 2: 9}

    run_in_real_time(body())


def test_replicas_that_know_the_end_of_the_epoch_count_although_the_view_is_old() -> None:
    """The repository cannot be reached; the nodes can."""

    async def body() -> None:
        cluster = FakeCluster(nodes=3)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(log.append(b"x"))
            log_stream, primary = await sent_and_lost(cluster, kept=True)
            await cluster.stop("repository")
            cluster.seal(log_stream)
            await cluster.start(primary)
            assert (await task).log_stream == log_stream
        assert cluster.batches_seen == [[b"x"]]

    run_in_real_time(body())


def test_a_connection_that_is_dead_without_a_sign_is_given_up_and_the_batch_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_sender_module, "TRY_S_MAX", 0.05)
    monkeypatch.setattr(batch_sender_module, "SLOW_S", 0.02)

    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(log.append(b"x"))
            await until(lambda: len(cluster.held) >= 2)
            first, second = cluster.held[0], cluster.held[1]
            assert first[0].connection is not second[0].connection
            cluster.hold_appends = False
            second[0].reply(cluster.order(*second[1:]))
            assert (await task).glsn == 1
        assert cluster.batches_seen == [[b"x"]]

    run_in_real_time(body())


# --- The stream was sealed ----------------------------------------------------------------------------------------------------


@BATCHED
def test_a_sealed_stream_is_asked_what_became_of_the_batch(batched: bool) -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=3, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(append(log, b"x", batched))
            log_stream, primary = await sent_and_lost(cluster, kept=True)
            cluster.seal(log_stream)
            assert await task == Position(1, 1, log_stream)  # type: ignore[arg-type]
        assert cluster.batches_seen == [[b"x"]]
        assert len(appends(cluster)) == 1
        assert all(address != primary for address, _ in questions(cluster))

    run_in_real_time(body())


@BATCHED
def test_only_what_is_certainly_nowhere_goes_to_another_stream(batched: bool) -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=3, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(append(log, b"x", batched))
            log_stream, _ = await sent_and_lost(cluster, kept=False)
            cluster.undecided = True
            cluster.seal(log_stream)
            await until(lambda: len(questions(cluster)) > 3)
            assert len(appends(cluster)) == 1
            cluster.undecided = False
            other = TWO if log_stream == ONE else ONE
            assert (await task).log_stream == other
        assert cluster.batches_seen == [[b"x"]]
        assert [message.is_retry for _, message in appends(cluster)] == [False, False]
        asked = questions(cluster)[0][1]
        assert (asked.log_stream, asked.epoch, asked.min_llsn) == (log_stream, 1, 0)

    run_in_real_time(body())


def test_an_append_to_a_chosen_stream_follows_it_over_a_failover() -> None:
    """R-ORD-7: it is taken by the new primary, in the new epoch, once."""

    async def body() -> None:
        cluster = FakeCluster(nodes=3)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(log.append(b"x", log_stream=ONE))
            await sent_and_lost(cluster, kept=False)
            cluster.seal(ONE)
            await until(lambda: questions(cluster))
            cluster.unseal(ONE, 2, 3)
            assert (await task).log_stream == ONE
        assert [(address, message.epoch) for address, message in appends(cluster)] == [
            ("node-1", 1),
            ("node-2", 2),
        ]

    run_in_real_time(body())


def test_a_call_without_an_answer_is_given_up_when_the_view_shows_a_newer_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A primary that is only cut off keeps its connections open: nobody waits for it until the deadline."""
    monkeypatch.setattr(batch_sender_module, "SLOW_S", 0.01)

    async def body() -> None:
        cluster = FakeCluster(nodes=3, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(log.append(b"x"))
            await until(lambda: cluster.held and log._appender.sender.stalled)
            cluster.hold_appends = False
            call, log_stream, payload = cluster.held[0]
            cluster.seal(log_stream)
            assert (await task).log_stream != log_stream
            call.reply(cluster.order(log_stream, payload))  # too late to matter
        assert len(appends(cluster)) == 2

    run_in_real_time(body())


def test_an_answer_that_comes_in_time_is_taken_although_the_epoch_is_over() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(log.append(b"x"))
            await until(lambda: cluster.held)
            cluster.seal(ONE)
            await log.connector.view()
            cluster.release()
            assert (await task).glsn == 1
        assert questions(cluster) == []

    run_in_real_time(body())


# --- Nobody can say -----------------------------------------------------------------------------------------------------------


@BATCHED
def test_what_is_undecided_at_the_deadline_is_unknown_and_was_sent_nowhere_else(batched: bool) -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(append(log, b"x", batched, timeout_s=0.3))
            log_stream, primary = await sent_and_lost(cluster, kept=False)
            cluster.undecided = True
            cluster.seal(log_stream)
            with pytest.raises(OutcomeUnknown, match=r"not answered within 0\.3 s \(.*\)"):
                await task
        assert [address for address, _ in appends(cluster)] == [primary]
        assert cluster.batches_seen == []

    run_in_real_time(body())


def test_a_deleted_stream_leaves_the_outcome_unknown_at_once() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            task = asyncio.create_task(log.append(b"x"))
            log_stream, _ = await sent_and_lost(cluster, kept=False)
            cluster.delete(log_stream)
            with pytest.raises(OutcomeUnknown, match="deleted"):
                await task

    run_in_real_time(body())


@BATCHED
def test_closing_the_log_leaves_what_is_not_found_out_unknown(batched: bool) -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        log = await cluster.connect()
        task = asyncio.create_task(append(log, b"x", batched))
        await sent_and_lost(cluster, kept=True)
        await asyncio.sleep(0.02)
        await log.close()
        with pytest.raises(OutcomeUnknown, match="closed"):
            await task

    run_in_real_time(body())


def test_a_primary_that_fails_half_way_is_asked_again() -> None:
    async def body() -> None:
        cluster = FakeCluster()
        cluster.fail["node-1"] = [Unavailable("the disk is gone"), Unavailable("the disk is gone")]
        await cluster.start()
        async with await cluster.connect() as log:
            assert (await log.append(b"x")).glsn == 1
            cluster.fail_always["node-1"] = Unavailable("the disk is gone")
            with pytest.raises(OutcomeUnknown, match="the disk is gone"):
                await log.append(b"y", timeout_s=0.1)

    run_in_real_time(body())


# --- Appends of one batch with different deadlines ----------------------------------------------------------------------------


def test_an_append_past_its_deadline_is_unknown_and_left_out_when_the_batch_moves_elsewhere() -> None:
    """Law 10: unknown may mean never. What is sent again is another batch, so it has another sequence."""

    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            patient = asyncio.create_task(log.append(b"patient"))
            hasty = asyncio.create_task(log.append(b"hasty", timeout_s=0.1))
            await until(lambda: cluster.held)
            sequence = parse_header(cluster.held[0][2], signed=False).sequence
            log_stream, _ = await sent_and_lost(cluster, kept=False)
            cluster.undecided = True
            cluster.seal(log_stream)
            with pytest.raises(OutcomeUnknown):
                await hasty
            assert not patient.done()
            cluster.undecided = False
            assert (await patient).log_stream != log_stream
        assert cluster.batches_seen == [[b"patient"]]
        ((_, taken),) = cluster.streams[TWO if log_stream == ONE else ONE].keys
        assert taken > sequence

    run_in_real_time(body())


def test_an_append_past_its_deadline_stays_in_a_batch_whose_outcome_is_open() -> None:
    """The batch may be in the log: it must not be sent again without this append, as another batch."""

    async def body() -> None:
        cluster = FakeCluster()
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            patient = asyncio.create_task(log.append(b"patient"))
            hasty = asyncio.create_task(log.append(b"hasty", timeout_s=0.1))
            _, primary = await sent_and_lost(cluster, kept=True)
            with pytest.raises(OutcomeUnknown):
                await hasty
            await cluster.start(primary)
            assert (await patient).glsn == 1
        assert cluster.batches_seen == [[b"patient", b"hasty"]]

    run_in_real_time(body())


def test_appends_continue_in_other_streams_while_an_outcome_is_open() -> None:
    async def body() -> None:
        cluster = FakeCluster(nodes=2, streams=2)
        cluster.hold_appends = True
        await cluster.start()
        async with await cluster.connect() as log:
            tasks = []
            for n in range(4):  # more than may be in flight at once
                tasks.append(asyncio.create_task(log.append(b"open %d" % n)))
                await asyncio.sleep(0.005)
            await until(lambda: len(cluster.held) >= 2)
            lost = cluster.primary_of(ONE)
            await cluster.stop(lost)
            cluster.hold_appends = False
            for call, log_stream, payload in cluster.held:
                if log_stream == TWO:
                    call.reply(cluster.order(log_stream, payload))
            assert {(await log.append(b"x")).log_stream for _ in range(10)} == {TWO}
            await cluster.start(lost)
            await asyncio.gather(*tasks)
        entries = [entry for batch in cluster.batches_seen for entry in batch]
        assert sorted(entries) == sorted([b"x"] * 10 + [b"open %d" % n for n in range(4)])

    run_in_real_time(body())
