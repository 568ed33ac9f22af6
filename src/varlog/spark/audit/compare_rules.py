"""PURE. Comparison of replicas: whether they are equal, and positions complete.

Every position of a topic must exist exactly once, over all its streams.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from varlog.spark.audit.parts import GLSN_BLOCK, Batch, Block, CommittedRun, Finding, FindingKind, edges_of

# A replica that differs once may differ everywhere: this many findings of one block are listed, the rest is counted.
FINDINGS_A_BLOCK_MAX = 5

# A block of a stream, by the stream and the block's first LLSN.
BlockKey = tuple[int, int]
T = TypeVar("T", bound=Hashable)


def by_block(blocks: Iterable[Block]) -> dict[BlockKey, list[Block]]:
    """The blocks that were read whole, those of all replicas together. What was trimmed in the meantime on one is left out
    for all."""
    found: dict[BlockKey, list[Block]] = defaultdict(list)
    trimmed: set[BlockKey] = set()
    for block in blocks:
        place = (block.log_stream, block.begin)
        if block.trimmed:
            trimmed.add(place)
        found[place] += [block] if block.complete else []
    return {place: same for place, same in found.items() if place not in trimmed}


def differing(blocks: Mapping[BlockKey, Sequence[Block]]) -> list[BlockKey]:
    """Where replicas are not equal."""
    return [place for place, same in blocks.items() if len({block.digest for block in same}) > 1]


def majority(values: Iterable[T]) -> T:
    """The most common value; of equals, the first."""
    return Counter(values).most_common(1)[0][0]


def majority_blocks(blocks: Mapping[BlockKey, Sequence[Block]]) -> dict[BlockKey, Block]:
    """For each block one replica of the majority."""
    speaks: dict[BlockKey, Block] = {}
    for place, same in blocks.items():
        if same:
            digest = majority(block.digest for block in same)
            speaks[place] = next(block for block in same if block.digest == digest)
    return speaks


# --- replicas against each other -----------------------------------------------------------------------------------------


def divergences(listed: Sequence[Block], topic: str, paths: Mapping[tuple[int, int], str]) -> list[Finding]:
    """One block as several replicas have it, batch by batch and run by run. `paths` by (log stream, node)."""
    findings = [
        *_different(listed, _batches_of, _describe_batch),
        *_different(listed, _runs_of, _describe_run),
    ]
    shown: Counter[int] = Counter()
    listing = []
    for block, llsn, found, expected in sorted(findings, key=lambda finding: (finding[0].node, finding[1])):
        shown[block.node] += 1
        if shown[block.node] <= FINDINGS_A_BLOCK_MAX:
            path = paths.get((block.log_stream, block.node), "")
            glsn = _glsn_in(block, llsn)
            listing.append(
                Finding(
                    FindingKind.DIVERGENCE,
                    topic,
                    block.log_stream,
                    block.node,
                    path,
                    llsn,
                    glsn,
                    found,
                    expected,
                )
            )
    return listing


def differed(blocks: Sequence[Block], topic: str, paths: Mapping[tuple[int, int], str]) -> list[Finding]:
    """A block whose replicas differed and are equal by now: it was repaired in the meantime, and is reported all the same."""
    right = majority(block.digest for block in blocks)
    return [
        Finding(
            FindingKind.DIVERGENCE,
            topic,
            block.log_stream,
            block.node,
            paths.get((block.log_stream, block.node), ""),
            block.begin,
            block.glsn_first,
            f"LLSNs {block.begin} to {block.end - 1} were not equal at the first reading, and were at the second",
            "what the other replicas have",
        )
        for block in blocks
        if block.digest != right
    ]


_Difference = tuple[Block, int, str, str]


def _different(
    listed: Sequence[Block],
    parts_of: Callable[[Block], dict[int, T]],
    describe: Callable[[T | None], str],
) -> Iterator[_Difference]:
    """(block, LLSN, what it has, what most have) wherever a replica is not of the majority."""
    parts = [(block, parts_of(block)) for block in listed]
    for llsn in sorted({llsn for _, own in parts for llsn in own}):
        has = [own.get(llsn) for _, own in parts]
        right = majority(has)
        agree = [block.node for (block, _), part in zip(parts, has, strict=True) if part == right]
        for (block, _), part in zip(parts, has, strict=True):
            if part != right:
                yield block, llsn, describe(part), f"{describe(right)}, as on {_nodes(agree, len(listed))}"


def _nodes(agree: Sequence[int], all_count: int) -> str:
    names = f"node{'s' if len(agree) > 1 else ''} {', '.join(map(str, agree))}"
    return names if 2 * len(agree) > all_count else f"{names} (there is no majority)"


def _batches_of(block: Block) -> dict[int, Batch]:
    return {batch.llsn: batch for batch in block.batches}


def _runs_of(block: Block) -> dict[int, CommittedRun]:
    return {run.llsn: run for run in block.runs}


def _describe_batch(batch: Batch | None) -> str:
    if batch is None:
        return "no batch that begins here"
    return f"a batch of {batch.entries} with checksum {batch.body_crc:08x}, header {batch.header_crc:08x}"


def _describe_run(run: CommittedRun | None) -> str:
    return "no run that begins here" if run is None else f"{run.entries} entries from GLSN {run.glsn} on"


def _glsn_in(block: Block, llsn: int) -> int:
    return next((run.glsn + llsn - run.llsn for run in block.runs if 0 <= llsn - run.llsn < run.entries), 0)


def out_of_order(
    blocks: Iterable[Block], topic: str, paths: Mapping[tuple[int, int], str]
) -> Iterator[Finding]:
    """Blocks of one replica whose positions do not rise from one to the next."""
    newest: dict[tuple[int, int], int] = {}
    for block in sorted(blocks, key=lambda block: (block.log_stream, block.node, block.begin)):
        replica = (block.log_stream, block.node)
        before = newest.get(replica, 0)
        if 0 < block.glsn_first <= before:
            found, expected = f"LLSN {block.begin} is at GLSN {block.glsn_first}", f"a GLSN above {before}"
            path = paths.get(replica, "")
            yield Finding(
                FindingKind.ORDER, topic, *replica, path, block.begin, block.glsn_first, found, expected
            )
        newest[replica] = max(before, block.glsn_last)


# --- a topic's positions -------------------------------------------------------------------------------------------------


def uncovered(blocks: Iterable[Block], begin: int, end: int, size: int = GLSN_BLOCK) -> list[int]:
    """The pieces of [begin, end) whose positions do not exist exactly once, over all streams."""
    sums: Counter[int] = Counter()
    for block in blocks:
        sums.update(block.edges)
    expected = edges_of([CommittedRun(0, begin, end - begin)], size) if begin < end else {}
    wrong = [
        piece for piece in sums.keys() | expected.keys() if (sums[piece] - expected.get(piece, 0)) % (1 << 64)
    ]
    return sorted(wrong)


def holes(
    runs: Iterable[tuple[int, CommittedRun]],
    begin: int,
    end: int,
    topic: str,
    *,
    diverging: Iterable[CommittedRun] = (),
    proven: bool = True,
) -> Iterator[Finding]:
    """Positions of [begin, end) that are in none of the runs, or in two; each run with its stream. Not `proven`: some of the log
    could not be read, and may have them.

    `diverging`: runs of replicas that differ from the majority. A position that one of them has is not missing: it is part of
    that replica's divergence. A topic that is stopped because of such a replica ends where this replica ends.
    """
    minority = sorted((run.glsn, run.glsn + run.entries) for run in diverging)
    next_glsn, before = begin, (0, CommittedRun(0, 0, 0))
    for log_stream, run in sorted(runs, key=lambda found: found[1].glsn):
        low, high = max(run.glsn, begin), min(run.glsn + run.entries, end)
        if low >= high:
            continue
        if low > next_glsn:
            yield from _holes(next_glsn, low, minority, topic, before, proven=proven)
        elif low < next_glsn:
            llsn, other = run.llsn + low - run.glsn, before[1].llsn + low - before[1].glsn
            found = f"GLSN {low} to {min(high, next_glsn) - 1} are at LLSN {llsn} of log stream {log_stream}"
            expected = f"at LLSN {other} of log stream {before[0]} alone"
            yield Finding(FindingKind.DUPLICATE, topic, log_stream, 0, "", llsn, low, found, expected)
        if high > next_glsn:
            next_glsn, before = high, (log_stream, run)
    yield from _holes(next_glsn, end, minority, topic, before, proven=proven)


def _holes(
    begin: int,
    end: int,
    minority: Sequence[tuple[int, int]],
    topic: str,
    before: tuple[int, CommittedRun],
    *,
    proven: bool,
) -> Iterator[Finding]:
    """What is left of the hole [begin, end) without the `minority` ranges, which are in order of their begins."""
    for low, high in minority:
        if low >= end:
            break
        if begin < low:
            yield _hole(begin, low, topic, before, proven=proven)
        begin = max(begin, high)
    if begin < end:
        yield _hole(begin, end, topic, before, proven=proven)


def _hole(begin: int, end: int, topic: str, before: tuple[int, CommittedRun], *, proven: bool) -> Finding:
    log_stream, run = before
    where = f", behind LLSN {run.llsn + run.entries - 1} of log stream {log_stream}" if log_stream else ""
    found = f"GLSN {begin} to {end - 1} are in no log stream that could be read{where}"
    return Finding(
        FindingKind.GAP if proven else FindingKind.UNREAD,
        topic,
        0,
        0,
        "",
        0,
        begin,
        found,
        "each position once",
    )
