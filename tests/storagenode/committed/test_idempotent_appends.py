"""Appends on a condition at a storage node: chains that several processes extend, and batches at one LLSN exactly."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.storagenode.committed.test_duplicate_filter import running, start, stored, until_durable
from tests.storagenode.scripted import STREAM, TIMEOUT_S, Bench, Repository, row, run, until
from varlog.model.batch import pack, parse_header
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    NotPrimary,
    PositionConflict,
    Sealed,
    SequenceConflict,
    StaleEpoch,
    Trimmed,
    Unavailable,
)
from varlog.model.ids import ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import (
    Append,
    AppendAt,
    AppendIdempotent,
    AppendReply,
    GetNodeStatus,
    ListIdempotentBatches,
    ListIdempotentBatchesReply,
    SealReplica,
)
from varlog.storage.committed.log_store import LogStore
from varlog.storagenode.committed import admission_queue as intake_module
from varlog.storagenode.committed import idempotent_appends as list_module
from varlog.storagenode.committed import idempotent_rules as chains_module
from varlog.storagenode.committed import replica as replica_module

CHAIN = ProducerID(77)


def batch(sequence: int, *entries: bytes, producer: ProducerID = CHAIN) -> bytearray:
    return pack(entries or (b"%d" % sequence,), producer=producer, sequence=sequence, time_us=1)


def crc(packed: bytearray) -> int:
    return parse_header(packed, signed=False).body_crc


def behind(packed: bytearray | None = None, *, after: int = 0, epoch: int = 0) -> AppendIdempotent:
    """To be taken behind `packed`, or as the first of its chain."""
    previous = 0 if packed is None else crc(packed)
    return AppendIdempotent(STREAM, Epoch(epoch), previous, min_glsn=GLSN(after))


def at(llsn: int) -> AppendAt:
    return AppendAt(STREAM, LLSN(llsn))


async def committed(bench: Bench, repository: Repository, count: int, *, begin: int = 1) -> list[bytearray]:
    """A sequence of `count` batches of one entry, in the log from LLSN `begin` on."""
    chain = [batch(n) for n in range(1, count + 1)]
    tries = []
    for before, one in zip([None, *chain], chain, strict=False):
        tries.append(start(bench, behind(before), one))
        await until_durable(repository, begin + len(tries))
    repository.commit(row(begin, begin + count))
    assert [answer.llsn for answer in await asyncio.gather(*tries)] == list(range(begin, begin + count))  # type: ignore[attr-defined]
    return chain


# --- A chain ------------------------------------------------------------------------------------------------------------------


def test_each_batch_is_taken_behind_its_predecessor_and_once(tmp_path: Path) -> None:
    """R-USE-4: a task of Spark that is run again adds nothing."""

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        chain = await committed(bench, repository, 3)
        assert await start(bench, behind(chain[1]), chain[2]) == AppendReply(GLSN(3), LLSN(3))
        for request, sent, newest in (
            (behind(), chain[0], 3),  # in the log, and others behind it: a request this far back lists it
            (behind(chain[2]), batch(5), 3),  # one is missing before it
            (behind(chain[1]), batch(4), 3),  # not behind this one
            (behind(chain[1]), batch(3, b"other"), 3),
        ):
            with pytest.raises(SequenceConflict) as broken:
                await start(bench, request, sent)
            assert broken.value.newest == newest
        taken = start(bench, behind(chain[2]), batch(4, b"a", b"b"))
        await until_durable(repository, 6)
        repository.commit(row(4, 6))
        assert await taken == AppendReply(GLSN(4), LLSN(4))
        assert await stored(bench) == [b"1", b"2", b"3", b"a", b"b"]

    run(tmp_path, story)


def test_a_retry_joins_the_batch_in_flight(tmp_path: Path) -> None:
    """A second attempt, at the same time, sends the same three batches; another one other rows, in vain."""

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        chain = [batch(n) for n in (1, 2, 3)]
        requests = [behind(), behind(chain[0]), behind(chain[1])]
        tries = [start(bench, request, one) for request, one in zip(requests, chain, strict=True)]
        await until_durable(repository, 4)
        again = [start(bench, request, one) for request, one in zip(requests, chain, strict=True)]
        with pytest.raises(SequenceConflict):
            await start(bench, behind(chain[0]), batch(2, b"other"))
        assert not any(one.done() for one in (*tries, *again))
        repository.commit(row(1, 4))
        assert await asyncio.gather(*tries) == await asyncio.gather(*again)
        assert await stored(bench) == [b"1", b"2", b"3"]

    run(tmp_path, story)


def test_chains_and_ordinary_producers_do_not_meet(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        repository = await running(bench)
        for number, producer in enumerate((5, 6, 5), 1):
            ordinary = pack([b"o"], producer=ProducerID(producer), sequence=100 - number, time_us=1)
            taken = start(bench, Append(STREAM), ordinary)
            await until_durable(repository, number + 1)
            repository.commit(row(number, number + 1))
            await taken
        await committed(bench, repository, 2, begin=4)
        other = start(bench, behind(), batch(1, producer=ProducerID(78)))
        await until_durable(repository, 7)
        repository.commit(row(6, 7))
        assert await other == AppendReply(GLSN(6), LLSN(6))

    run(tmp_path, story)


def test_only_the_running_primary_of_the_requested_epoch_accepts_a_sequence(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.start(1)
        await bench.start(2)
        await bench.run_stream((1, 2), epoch=2)
        with pytest.raises(NotPrimary):
            await start(bench, behind(), batch(1), node=2)
        with pytest.raises(StaleEpoch):
            await start(bench, behind(epoch=1), batch(1))
        await bench.call(SealReplica(STREAM, Epoch(3), LLSN(1)))
        with pytest.raises(Sealed):
            await start(bench, behind(), batch(1))

    run(tmp_path, story)


def test_a_sequence_continues_in_the_next_epoch_behind_what_was_ordered_and_what_was_cut_is_sent_again(
    tmp_path: Path,
) -> None:
    async def story(bench: Bench) -> None:
        repository = await running(bench)
        chain = await committed(bench, repository, 2)
        lost = start(bench, behind(chain[1]), batch(3))
        await until_durable(repository, 4)
        await bench.run_stream(epoch=2, sealed_end=3, add=False)
        repository.reports.clear()
        with pytest.raises(Sealed):
            await lost
        with pytest.raises(SequenceConflict):
            await start(bench, behind(batch(3)), batch(4))
        again = start(bench, behind(chain[1]), batch(3))
        await until_durable(repository, 4)
        repository.commit(row(3, 4, epoch=2))
        assert await again == AppendReply(GLSN(3), LLSN(3))
        assert await stored(bench) == [b"1", b"2", b"3"]

    run(tmp_path, story)


def test_a_backup_that_becomes_the_primary_knows_the_chains_without_a_look_at_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(bench: Bench) -> None:
        await bench.start(1)
        await bench.start(2)
        await bench.run_stream((1, 2))
        sessions = [await bench.session(node) for node in (1, 2)]
        taken = start(bench, behind(), batch(1))
        for session in sessions:
            await until_durable(session, 2)
            session.commit(row(1, 2))
        await taken
        await until(lambda: bench.nodes[2].status().replicas[0].committed_end == 2)
        await bench.run_stream((2, 1), epoch=2, sealed_end=2, add=False)
        monkeypatch.setattr(LogStore, "batches_of", None)
        assert await start(bench, behind(), batch(1), node=2) == AppendReply(GLSN(1), LLSN(1))

    run(tmp_path, story)


# --- What memory does not know --------------------------------------------------------------------------------------------------


def test_after_a_restart_the_end_of_a_chain_is_found_on_disk_and_what_comes_meanwhile_waits_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, searches = threading.Event(), []
    look = LogStore.batches_of

    def slowly(store: LogStore, *arguments: object) -> object:
        searches.append(arguments)
        gate.wait(TIMEOUT_S)
        return look(store, *arguments)  # type: ignore[arg-type]

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        chain = await committed(bench, repository, 3)
        await bench.stop()
        await bench.start()
        await bench.run_stream(epoch=2, sealed_end=4, add=False)
        repository = await bench.session()
        monkeypatch.setattr(LogStore, "batches_of", slowly)
        connection = await bench.connect()
        more = [batch(n) for n in (4, 5, 6)]
        tries = [
            asyncio.create_task(connection.call(behind(before), one, timeout_s=TIMEOUT_S))
            for before, one in zip((chain[2], *more), more, strict=False)
        ]
        await until(lambda: searches)
        await connection.call(GetNodeStatus(), timeout_s=TIMEOUT_S)  # all three are held by then
        gate.set()
        await until_durable(repository, 7)
        repository.commit(row(4, 7, epoch=2))
        assert [answer.llsn for answer, _ in await asyncio.gather(*tries)] == [4, 5, 6]  # type: ignore[attr-defined]
        before = len(searches)
        assert await start(bench, behind(more[1]), more[2]) == AppendReply(GLSN(6), LLSN(6))
        assert len(searches) == before
        assert await stored(bench) == [b"1", b"2", b"3", b"4", b"5", b"6"]

    run(tmp_path, story)


def test_a_chain_that_begins_now_needs_no_search_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(bench: Bench) -> None:
        repository = await running(bench)
        await committed(bench, repository, 3)
        await bench.stop()
        await bench.start()
        await bench.run_stream(epoch=2, sealed_end=4, add=False)
        repository = await bench.session()
        monkeypatch.setattr(LogStore, "batches_of", None)
        fresh = start(bench, behind(after=3), batch(1))  # the chain of this name below `after` is another one
        await until_durable(repository, 5)
        repository.commit(row(4, 5, epoch=2))
        assert await fresh == AppendReply(GLSN(4), LLSN(4))

    run(tmp_path, story)


def test_a_seal_refuses_what_waits_for_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, searching = threading.Event(), threading.Event()
    look = LogStore.batches_of

    def slowly(store: LogStore, *arguments: object) -> object:
        searching.set()
        gate.wait(TIMEOUT_S)
        return look(store, *arguments)  # type: ignore[arg-type]

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        chain = await committed(bench, repository, 2)
        await bench.stop()
        await bench.start()
        await bench.run_stream(epoch=2, sealed_end=3, add=False)
        monkeypatch.setattr(LogStore, "batches_of", slowly)
        waiting = start(bench, behind(chain[1]), batch(3))
        await until(searching.is_set)
        await bench.call(SealReplica(STREAM, Epoch(3), LLSN(3)))
        with pytest.raises(Sealed):
            await waiting
        gate.set()

    run(tmp_path, story)


def test_chains_that_were_forgotten_for_lack_of_room_are_found_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains_module, "PRODUCERS_MAX", 1)

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        chain = await committed(bench, repository, 2)
        for number in (3, 4, 5):
            other = start(bench, behind(), batch(1, producer=ProducerID(number)))
            await until_durable(repository, number + 1)
            repository.commit(row(number, number + 1))
            await other
        assert await start(bench, behind(chain[0]), chain[1]) == AppendReply(GLSN(2), LLSN(2))
        with pytest.raises(SequenceConflict):
            await start(bench, behind(), batch(1, b"other"))

    run(tmp_path, story)


@pytest.mark.parametrize("kept", [True, False])
def test_a_chain_that_may_be_trimmed_is_not_taken_for_one_that_has_not_begun(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the disk took the trim yet or not (law 9, R-ORD-7)."""
    monkeypatch.setattr(chains_module, "PRODUCERS_MAX", 1)  # so that it has to be looked for

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        await committed(bench, repository, 3)
        other = start(bench, behind(), batch(1, producer=ProducerID(5)))
        await until_durable(repository, 5)
        repository.commit(row(4, 5))
        await other
        with monkeypatch.context() as full:
            if not kept:
                full.setattr("varlog.storage.committed.log_store.write_state", _refuse)
            repository.commit(high=4, trimmed=3)
            await until(lambda: repository.marks_applied == repository.serial)
        for request in (behind(), Append(STREAM, is_retry=True)):
            with pytest.raises((Unavailable, Trimmed), match="trimmed"):
                await start(bench, request, batch(1))
        fresh = start(bench, behind(after=4), batch(1))
        await until_durable(repository, 6)
        repository.commit(row(5, 6))
        assert await fresh == AppendReply(GLSN(5), LLSN(5))

    run(tmp_path, story)


