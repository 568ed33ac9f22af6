"""The same batch sent twice, in every order and race, over restarts and failovers: it is in the log once, and every try that is
answered gets the same position."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from random import Random

import pytest

from tests.storagenode.scripted import STREAM, TIMEOUT_S, Bench, Repository, entries_in, row, run, until
from varlog.model.batch import pack
from varlog.model.epoch import Epoch
from varlog.model.errors import NotPrimary, Sealed, StaleEpoch, Unavailable
from varlog.model.ids import ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import (
    Append,
    AppendReply,
    Fetch,
    FindAppend,
    FindAppendReply,
    GetNodeStatus,
    Message,
    SealReplica,
)
from varlog.storage.committed.log_store import LogStore
from varlog.storagenode.committed import batch_lookup as search_module
from varlog.storagenode.committed import duplicate_filter as retries_module
from varlog.storagenode.committed import replica as replica_module

ONE = Epoch(1)


def batch(sequence: int, *entries: bytes) -> bytearray:
    return pack(entries or (b"%d" % sequence,), producer=ProducerID(7), sequence=sequence, time_us=1)


def again(*, floor: int = 0, epoch: int = 1) -> Append:
    return Append(STREAM, Epoch(epoch), True, LLSN(floor))


def ask(sequence: int, *, epoch: int = 1, floor: int = 0, after: int = 0) -> FindAppend:
    return FindAppend(STREAM, Epoch(epoch), ProducerID(7), sequence, LLSN(floor), GLSN(after))


def start(bench: Bench, request: Message, payload: bytearray, *, node: int = 1) -> asyncio.Task[Message]:
    """One try, on a connection of its own."""

    async def call() -> Message:
        answer, _ = await bench.call(request, bytearray(payload), node=node)
        return answer

    return asyncio.create_task(call())


async def until_durable(repository: Repository, end: int) -> None:
    await until(lambda: any(report.durable_end == end for report in repository.reports))


async def stored(bench: Bench, node: int = 1) -> list[bytes]:
    """Every committed entry, in order."""
    found: list[bytes] = []
    llsn = 1
    while True:
        fetched, payload = await bench.call(Fetch(STREAM, LLSN(llsn)), node=node)
        if not payload:
            return found
        found += entries_in(payload)
        llsn = fetched.next_llsn  # type: ignore[attr-defined]


async def running(bench: Bench) -> Repository:
    await bench.start()
    await bench.run_stream()
    return await bench.session()


# --- In the same epoch --------------------------------------------------------------------------------------------------


def test_a_retry_of_what_is_in_the_log_gets_its_position_and_adds_nothing(tmp_path: Path) -> None:
    """R-ORD-7."""

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        tries = [start(bench, Append(STREAM, ONE), batch(n, b"a", b"b")) for n in (1, 2, 3)]
        await until_durable(repository, 7)
        repository.commit(row(1, 7, glsn=11))
        first = await asyncio.gather(*tries)
        retried = [await start(bench, again(), batch(n, b"a", b"b")) for n in (1, 2, 3)]
        assert retried == first
        assert retried == [AppendReply(GLSN(g), LLSN(g - 10)) for g in (11, 13, 15)]
        assert await stored(bench) == [b"a", b"b"] * 3

    run(tmp_path, story)


def test_a_retry_of_what_is_being_written_waits_with_it(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        repository = await running(bench)
        original = start(bench, Append(STREAM, ONE), batch(1))
        await until_durable(repository, 2)
        retries = [start(bench, again(), batch(1)) for _ in range(3)]
        other = start(bench, Append(STREAM, ONE), batch(2))
        await until_durable(repository, 3)
        assert not any(one.done() for one in (original, *retries))
        repository.commit(row(1, 3))
        assert set(await asyncio.gather(original, *retries)) == {AppendReply(GLSN(1), LLSN(1))}
        assert await other == AppendReply(GLSN(2), LLSN(2))
        assert await stored(bench) == [b"1", b"2"]

    run(tmp_path, story)


@pytest.mark.parametrize("ordered", [False, True])
def test_an_original_that_comes_after_its_retry_joins_it(tmp_path: Path, ordered: bool) -> None:
    """The connection that carried it was slow to die: the server reads it after the retry over the next one."""

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        retry = start(bench, again(), batch(1))
        await until_durable(repository, 2)
        if ordered:
            repository.commit(row(1, 2))
            await retry
        original = start(bench, Append(STREAM, ONE), batch(1))
        behind = start(bench, Append(STREAM, ONE), batch(2))
        await until_durable(repository, 3)
        repository.commit(row(1, 3))
        assert await original == await retry == AppendReply(GLSN(1), LLSN(1))
        assert await behind == AppendReply(GLSN(2), LLSN(2))
        assert await stored(bench) == [b"1", b"2"]

    run(tmp_path, story)


def test_an_original_that_comes_while_the_disk_is_searched_for_its_retry_is_the_one_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, searching = threading.Event(), threading.Event()
    find = LogStore.find_batches

    def slowly(store: LogStore, *arguments: object) -> object:
        searching.set()
        gate.wait(TIMEOUT_S)
        return find(store, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LogStore, "find_batches", slowly)

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        before = start(bench, Append(STREAM, ONE), batch(9))
        await until_durable(repository, 2)
        repository.commit(row(1, 2))
        await before
        retry = start(bench, again(), batch(1))
        await until(searching.is_set)
        original = start(bench, Append(STREAM, ONE), batch(1))
        await until_durable(repository, 3)
        repository.commit(row(2, 3))
        assert await original == await retry == AppendReply(GLSN(2), LLSN(2))
        gate.set()
        assert await start(bench, again(), batch(1)) == AppendReply(GLSN(2), LLSN(2))
        assert await stored(bench) == [b"9", b"1"]

    run(tmp_path, story)


def test_a_retry_of_what_waits_for_room_waits_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "UNCOMMITTED_BATCHES_MAX", 1)

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        first = start(bench, Append(STREAM, ONE), batch(1))
        await until_durable(repository, 2)
        connection = await bench.connect()
        waiting = []
        for request in (Append(STREAM, ONE), again(floor=1)):
            waiting.append(asyncio.create_task(connection.call(request, batch(2), timeout_s=TIMEOUT_S)))
            await asyncio.sleep(0)
            # Answered behind it on the same connection: it is queued by then, or joined to what is.
            await connection.call(GetNodeStatus(), timeout_s=TIMEOUT_S)
        retried_first = start(bench, again(), batch(1))
        repository.commit(row(1, 2))
        assert await first == await retried_first
        await until_durable(repository, 3)
        repository.commit(row(2, 3))
        assert [answer for answer, _ in await asyncio.gather(*waiting)] == [AppendReply(GLSN(2), LLSN(2))] * 2
        assert await stored(bench) == [b"1", b"2"]

    run(tmp_path, story)


def test_tries_of_many_batches_in_any_order_store_each_once(tmp_path: Path, seed: int) -> None:
    """Random races of originals, retries and commits over several connections."""

    async def story(bench: Bench) -> None:
        random = Random(seed)
        repository = await running(bench)
        connections = [await bench.connect() for _ in range(3)]
        sends = [(n, request) for n in range(1, 31) for request in (Append(STREAM, ONE), again(), again())]
        random.shuffle(sends)
        answers: dict[int, list[asyncio.Task[tuple[Message, bytearray]]]] = {}
        committed = 1

        def commit_durable() -> None:
            nonlocal committed
            durable = max((report.durable_end for report in repository.reports), default=LLSN(1))
            if durable > committed:
                repository.commit(row(committed, durable))
                committed = durable

        for sequence, request in sends:
            call = random.choice(connections).call(request, batch(sequence), timeout_s=TIMEOUT_S)
            answers.setdefault(sequence, []).append(asyncio.create_task(call))
            if random.random() < 0.3:
                await asyncio.sleep(random.choice((0, 0, 0.002)))
                commit_durable()
        waiting = asyncio.gather(*(task for tasks in answers.values() for task in tasks))
        while not waiting.done():
            commit_durable()
            await asyncio.sleep(0.001)
        places = {n: {task.result()[0] for task in tasks} for n, tasks in answers.items()}
        assert all(len(place) == 1 for place in places.values()), places
        assert sorted(await stored(bench)) == sorted(b"%d" % n for n in range(1, 31))

    run(tmp_path, story)


def test_a_primary_refuses_another_epoch_and_a_backup_any_retry(tmp_path: Path) -> None:
    """Law 7: what was delayed on its way cannot land in a later epoch."""

    async def story(bench: Bench) -> None:
        await bench.start(1)
        await bench.start(2)
        await bench.run_stream((1, 2), epoch=2)
        for epoch in (1, 3):
            for request in (Append(STREAM, Epoch(epoch)), again(epoch=epoch)):
                with pytest.raises(StaleEpoch):
                    await start(bench, request, batch(1))
        with pytest.raises(NotPrimary):
            await start(bench, again(epoch=2), batch(1), node=2)

    run(tmp_path, story)


def test_a_lookup_too_far_back_or_of_too_many_repeats_is_answered_as_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "SEARCH_BYTES_MAX", 1)
    monkeypatch.setattr(retries_module, "REMEMBERED_RETRIES_MAX", 1)

    async def story(bench: Bench) -> None:
        repository = await running(bench)
        tries = [start(bench, Append(STREAM, ONE), batch(n, bytes(3000))) for n in (1, 2, 3)]
        await until_durable(repository, 4)
        repository.commit(row(1, 4))
        await asyncio.gather(*tries)
        with pytest.raises(Unavailable, match="too far back"):
            await start(bench, again(), batch(4))
        assert await start(bench, again(), batch(3, bytes(3000))) == AppendReply(GLSN(3), LLSN(3))
        taken = start(bench, again(floor=3), batch(5))
        await until_durable(repository, 5)
        with pytest.raises(Unavailable, match="no more can be distinguished"):
            await start(bench, again(floor=3), batch(6))
        repository.commit(row(4, 5))
        assert await taken == AppendReply(GLSN(4), LLSN(4))

    run(tmp_path, story)


# --- After the epoch ------------------------------------------------------------------------------------------------------


async def three_of_which_two_are_ordered(
    bench: Bench, nodes: tuple[int, ...] = (1, 2), *, entry: bytes = b""
) -> None:
    """Batches 1 and 2 are in the log, 3 is durable everywhere and never ordered; the stream is sealed in epoch 2."""
    for node in nodes:
        await bench.start(node)
    await bench.run_stream(nodes)
    sessions = [await bench.session(node) for node in nodes]
    tries = []
    for n in (1, 2, 3):
        tries.append(start(bench, Append(STREAM, ONE), batch(n, entry or b"%d" % n)))
        for session in sessions:
            await until_durable(session, n + 1)
    for session in sessions:
        session.commit(row(1, 3, glsn=5))
    for node in nodes:
        with pytest.raises(Unavailable, match="is not over here"):
            await bench.call(ask(1), node=node)
        await bench.call(SealReplica(STREAM, Epoch(2), LLSN(3)), node=node)
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(one) for one in outcomes] == [AppendReply, AppendReply, Sealed]


IN_THE_LOG = {1: FindAppendReply(True, GLSN(5), LLSN(1)), 2: FindAppendReply(True, GLSN(6), LLSN(2))}
NOWHERE = FindAppendReply(False)


async def outcomes(bench: Bench, node: int, *, epoch: int = 1) -> list[Message]:
    return [(await bench.call(ask(n, epoch=epoch), node=node))[0] for n in (1, 2, 3)]


def test_every_sealed_replica_knows_what_became_of_a_batch(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await three_of_which_two_are_ordered(bench)
        for node in (1, 2):
            assert await outcomes(bench, node) == [IN_THE_LOG[1], IN_THE_LOG[2], NOWHERE]
            with pytest.raises(Unavailable):
                await bench.call(ask(1, epoch=2), node=node)

    run(tmp_path, story)


def test_the_answer_is_the_same_after_a_failover_to_another_primary(tmp_path: Path) -> None:
    """R-ORD-7: and what is then sent to the new primary is new, while the delayed original is refused."""

    async def story(bench: Bench) -> None:
        await three_of_which_two_are_ordered(bench)
        await bench.run_stream((2, 1), epoch=2, sealed_end=3, add=False)
        repository = await bench.session(2)
        for node in (1, 2):
            assert await outcomes(bench, node) == [IN_THE_LOG[1], IN_THE_LOG[2], NOWHERE]
        resent = start(bench, Append(STREAM, Epoch(2)), batch(3), node=2)
        await until_durable(repository, 4)
        repository.commit(row(3, 4, glsn=8, epoch=2))
        assert await resent == AppendReply(GLSN(8), LLSN(3))
        with pytest.raises(StaleEpoch):
            await start(bench, Append(STREAM, ONE), batch(3), node=2)
        assert await stored(bench, node=2) == [b"1", b"2", b"3"]

    run(tmp_path, story)


@pytest.mark.parametrize("unsealed", [False, True])
def test_the_answer_is_the_same_after_all_nodes_restarted(tmp_path: Path, unsealed: bool) -> None:
    """R-ORD-7: on disk, not in memory alone."""

    async def story(bench: Bench) -> None:
        await three_of_which_two_are_ordered(bench)
        if unsealed:
            await bench.run_stream((1, 2), epoch=2, sealed_end=3, add=False)
        for node in (1, 2):
            await bench.stop(node)
        for node in (1, 2):
            await bench.start(node)
            if not unsealed:
                with pytest.raises(Unavailable):  # sealed when it stopped, and not known to be so still
                    await bench.call(ask(1), node=node)
        epoch = 3 if unsealed else 2
        await bench.run_stream((1, 2), epoch=epoch, sealed_end=3, add=False)
        for node in (1, 2):
            assert await outcomes(bench, node) == [IN_THE_LOG[1], IN_THE_LOG[2], NOWHERE]

    run(tmp_path, story)


def test_a_replica_that_lacks_commits_of_the_sealed_epoch_does_not_answer_for_it(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        repository = await running(bench)
        original = start(bench, Append(STREAM, ONE), batch(1))
        await until_durable(repository, 2)
        await bench.call(SealReplica(STREAM, Epoch(2), LLSN(2)))
        with pytest.raises(Unavailable, match="not all of it is here"):
            await bench.call(ask(1))
        with pytest.raises(Sealed):
            await start(bench, again(epoch=2), batch(1))
        repository.commit(row(1, 2))
        await original
        await bench.call(SealReplica(STREAM, Epoch(2), LLSN(2)))
        assert (await bench.call(ask(1)))[0] == FindAppendReply(True, GLSN(1), LLSN(1))

    run(tmp_path, story)


def test_what_was_trimmed_cannot_be_answered_for_unless_the_floor_is_above(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await three_of_which_two_are_ordered(bench, (1,), entry=bytes(3000))  # a segment each
        session = await bench.session(term=2)
        session.commit(high=6, trimmed=5)
        await until(lambda: session.marks_applied == 1)
        with pytest.raises(Unavailable, match="is trimmed"):
            await bench.call(ask(1))
        with pytest.raises(Unavailable, match="is trimmed"):
            await bench.call(ask(3))
        assert (await bench.call(ask(2)))[0] == IN_THE_LOG[2]
        assert (await bench.call(ask(3, floor=1)))[0] == NOWHERE
        with pytest.raises(Unavailable, match="is trimmed"):
            await bench.call(ask(3, after=4))
        assert (await bench.call(ask(3, after=5)))[0] == NOWHERE
        assert (await bench.call(ask(2, after=5)))[0] == IN_THE_LOG[2]

    run(tmp_path, story)
