"""An audit's rules: a sound log is never accused, however it is cut into pieces; whatever is planted is found, with its place."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.batch import pack, parse_header, place_batch
from varlog.model.epoch import Epoch
from varlog.model.ids import ProducerID
from varlog.model.lsn import LLSN
from varlog.spark.audit.compare_rules import (
    by_block,
    differed,
    differing,
    divergences,
    holes,
    majority_blocks,
    out_of_order,
    uncovered,
)
from varlog.spark.audit.parts import (
    AuditRange,
    Block,
    CommittedRun,
    Finding,
    FindingKind,
    TaskFindings,
    edges_of,
    mark,
    merged_runs,
)
from varlog.spark.audit.plan_rules import (
    ReplicaExtent,
    block_entries,
    contradictions,
    cuts,
    readings,
    stream_plan,
    task_bytes,
)
from varlog.spark.audit.replica_rules import FINDINGS_A_TASK_MAX, Walk

PATHS = {(stream, node): f"/disk/{node}/lsid={stream}" for stream in (1, 2, 3) for node in (1, 2, 3)}
SEEDS = st.integers(0, 2**32)


class Stream:
    """A log stream as a node has it: batches, and the runs that order them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.batches: list[bytearray] = []
        self.runs: list[CommittedRun] = []

    @property
    def end(self) -> int:
        return self.runs[-1].llsn + self.runs[-1].entries if self.runs else 1

    def append(self, entries: list[bytes], glsn: int) -> None:
        llsn = self.end
        batch = pack(entries, producer=ProducerID(9), sequence=len(self.batches), time_us=1)
        place_batch(batch, Epoch(1), LLSN(llsn))
        self.batches.append(batch)
        self.runs = merged_runs([*self.runs, CommittedRun(llsn, glsn, len(entries))])

    def served(self, llsn: int, batches: int) -> tuple[list[CommittedRun], bytes]:
        """What a fetch from `llsn` on returns: that many batches, and the rows that order their entries from there on."""
        at = next(n for n, batch in enumerate(self.batches) if parse_header(batch).end_llsn > llsn)
        taken = self.batches[at : at + batches]
        end = parse_header(taken[-1]).end_llsn
        inside = [(max(run.llsn, llsn), min(run.llsn + run.entries, end), run) for run in self.runs]
        rows = [
            CommittedRun(low, run.glsn + low - run.llsn, high - low)
            for low, high, run in inside
            if low < high
        ]
        return rows, b"".join(taken)

    def reading(self, node: int = 1, **fields: int) -> AuditRange:
        whole = AuditRange("orders", self.number, node, PATHS[self.number, node], 1, self.end, 8, first=True)
        return replace(whole, **fields)  # type: ignore[arg-type]

    def read(self, reading: AuditRange, random: Random) -> TaskFindings:
        """As a task reads it, in pieces of any size."""
        walk = Walk(reading)
        while walk.next_llsn < reading.end:
            rows, payload = self.served(walk.next_llsn, random.randint(1, 4))
            walk.add(rows, payload)
            if walk.stuck:
                walk.skip_to(self._behind(walk.next_llsn))
        return walk.outcome()

    def _behind(self, llsn: int) -> int:
        """What a node's index would say: where the batch behind the one that cannot be read begins."""
        starts = [run for run in [1, *self._starts()] if run > llsn]
        return min(starts, default=self.end)

    def _starts(self) -> list[int]:
        starts, at = [], 1
        for batch in self.batches:
            starts.append(at)
            at += int.from_bytes(batch[12:16], "little")
        return starts


def topic_of(random: Random, streams: int = 2, batches: int = 20) -> list[Stream]:
    """Streams that share one order, dense from 1 on."""
    made = [Stream(number + 1) for number in range(streams)]
    glsn = 1
    for _ in range(batches):
        entries = [random.randbytes(random.randint(0, 9)) for _ in range(random.randint(1, 6))]
        random.choice(made).append(entries, glsn)
        glsn += len(entries)
    return [stream for stream in made if stream.batches]


def tail_of(topic: list[Stream]) -> int:
    return max(run.glsn + run.entries for stream in topic for run in stream.runs)


