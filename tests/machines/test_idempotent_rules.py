"""Rules of chains, at the primary and at the client: each batch behind its predecessor and once, each row once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.client.writers.idempotent_rules import Mine, Recorded, Rows, TrimmedWrite, behind, common
from varlog.model.batch import BatchHeader, crc32c
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.storagenode.committed import idempotent_rules as chains_module
from varlog.storagenode.committed.idempotent_rules import (
    ProducedBatch,
    ProducerSequences,
    Sent,
    SequenceDecision,
    decide,
    find_batch,
)

P = ProducerID(9)
STREAM = LogStreamID(1)


def link(sequence: int, crc: int, producer: int = 9, llsn: int = 1) -> ProducedBatch:
    return ProducedBatch(ProducerID(producer), sequence, LLSN(llsn), crc)


# --- the primary's decision --------------------------------------------------------------------------------------------------


def test_a_chain_begins_with_batch_one_behind_nothing() -> None:
    assert decide(None, Sent(1, 5, 0)) is SequenceDecision.ACCEPT
    assert decide(None, Sent(2, 5, 0)) is SequenceDecision.CONFLICT
    assert decide(None, Sent(1, 5, 3)) is SequenceDecision.CONFLICT
    assert decide(None, Sent(0, 0, 0)) is SequenceDecision.CONFLICT


@given(
    newest=st.integers(1, 9),
    crc=st.integers(0, 3),
    sequence=st.integers(0, 12),
    mine=st.integers(0, 3),
    previous=st.integers(0, 3),
)
def test_a_batch_is_taken_behind_its_predecessor_alone_and_known_by_its_checksum(
    newest: int, crc: int, sequence: int, mine: int, previous: int
) -> None:
    decision = decide(link(newest, crc), Sent(sequence, mine, previous))
    assert (decision is SequenceDecision.ACCEPT) == (sequence == newest + 1 and previous == crc)
    assert (decision is SequenceDecision.DUPLICATE) == (sequence == newest and mine == crc)


@pytest.mark.parametrize(
    ("last_attempt", "known", "decision"),
    [
        (7, 0, SequenceDecision.ACCEPT),
        (8, 4, SequenceDecision.ACCEPT),
        (8, 3, SequenceDecision.CONFLICT),
        (0, 3, SequenceDecision.CONFLICT),
    ],
)
def test_behind_what_it_knows_an_attempt_follows_its_own_batches_alone(
    last_attempt: int, known: int, decision: SequenceDecision
) -> None:
    """Another order of the same rows may have the same row in place 4, and would continue with one that is further up (seed 19)."""
    newest = ProducedBatch(P, 4, LLSN(1), 40, last_attempt)
    assert decide(newest, Sent(5, 50, 40, attempt=7, known=known)) is decision


@given(rows=st.lists(st.binary(max_size=2), unique=True, max_size=8), seed=st.integers(0, 2**32))
def test_attempts_that_send_everything_at_once_bring_no_row_in_twice(rows: list[bytes], seed: int) -> None:
    """Each the beginning of its own order, knowing nothing of the chain."""
    rng = Random(seed)
    sent = [rng.sample(rows, len(rows)) for _ in range(3)]
    newest: ProducedBatch | None = None
    taken: list[bytes] = []
    for attempt in rng.choices((1, 2, 3), k=6):
        mine = sent[attempt - 1]
        for at, one in enumerate(mine[: rng.randint(0, len(mine))]):
            previous = crc32c(mine[at - 1]) if at else 0
            if decide(newest, Sent(at + 1, crc32c(one), previous, attempt)) is SequenceDecision.ACCEPT:
                newest = ProducedBatch(P, at + 1, LLSN(1), crc32c(one), attempt)
                taken.append(one)
    assert len(taken) == len(set(taken))


def test_a_batch_in_flight_is_found_by_number_and_checksum() -> None:
    links = [link(3, 30), link(4, 40), link(5, 50)]
    assert find_batch(links, 4, 40) is links[1]
    assert find_batch(links, 4, 41) is None
    assert find_batch(links, 6, 50) is None


@given(
    attempts=st.integers(1, 4), rows=st.lists(st.binary(max_size=2), max_size=12), seed=st.integers(0, 2**32)
)
def test_attempts_that_race_and_repeat_themselves_make_one_chain_of_what_one_of_them_sends(
    attempts: int, rows: list[bytes], seed: int
) -> None:
    """R-USE-4: tasks of Spark that run twice. Each sends its own order of the rows, one per batch, any batch at
    any time: what is accepted is one attempt's sequence of batches."""
    rng = Random(seed)
    sent = [rng.sample(rows, len(rows)) for _ in range(attempts)]
    taken: list[tuple[int, int]] = []
    for _ in range(60):
        mine = rng.choice(sent)
        if not mine:
            return
        at = rng.randrange(len(mine))
        crc, previous = crc32c(mine[at]), crc32c(mine[at - 1]) if at else 0
        newest = link(*taken[-1]) if taken else None
        if decide(newest, Sent(at + 1, crc, previous)) is SequenceDecision.ACCEPT:
            taken.append((at + 1, crc))
    assert [sequence for sequence, _ in taken] == list(range(1, len(taken) + 1))
    for (_, before), (sequence, crc) in pairwise(taken):
        assert any((crc32c(mine[sequence - 2]), crc32c(mine[sequence - 1])) == (before, crc) for mine in sent)