def _refuse(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


# --- What waits for room --------------------------------------------------------------------------------------------------------


def test_what_waits_for_room_counts_as_taken_and_what_overflows_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "UNCOMMITTED_BATCHES_MAX", 1)
    monkeypatch.setattr(intake_module, "UNCOMMITTED_BATCHES_MAX", 2)

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        chain = [batch(n) for n in (1, 2, 3, 4, 5)]
        connection = await bench.connect()
        tries = [
            asyncio.create_task(connection.call(behind(before), one, timeout_s=TIMEOUT_S))
            for before, one in zip([None, *chain], chain, strict=False)
        ]
        refused = await asyncio.gather(*tries[3:], return_exceptions=True)
        assert [type(error).__name__ for error in refused] == ["NotAccepted", "NotAccepted"]
        for number in (1, 2, 3):
            await until_durable(repository, number + 1)
            repository.commit(row(number, number + 1))
        assert [answer.llsn for answer, _ in await asyncio.gather(*tries[:3])] == [1, 2, 3]  # type: ignore[attr-defined]
        with pytest.raises(SequenceConflict) as broken:
            await start(bench, behind(chain[3]), chain[4])
        assert broken.value.newest == 3
        assert await stored(bench) == [b"1", b"2", b"3"]

    run(tmp_path, story)


