"""Appends to a sequenced topic: a token, then the chain; the same positions resumed, or new ones where another value was faster."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.fakes import run, until
from tests.client.sequenced.fakes import SequencedCluster
from varlog.model.batch import entries_of, junk, parse_header
from varlog.model.errors import (
    BatchTooLarge,
    InvalidRequest,
    NoLease,
    NotAccepted,
    OutcomeUnknown,
    Rejected,
    Sealed,
    StaleEpoch,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import FillUnit, Message, NextTokens, ProposeProjection, SealUnit, WriteUnit


def data(cluster: SequencedCluster, node: int, log_stream: int = 1) -> list[bytes | None]:
    """What a unit holds, entry by entry; None is junk."""
    held: list[bytes | None] = []
    for _, count, batch in cluster.stored(node, log_stream):
        header = parse_header(batch)
        held += [None] * count if header.is_junk else entries_of(batch, header)
    return held


def test_an_append_is_one_token_and_one_write_a_node_head_to_tail() -> None:
    """R-SEQ-4: with 3 replicas 4 round trips."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect() as log:
            cluster.requests.clear()
            assert (await log.append(b"a")).glsn == 1
            wanted = [("seq-1", "NextTokens"), *((f"node-{n}", "WriteUnit") for n in (1, 2, 3))]
            assert cluster.asked() == wanted
            assert cluster.stored(1) == cluster.stored(2) == cluster.stored(3)

    run(scenario())


def test_appends_that_wait_together_share_a_batch_and_two_batches_are_in_flight() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2, stripe_size=4096)
        await cluster.start()
        async with await cluster.connect() as log:
            positions = await asyncio.gather(*(log.append(b"%d" % n) for n in range(100)))
            assert sorted(position.glsn for position in positions) == list(range(1, 101))
            assert len(cluster.asked(NextTokens)) < 10
            assert cluster.stored(1) == cluster.stored(2)

    run(scenario())


def test_stripes_take_turns_and_a_batch_never_crosses_one() -> None:
    """R-SEQ-3: what is left of a turn is filled by the one who was given it."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2, streams=2, stripe_size=4, rotated=True)
        await cluster.start()
        async with await cluster.connect() as log:
            first = await log.append_batch([b"1", b"2", b"3"])
            assert [(at.glsn, at.llsn, at.log_stream) for at in first] == [(1, 1, 1), (2, 2, 1), (3, 3, 1)]
            second = await log.append_batch([b"5", b"6"])
            assert [(at.glsn, at.llsn, at.log_stream) for at in second] == [(5, 1, 2), (6, 2, 2)]
            await until(lambda: len(data(cluster, 1)) == len(data(cluster, 2)) == 4)
            assert data(cluster, 2) == data(cluster, 1) == [b"1", b"2", b"3", None]
            with pytest.raises(BatchTooLarge):
                await log.append_batch([b""] * 5)
            with pytest.raises(InvalidRequest):
                await log.append(b"x", log_stream=1)
            with pytest.raises(UnknownLogStream):
                await log.append(b"x", log_stream=9)

    run(scenario())


def test_where_another_value_was_faster_the_batch_takes_a_new_position() -> None:
    """AlreadyWritten at the head."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        for node in (1, 2, 3):
            cluster.units[NodeID(node), LogStreamID(1)].write(LogStreamID(1), junk(LLSN(1), 2))
        async with await cluster.connect() as log:
            assert (await log.append(b"a")).glsn == 2 + 1
            assert data(cluster, 3) == [None, None, b"a"]

    run(scenario())


def test_a_client_that_missed_a_reconfiguration_continues_with_the_same_position() -> None:
    """R-SEQ-11."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            chain = cluster.projection.chains[0]
            done = False

            def meddle(address: str, message: Message) -> None:
                nonlocal done
                if isinstance(message, WriteUnit) and address == "node-2" and not done:
                    done = True
                    shorter = type(chain)(chain.log_stream, chain.nodes[:2], chain.nodes[2:])
                    cluster.reconfigure(chains=(shorter,), begin=GLSN(3))

            cluster.meddle = meddle
            assert (await log.append(b"b")).glsn == 2
            assert data(cluster, 1) == data(cluster, 2) == [b"a", b"b"]
            assert not cluster.asked(ProposeProjection)

    run(scenario())


@pytest.mark.parametrize("dead", [1, 2, 3], ids=["head", "middle", "tail"])
def test_a_dead_node_is_left_out_and_the_same_append_continues(dead: int) -> None:
    """R-SEQ-10."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            await cluster.stop(f"node-{dead}")
            assert (await log.append(b"b")).glsn == 2
            assert cluster.projection.epoch == 2
            chain = cluster.projection.chains[0]
            assert chain.nodes == tuple(n for n in (1, 2, 3) if n != dead) and chain.out_of_sync == (dead,)
            for node in chain.nodes:
                assert data(cluster, node) == [b"a", b"b"]

    run(scenario())