# --- what a replica remembers -------------------------------------------------------------------------------------------------


def header(producer: int, sequence: int, count: int = 1) -> BatchHeader:
    return BatchHeader(
        Epoch(1), count, LLSN(0), ProducerID(producer), sequence, 0, 8, 100 * producer + sequence
    )


def row(begin: int, end: int, epoch: int = 1) -> CommitRow:
    return CommitRow(end, GLSN(end - 1), GLSN(begin - 1), GLSN(begin), LLSN(begin), end - begin, Epoch(epoch))


def test_a_pending_batch_is_known_at_once_and_a_seal_forgets_it() -> None:
    chains = ProducerSequences(LLSN(1))
    chains.open(Epoch(1), LLSN(1))
    chains.note(header(1, 1), LLSN(1))
    chains.note(header(1, 2), LLSN(2))
    assert chains.newest(ProducerID(1), LLSN(0)) == (True, link(2, 102, 1, 2))
    assert [one.sequence for one in chains.pending(ProducerID(1))] == [1, 2]
    chains.ordered(row(1, 2))
    chains.open(Epoch(2), LLSN(2))
    assert chains.newest(ProducerID(1), LLSN(0)) == (True, link(1, 101, 1, 1))
    assert not chains.pending(ProducerID(1))


def test_rows_that_come_after_a_seal_still_confirm_what_was_noted() -> None:
    """The seal overtook the last commits of its epoch."""
    chains = ProducerSequences(LLSN(1))
    chains.open(Epoch(1), LLSN(1))
    chains.note(header(1, 1, count=3), LLSN(1))
    chains.ordered(row(1, 4))
    chains.open(Epoch(2), LLSN(4))
    assert chains.newest(ProducerID(1), LLSN(0)) == (True, link(1, 101, 1, 1))
    assert chains.known_from == 1


@pytest.mark.parametrize("brought", [row(1, 3, epoch=2), row(1, 4)])
def test_rows_of_what_was_not_noted_make_the_table_know_less_and_nothing_wrong(brought: CommitRow) -> None:
    """A sync brought batches of another epoch, or more than came here."""
    chains = ProducerSequences(LLSN(1))
    chains.open(Epoch(1), LLSN(1))
    chains.note(header(1, 1), LLSN(1))
    chains.note(header(2, 1), LLSN(2))
    chains.ordered(brought)
    assert chains.known_from == brought.llsn_end
    assert chains.newest(ProducerID(1), LLSN(0)) == (False, None)
    assert chains.newest(ProducerID(1), LLSN(brought.llsn_end - 1)) == (True, None)


def test_what_was_begun_elsewhere_is_not_known_after_an_epoch_is_opened_behind_it() -> None:
    chains = ProducerSequences(LLSN(1))
    chains.open(Epoch(3), LLSN(50))
    assert chains.known_from == 50
    assert chains.newest(ProducerID(1), LLSN(20)) == (False, None)


def test_a_batch_below_the_floor_is_not_of_the_chain() -> None:
    chains = ProducerSequences(LLSN(1))
    chains.open(Epoch(1), LLSN(1))
    chains.note(header(1, 7), LLSN(1))
    chains.ordered(row(1, 2))
    assert chains.newest(ProducerID(1), LLSN(1)) == (True, None)


def test_what_was_found_on_disk_is_remembered_until_the_table_knows_less() -> None:
    chains = ProducerSequences(LLSN(50))
    chains.open(Epoch(1), LLSN(50))
    found = link(4, 104, 1, 30)
    chains.searched(ProducerID(1), LLSN(10), found)
    assert chains.newest(ProducerID(1), LLSN(10)) == (True, found)
    assert chains.newest(ProducerID(1), LLSN(40)) == (True, None)
    assert chains.newest(ProducerID(1), LLSN(9)) == (False, None)
    chains.ordered(row(50, 52))
    assert chains.newest(ProducerID(1), LLSN(10)) == (False, None)