# --- Listing ----------------------------------------------------------------------------------------------------------------------


def test_a_chain_is_listed_as_far_as_it_is_ordered_a_page_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(bench: Bench) -> None:
        repository = await running(bench)
        other = start(bench, behind(), batch(1, producer=ProducerID(5)))
        await until_durable(repository, 2)
        repository.commit(row(1, 2))
        await other
        chain = await committed(bench, repository, 5, begin=2)
        pending = start(bench, behind(chain[4]), batch(6))
        await until_durable(repository, 8)
        whole = tuple((n, LLSN(n + 1), 1, crc(one)) for n, one in enumerate(chain, 1))
        assert await start(
            bench, ListIdempotentBatches(STREAM, CHAIN), bytearray()
        ) == ListIdempotentBatchesReply(whole)
        assert await start(
            bench, ListIdempotentBatches(STREAM, CHAIN, min_glsn=GLSN(3)), bytearray()
        ) == ListIdempotentBatchesReply(whole[2:])
        assert await start(
            bench, ListIdempotentBatches(STREAM, ProducerID(6)), bytearray()
        ) == ListIdempotentBatchesReply(())
        monkeypatch.setattr(list_module, "PAGE_BATCHES", 2)
        assert await start(
            bench, ListIdempotentBatches(STREAM, CHAIN), bytearray()
        ) == ListIdempotentBatchesReply(whole[:2], more=True)
        third = ListIdempotentBatches(STREAM, CHAIN, min_llsn=whole[3][1])
        assert await start(bench, third, bytearray()) == ListIdempotentBatchesReply(whole[4:])
        repository.commit(row(7, 8))
        await pending

    run(tmp_path, story)