def copied(stream: Stream) -> Stream:
    copy = Stream(stream.number)
    copy.batches, copy.runs = [bytearray(batch) for batch in stream.batches], list(stream.runs)
    return copy


def rewritten(batch: bytearray, entries: list[bytes]) -> bytearray:
    """The batch with other content and right checksums: what a checksum cannot find."""
    header = parse_header(batch)
    other = pack(entries, producer=header.producer, sequence=header.sequence, time_us=header.time_us)
    place_batch(other, header.epoch, header.first_llsn)
    return other


# --- one replica ---------------------------------------------------------------------------------------------------------


@given(SEEDS)
def test_a_sound_log_is_never_accused_and_its_digests_do_not_depend_on_how_it_was_read(seed: int) -> None:
    random = Random(seed)
    topic = topic_of(random)
    blocks: list[Block] = []
    for stream in topic:
        whole = stream.read(stream.reading(1), random)
        middle = random.randint(1, stream.end // 8) * 8 if stream.end > 8 else stream.end
        parts = [
            stream.read(stream.reading(2, end=min(middle, stream.end)), random),
            stream.read(stream.reading(2, begin=min(middle, stream.end), first=False), random),
        ]
        assert [*whole.findings, *parts[0].findings, *parts[1].findings] == []
        blocks += [*whole.blocks, *parts[0].blocks, *parts[1].blocks]
    places = by_block(blocks)
    assert all(len(same) == 2 for same in places.values())
    assert differing(places) == []
    assert uncovered(majority_blocks(places).values(), 1, tail_of(topic)) == []
    assert list(out_of_order(blocks, "orders", PATHS)) == []
    assert sum(block.entries for block in blocks) == 2 * (tail_of(topic) - 1)


@given(SEEDS)
def test_any_flipped_bit_is_found_in_the_batch_that_has_it(seed: int) -> None:
    random = Random(seed)
    (stream,) = topic_of(random, streams=1)
    at = random.randrange(len(stream.batches))
    header = parse_header(stream.batches[at])
    spot = random.choice([random.randrange(64), random.randrange(len(stream.batches[at]))])
    stream.batches[at][spot] ^= 1 << random.randrange(8)
    walk = Walk(stream.reading())
    walk.add(stream.runs, b"".join(stream.batches))
    if walk.stuck:
        walk.skip_to(header.end_llsn)
    damage = [finding for finding in walk.findings if finding.kind is FindingKind.DAMAGE]
    assert [finding.llsn for finding in damage] == [header.first_llsn]
    assert damage[0].glsn == header.first_llsn, "one stream: both orders are the same"
    assert (damage[0].node, damage[0].path, damage[0].log_stream) == (1, PATHS[1, 1], 1)


def test_what_lies_behind_a_damaged_header_is_read_and_the_block_is_not_compared() -> None:
    stream = Stream(1)
    for number in range(12):
        stream.append([b"x%d" % number] * 2, 1 + 2 * number)
    stream.batches[4][61] ^= 1
    walk = Walk(stream.reading())
    walk.add(stream.runs, b"".join(stream.batches))
    assert (walk.stuck, walk.next_llsn) == ("the header's checksum is wrong", 9)
    walk.skip_to(13)
    rows, payload = [CommittedRun(13, 13, 12)], b"".join(stream.batches[6:])
    walk.add(rows, payload)
    outcome = walk.outcome()
    assert [finding.found for finding in outcome.findings] == [
        "the header's checksum is wrong; LLSNs 9 to 12 cannot be read"
    ]
    assert [(block.begin, block.end, block.complete) for block in outcome.blocks] == [
        (1, 8, True),
        (8, 16, False),
        (16, 24, True),
        (24, 25, True),
    ]


def test_a_missing_batch_is_a_gap_with_its_place() -> None:
    stream = Stream(1)
    for number in range(6):
        stream.append([b"x"] * 3, 1 + 3 * number)
    del stream.batches[2]
    walk = Walk(stream.reading())
    walk.add(stream.runs, b"".join(stream.batches))
    (finding,) = walk.outcome().findings
    assert (finding.kind, finding.llsn, finding.glsn) == (FindingKind.GAP, 7, 7)
    assert finding.found == "the batch of LLSNs 10 to 12"


@pytest.mark.parametrize(
    ("trouble", "arguments", "kinds"),
    [("ends", (6,), [FindingKind.GAP]), ("unread", ("gone",), [FindingKind.UNREAD]), ("trimmed", (), [])],
)
def test_a_replica_that_ends_early_one_that_is_unreachable_and_one_that_was_trimmed_are_distinguished(
    trouble: str, arguments: tuple[object, ...], kinds: list[FindingKind]
) -> None:
    stream = Stream(1)
    stream.append([b"x"] * 5, 1)
    walk = Walk(stream.reading(end=20))
    walk.add(stream.runs, b"".join(stream.batches))
    getattr(walk, trouble)(*arguments)
    outcome = walk.outcome()
    assert [(finding.kind, finding.llsn) for finding in outcome.findings] == [(kind, 6) for kind in kinds]
    assert [block.complete for block in outcome.blocks] == [False, False, False]
    assert [block.trimmed for block in outcome.blocks] == [trouble == "trimmed"] * 3


@pytest.mark.parametrize(
    ("runs", "kind", "llsn"),
    [
        ([CommittedRun(1, 1, 4), CommittedRun(5, 3, 4)], FindingKind.ORDER, 5),  # it goes back
        ([CommittedRun(1, 1, 4), CommittedRun(6, 6, 3)], FindingKind.GAP, 5),  # one has no position
        ([CommittedRun(1, 1, 6), CommittedRun(7, 17, 2)], FindingKind.ORDER, 7),  # a batch in two pieces
    ],
)
def test_rows_that_cannot_be_are_found(runs: list[CommittedRun], kind: FindingKind, llsn: int) -> None:
    stream = Stream(1)
    stream.append([b"x"] * 4, 1)
    stream.append([b"y"] * 4, 5)
    walk = Walk(stream.reading())
    walk.add(runs, b"".join(stream.batches))
    assert (kind, llsn) in {(finding.kind, finding.llsn) for finding in walk.outcome().findings}


def test_a_replica_that_is_wrong_everywhere_does_not_flood_the_report() -> None:
    stream = Stream(1)
    for number in range(FINDINGS_A_TASK_MAX + 7):
        stream.append([b"abc"], 1 + number)
        stream.batches[-1][-1] ^= 1
    walk = Walk(stream.reading())
    walk.add(stream.runs, b"".join(stream.batches))
    outcome = walk.outcome()
    assert (len(outcome.findings), outcome.more_findings) == (FINDINGS_A_TASK_MAX, 7)


# --- replicas against each other -----------------------------------------------------------------------------------------


@given(SEEDS)
def test_a_batch_that_was_rewritten_with_a_right_checksum_is_named_with_its_replica(seed: int) -> None:
    random = Random(seed)
    (stream,) = topic_of(random, streams=1)
    liar = copied(stream)
    at = random.randrange(len(stream.batches))
    header = parse_header(stream.batches[at])
    liar.batches[at] = rewritten(stream.batches[at], [b"other"] * header.count)
    node = random.choice([1, 2, 3])
    reads = [(liar if n == node else stream).read(stream.reading(n), random) for n in (1, 2, 3)]
    assert [finding for outcome in reads for finding in outcome.findings] == []
    places = by_block(block for outcome in reads for block in outcome.blocks)
    block_begin = max(begin for _, begin in places if begin <= header.first_llsn)
    assert differing(places) == [(1, block_begin)]
    again = [
        (liar if n == node else stream).read(replace(stream.reading(n), listing=True), random)
        for n in (1, 2, 3)
    ]
    listed = [block for outcome in again for block in outcome.blocks if block.begin == block_begin]
    (finding,) = divergences(listed, "orders", PATHS)
    assert (finding.kind, finding.node, finding.llsn) == (FindingKind.DIVERGENCE, node, header.first_llsn)
    assert finding.glsn == header.first_llsn
    assert finding.expected.endswith("as on nodes " + ", ".join(str(n) for n in (1, 2, 3) if n != node))


def test_two_replicas_that_differ_do_not_show_which_is_right() -> None:
    stream, other = Stream(1), Stream(1)
    stream.append([b"a"], 1)
    other.append([b"b"], 1)
    random = Random(1)
    listed = [
        block
        for n, held in ((1, stream), (2, other))
        for block in held.read(replace(held.reading(n), listing=True), random).blocks
    ]
    (finding,) = divergences(listed, "orders", PATHS)
    assert "there is no majority" in finding.expected


def test_a_difference_that_is_absent_on_the_second_read_is_still_reported() -> None:
    stream, other = Stream(1), Stream(1)
    stream.append([b"a"], 1)
    other.append([b"b"], 1)
    random = Random(1)
    reads = [(stream, 1), (stream, 2), (other, 3)]
    blocks = [block for held, n in reads for block in held.read(held.reading(n), random).blocks]
    (finding,) = differed(blocks, "orders", PATHS)
    assert (finding.node, finding.llsn, finding.glsn) == (3, 1, 1)


def test_rows_that_differ_on_one_replica_are_named() -> None:
    stream = Stream(1)
    for number in range(3):
        stream.append([b"x"] * 2, 1 + 2 * number)
    shifted = copied(stream)
    shifted.runs = [CommittedRun(1, 1, 4), CommittedRun(5, 7, 2)]
    random = Random(1)
    listed = [
        block
        for n, held in ((1, stream), (2, shifted), (3, stream))
        for block in held.read(replace(held.reading(n), listing=True), random).blocks
    ]
    found = divergences(listed, "orders", PATHS)
    assert {finding.node for finding in found} == {2}
    assert (5, "2 entries from GLSN 7 on") in {(finding.llsn, finding.found) for finding in found}


# --- a topic's positions -------------------------------------------------------------------------------------------------


@given(SEEDS, st.integers(1, 16))
def test_edges_cancel_out_exactly_where_every_position_occurs_once(seed: int, size: int) -> None:
    random = Random(seed)
    runs = [run for stream in topic_of(random, streams=3) for run in stream.runs]
    end = max(run.glsn + run.entries for run in runs)
    for _ in range(random.randint(0, 2)):
        at = random.randrange(len(runs))
        change = random.choice(["drop", "double", "shift"])
        if change == "drop":
            del runs[at]
        elif change == "double":
            runs.append(runs[at])
        else:
            runs[at] = runs[at]._replace(glsn=runs[at].glsn + 1)
        if not runs:
            break
    times = Counter(glsn for run in runs for glsn in range(run.glsn, run.glsn + run.entries))
    wrong = {glsn // size for glsn in range(1, end) if times[glsn] != 1}
    wrong |= {glsn // size for glsn in times if not 1 <= glsn < end}
    block = Block(1, 1, 1, 2, 0, 0, b"", edges_of(runs, size), 0, 0)
    assert uncovered([block], 1, end, size) == sorted(wrong)


def test_holes_and_duplicates_are_reported_with_their_neighbours() -> None:
    runs = [(1, CommittedRun(1, 1, 10)), (2, CommittedRun(1, 15, 5)), (1, CommittedRun(11, 18, 2))]
    found = list(holes(runs, 1, 25, "orders"))
    assert [(finding.kind, finding.glsn) for finding in found] == [
        (FindingKind.GAP, 11),
        (FindingKind.DUPLICATE, 18),
        (FindingKind.GAP, 20),
    ]
    assert (
        found[0].found
        == "GLSN 11 to 14 are in no log stream that could be read, behind LLSN 10 of log stream 1"
    )
    assert found[1].expected == "at LLSN 4 of log stream 2 alone"
    unproven = list(holes(runs, 1, 25, "orders", proven=False))
    assert [finding.kind for finding in unproven] == [
        FindingKind.UNREAD,
        FindingKind.DUPLICATE,
        FindingKind.UNREAD,
    ]


@pytest.mark.parametrize(
    ("diverging", "gaps"),
    [
        ([], ["GLSN 7 to 9", "GLSN 13 to 16"]),
        ([CommittedRun(7, 11, 6)], ["GLSN 7 to 9"]),  # as far as the end: nothing is missing there
        ([CommittedRun(7, 8, 1), CommittedRun(8, 14, 2)], ["GLSN 7 to 7", "GLSN 9 to 9", "GLSN 13 to 13", "GLSN 16 to 16"]),
        ([CommittedRun(1, 1, 9), CommittedRun(1, 3, 5), CommittedRun(10, 16, 9)], ["GLSN 13 to 15"]),
        ([CommittedRun(1, 1, 16)], []),
    ],
)  # fmt: skip
def test_a_position_that_a_diverging_replica_has_is_not_a_gap(
    diverging: list[CommittedRun], gaps: list[str]
) -> None:
    most = [(1, CommittedRun(1, 1, 6)), (1, CommittedRun(7, 10, 3))]
    found = list(holes(most, 1, 17, "orders", diverging=diverging))
    assert {finding.kind for finding in found} <= {FindingKind.GAP}
    assert [finding.found.partition(" are in")[0] for finding in found] == gaps


def test_marks_of_neighbours_have_nothing_in_common() -> None:
    assert len({mark(position) for position in range(100_000)}) == 100_000
    assert max(mark(position) for position in range(100)) < 1 << 64


def test_positions_that_fall_from_one_block_to_the_next_are_out_of_order() -> None:
    blocks = [Block(1, 1, 1, 9, 8, 0, b"", {}, 1, 8), Block(1, 1, 9, 17, 8, 0, b"", {}, 5, 12)]
    (finding,) = out_of_order(blocks, "orders", PATHS)
    assert (finding.kind, finding.llsn, finding.glsn) == (FindingKind.ORDER, 9, 5)


def test_what_was_trimmed_on_one_replica_is_compared_on_none() -> None:
    read = Block(1, 1, 1, 9, 8, 0, b"a", {}, 1, 8)
    assert by_block([read, replace(read, node=2, complete=False, trimmed=True)]) == {}


# --- planning ------------------------------------------------------------------------------------------------------------


def test_every_replica_is_read_whole_in_ranges_of_about_the_same_size() -> None:
    points = tuple((llsn, llsn * 100) for llsn in range(1000, 100_000, 1000))
    plan = stream_plan(
        3, {1: ReplicaExtent(1, 100_001, 10_000_000, points), 2: ReplicaExtent(1, 99_000, 9_900_000, ())}
    )
    assert (plan.begin, plan.end) == (1, 100_001), "what one replica has, all must have"
    places = cuts(plan, 2_500_000)
    assert (places[0], places[-1], len(places)) == (1, 100_001, 5)
    assert all(20_000 < high - low < 30_000 for low, high in pairwise(places))
    assert all(place_batch % block_entries(plan, 2_500_000) == 0 for place_batch in places[1:-1])
    plans = readings(plan, "orders", PATHS, [1, 2, 3], 2_500_000)
    for node in (1, 2, 3):
        mine = [reading for reading in plans if reading.node == node]
        assert [(reading.begin, reading.end) for reading in mine] == list(pairwise(places))
        assert [reading.first for reading in mine] == [True, False, False, False]
    assert [reading.node for reading in plans[:6]] == [1, 2, 3, 1, 2, 3]


def test_an_empty_stream_needs_no_task_and_a_small_one_needs_few() -> None:
    empty = stream_plan(1, {1: ReplicaExtent(1, 1, 0)})
    assert readings(empty, "orders", PATHS, [1, 2], 1000) == []
    small = stream_plan(1, {1: ReplicaExtent(1, 11, 1000)})
    assert len(readings(small, "orders", PATHS, [1, 2], task_bytes(2000, 8))) == 2


def test_a_replica_that_has_the_first_position_elsewhere_is_a_finding() -> None:
    claims = {1: ReplicaExtent(5, 10, 100), 2: ReplicaExtent(6, 10, 100), 3: ReplicaExtent(5, 10, 100)}
    plan = stream_plan(1, claims)
    found: list[Finding] = contradictions(plan, claims, "orders", PATHS, 5)
    assert [(finding.node, finding.llsn, finding.path) for finding in found] == [(2, 6, PATHS[1, 2])]