@given(
    links_max=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from("tcso"), st.integers(1, 6), st.integers(1, 3)), max_size=60),
    floor=st.integers(0, 30),
)
def test_whatever_happens_the_table_answers_truthfully_or_unknown(
    links_max: int, steps: list[tuple[str, int, int]], floor: int
) -> None:
    """Against a whole log kept beside it: taken, committed, sealed and opened, and batches that come by another way."""
    before = chains_module.PRODUCERS_MAX
    chains_module.PRODUCERS_MAX = links_max  # type: ignore[misc]
    try:
        chains, epoch = ProducerSequences(LLSN(1)), 1
        chains.open(Epoch(epoch), LLSN(1))
        log: list[tuple[ProducedBatch, int]] = []  # committed, with their counts
        tail: list[tuple[ProducedBatch, int]] = []
        end, sequences = 1, Counter[int]()
        for kind, producer, count in steps:
            sequences[producer] += 1
            assigned = sum((n for _, n in tail), end)
            one = link(sequences[producer], 100 * producer + sequences[producer], producer, assigned)
            if kind == "t":  # taken in
                chains.note(header(producer, one.sequence, count), one.llsn)
                tail.append((one, count))
            elif kind == "c" and tail:  # committed, some of it
                part, tail = tail[:count], tail[count:]
                begin, end = end, sum((n for _, n in part), end)
                log += part
                chains.ordered(row(begin, end, epoch))
            elif kind == "s":  # sealed: the tail is cut; then opened again
                tail, epoch = [], epoch + 1
                chains.open(Epoch(epoch), LLSN(end))
            elif kind == "o" and not tail:  # copied by a sync, while nothing was in flight
                log.append((one, count))
                begin, end = end, end + count
                chains.ordered(row(begin, end, epoch + 1))
                chains.open(Epoch(epoch + 2), LLSN(end))
                epoch += 2
        for producer in range(1, 7):
            known, newest = chains.newest(ProducerID(producer), LLSN(floor))
            truth = [one for one, _ in log + tail if one.producer == producer and one.llsn > floor]
            assert not known or newest == (truth[-1] if truth else None)
        assert chains.newest(ProducerID(1), LLSN(chains.known_from - 1))[0]
    finally:
        chains_module.PRODUCERS_MAX = before  # type: ignore[misc]


# --- the client's -------------------------------------------------------------------------------------------------------------


def recorded(sequence: int, rows: int = 1, crc: int = 0) -> Recorded:
    return Recorded(sequence, LLSN(10 * sequence), rows, crc)


def test_my_batches_are_those_of_the_log_up_to_the_first_difference() -> None:
    mine = [Mine(1, 1, 0), Mine(2, 1, 0), Mine(3, 1, 0)]
    assert common(mine, [recorded(1), recorded(2)]) == 2
    assert common(mine, [recorded(1), recorded(2, crc=5), recorded(3)]) == 1
    assert common(mine, [recorded(1, rows=2)]) == 0
    assert common(mine[1:], [recorded(1)]) == 0
    assert common([], [recorded(1)]) == 0


def test_what_is_behind_my_last_batch_has_no_gap_or_was_trimmed() -> None:
    assert behind(2, [recorded(1), recorded(2), recorded(3), recorded(4)], STREAM) == [
        recorded(3),
        recorded(4),
    ]
    assert behind(2, [], STREAM) == []
    with pytest.raises(TrimmedWrite, match="batches 1 to 2"):
        behind(0, [recorded(3)], STREAM)


entries = st.one_of(st.binary(max_size=2), st.sampled_from([b"x" * 15, b"x" * 16, b"x" * 17, b"y" * 300]))


@given(others=st.lists(entries, max_size=20), mine=st.lists(entries, max_size=20))
def test_rows_that_others_wrote_are_left_out_as_often_as_they_were_written(
    others: list[bytes], mine: list[bytes]
) -> None:
    rows = Rows()
    rows.add(others[:7])
    rows.add(others[7:])
    left = rows.leave_out(mine[:5]) + rows.leave_out(mine[5:])
    assert Counter(left) == Counter(mine) - Counter(others)
    assert len(rows) == (Counter(others) - Counter(mine)).total()
    assert bool(rows) == (len(rows) > 0)
    # Those that stay keep their order.
    positions = iter(mine)
    assert all(row in positions for row in left)