# --- At one LLSN ------------------------------------------------------------------------------------------------------------------


def test_a_batch_for_one_llsn_is_taken_there_and_nowhere_else(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        repository = await running(bench)
        first = start(bench, at(1), batch(1, b"a", b"b"))
        await until_durable(repository, 3)
        for asked in (1, 2, 4):
            with pytest.raises(PositionConflict) as taken:
                await start(bench, at(asked), batch(2))
            assert (taken.value.asked, taken.value.next) == (asked, 3)
        second = start(bench, at(3), batch(2, b"c"))
        await until_durable(repository, 4)
        repository.commit(row(1, 4))
        assert [await first, await second] == [AppendReply(GLSN(1), LLSN(1)), AppendReply(GLSN(3), LLSN(3))]
        assert await stored(bench) == [b"a", b"b", b"c"]

    run(tmp_path, story)


def test_a_batch_for_one_llsn_counts_what_waits_for_room_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "UNCOMMITTED_BATCHES_MAX", 1)

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        connection = await bench.connect()
        requests = ((at(1), batch(1)), (at(2), batch(2)), (at(2), batch(3)), (at(3), batch(4)))
        tries = [
            asyncio.create_task(connection.call(request, one, timeout_s=TIMEOUT_S))
            for request, one in requests
        ]
        for number in (1, 2, 3):
            await until_durable(repository, number + 1)
            repository.commit(row(number, number + 1))
        answers = await asyncio.gather(*tries, return_exceptions=True)
        assert isinstance(answers[2], PositionConflict)
        assert await stored(bench) == [b"1", b"2", b"4"]

    run(tmp_path, story)