def test_two_of_three_may_die_one_after_the_other() -> None:
    """R-SEQ-10: continues with one replica."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect() as log:
            for dead in (1, 2):
                await cluster.stop(f"node-{dead}")
                await log.append(b"%d" % dead)
            assert cluster.projection.chains[0].nodes == (3,)
            assert data(cluster, 3) == [b"1", b"2"]

    run(scenario())


def test_a_request_whose_reply_is_lost_is_retried_and_nothing_is_duplicated() -> None:
    """R-ORD-7: the very same batch at the same place is taken once."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            lost: list[str] = []

            def meddle(address: str, message: Message) -> str | None:
                if isinstance(message, WriteUnit) and address not in lost:
                    lost.append(address)
                    return "silent"
                return None

            cluster.meddle = meddle
            assert (await log.append(b"a")).glsn == 1
            assert lost == ["node-1", "node-2"]
            assert data(cluster, 1) == data(cluster, 2) == [b"a"]
            assert cluster.projection.epoch == 1

    run(scenario())


def test_a_silent_node_is_left_out() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            cluster.meddle = lambda address, message: "lose" if address == "node-1" else None
            assert (await log.append(b"a")).glsn == 1
            assert cluster.projection.chains[0].nodes == (2,)

    run(scenario())


def test_an_abandoned_reconfiguration_is_completed() -> None:
    """Units at the next epoch, the repository at this one: the client that meets them completes it."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            cluster.seal()
            assert (await log.append(b"b")).glsn == 2
            assert cluster.projection.epoch == 2
            assert data(cluster, 1) == data(cluster, 2) == [b"a", b"b"]

    run(scenario())


def test_concurrent_failures_reconfigure_once() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=3)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            await cluster.stop("node-3")
            await asyncio.gather(*(log.append_batch([b"%d" % n]) for n in range(20)))
            assert len(cluster.asked(ProposeProjection)) == 1
            assert sorted(filter(None, data(cluster, 2))) == sorted([b"a", *(b"%d" % n for n in range(20))])

    run(scenario())


def test_a_sequencer_that_was_started_again_is_another_one_and_counts_from_the_slow_tail() -> None:
    """R-SEQ-2: no position is given twice."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            for n in range(3):
                await log.append(b"%d" % n)
            cluster.restart_sequencer("seq-1")
            assert (await log.append(b"3")).glsn == 4
            assert cluster.projection.sequencer == cluster.view.sequencers[0]
            assert data(cluster, 2) == [b"0", b"1", b"2", b"3"]

    run(scenario())


def test_a_dead_sequencer_is_replaced_by_another_and_waited_for_where_there_is_none() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2, sequencers=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            await cluster.stop("seq-1")
            assert (await log.append(b"b")).glsn == 2
            sequencer = cluster.projection.sequencer
            assert sequencer is not None and sequencer.address == "seq-2"
            epoch = cluster.projection.epoch
            await cluster.stop("seq-2")
            with pytest.raises(NotAccepted):
                await log.append(b"c", timeout_s=0.8)
            assert cluster.projection.epoch == epoch  # nothing would be better in a new one
            await cluster.start("seq-2")
            assert (await log.append(b"d")).glsn == 3

    run(scenario())


def test_a_token_of_a_lost_sequencer_above_the_slow_tail_is_never_used() -> None:
    """R-SEQ-2: the new sequencer grants these positions again, so writing there would put an append ahead of its count."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2, sequencers=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            other = cluster.view.sequencers[1]
            cluster.next["seq-1", 1] = GLSN(10)
            first = True

            def meddle(address: str, message: Message) -> None:
                nonlocal first
                if isinstance(message, WriteUnit) and first:
                    first = False
                    cluster.reconfigure(sequencer=other, begin=GLSN(2))

            cluster.meddle = meddle
            assert (await log.append(b"b")).glsn == 2
            assert data(cluster, 2) == [b"a", b"b"]

    run(scenario())


def test_a_node_without_a_lease_is_given_the_time_to_get_one() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            refused = 0

            def meddle(address: str, message: Message) -> BaseException | None:
                nonlocal refused
                if isinstance(message, WriteUnit) and refused < 3:
                    refused += 1
                    return NoLease("node 1")
                return None

            cluster.meddle = meddle
            assert (await log.append(b"a")).glsn == 1
            assert cluster.projection.epoch == 1

    run(scenario())


def test_what_a_node_without_a_lease_refused_is_nowhere_even_if_its_position_is_trimmed_meanwhile() -> None:
    """Law 10: a node says so before it takes anything, so the batch takes another position."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            refused = 0

            def meddle(address: str, message: Message) -> BaseException | None:
                nonlocal refused
                if isinstance(message, WriteUnit) and not refused:
                    refused += 1
                    cluster.trim(GLSN(1))
                    return NoLease("node 1")
                return None

            cluster.meddle = meddle
            assert (await log.append(b"a")).glsn == 2

    run(scenario())


def test_what_was_sent_and_not_answered_is_unknown_and_what_was_not_sent_is_nowhere() -> None:
    """Law 10."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=1)
        await cluster.start()
        async with await cluster.connect() as log:
            cluster.meddle = lambda address, message: "lose" if isinstance(message, WriteUnit) else None
            with pytest.raises(OutcomeUnknown):
                await log.append(b"a", timeout_s=0.2)
            cluster.meddle = lambda address, message: "lose" if isinstance(message, NextTokens) else None
            with pytest.raises(Rejected):
                await log.append(b"b", timeout_s=0.2)
            with pytest.raises(Rejected):
                await log.append_batch([b"c", b"d"], timeout_s=0.2)

    run(scenario())


def test_a_client_that_gave_up_in_time_fills_its_own_positions() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            await cluster.stop("node-1", "node-2")
            with pytest.raises(NotAccepted):
                await log.append(b"b", timeout_s=0.3)
            await cluster.start("node-1", "node-2")
            await until(lambda: data(cluster, 2) == [b"a", None])
            assert (await log.append(b"c")).glsn == 3

    run(scenario())


def test_no_node_of_a_stream_answers_so_nothing_is_decided_until_one_does() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            await cluster.stop("node-1", "node-2")
            in_flight = asyncio.ensure_future(log.append(b"b"))
            await until(lambda: len(cluster.asked(ProposeProjection)) == 0 and not in_flight.done())
            await cluster.start("node-1", "node-2")
            assert (await in_flight).glsn == 2

    run(scenario())


def test_a_stale_node_that_is_behind_its_projection_is_done_without() -> None:
    """A unit that was never sealed for this epoch lost something it had promised."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            behind = StaleEpoch(LogStreamID(1), cluster.projection.epoch, type(cluster.projection.epoch)(0))
            cluster.meddle = lambda address, message: (
                behind if address == "node-2" and isinstance(message, WriteUnit | FillUnit) else None
            )
            assert (await log.append(b"a")).glsn == 1
            assert cluster.projection.chains[0].nodes == (1,)
            assert len(cluster.asked(SealUnit)) >= 2

    run(scenario())


def test_a_node_that_is_failing_like_all_others_is_accused_once() -> None:
    """All disks are full: another projection would be no better, and is not made over and over."""

    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            cluster.meddle = lambda address, message: (
                Sealed(LogStreamID(1), "full") if isinstance(message, WriteUnit) else None
            )
            with pytest.raises(NotAccepted, match="full"):
                await log.append(b"a", timeout_s=4.0)
            assert cluster.projection.epoch <= 3
            cluster.meddle = lambda address, message: None
            await log.append(b"b")

    run(scenario())


def test_a_call_with_a_short_deadline_accuses_no_node() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            cluster.meddle = lambda address, message: "lose" if isinstance(message, WriteUnit) else None
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < began + 2.5:
                with pytest.raises(OutcomeUnknown):
                    await log.append(b"b", timeout_s=0.05)
            assert cluster.projection.epoch == 1

    run(scenario())


def test_an_append_that_was_trimmed_on_its_way_was_in_the_log() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")

            def meddle(address: str, message: Message) -> None:
                if isinstance(message, WriteUnit) and address == "node-2":
                    cluster.trim(GLSN(2))

            cluster.meddle = meddle
            assert (await log.append(b"b")).glsn == 2
            assert await log.trimmed() == 2

    run(scenario())


def test_a_position_that_was_trimmed_before_it_was_written_is_left_for_another() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        async with await cluster.connect() as log:
            await log.append(b"a")
            cluster.trim(GLSN(2))
            assert (await log.append(b"b")).glsn == 3

    run(scenario())


def test_closing_the_log_ends_calls_in_flight() -> None:
    async def scenario() -> None:
        cluster = SequencedCluster(nodes=2)
        await cluster.start()
        log = await cluster.connect()
        cluster.meddle = lambda address, message: "lose" if isinstance(message, WriteUnit) else None
        in_flight = [asyncio.ensure_future(log.append(b"a")), asyncio.ensure_future(log.append_batch([b"b"]))]
        await until(lambda: len(cluster.asked(WriteUnit)) >= 2)
        await log.close()
        for append in in_flight:
            with pytest.raises(VarlogError):
                await append

    run(scenario())
