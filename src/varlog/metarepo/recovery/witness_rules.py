"""PURE. Storage nodes as witnesses of the order: claims, and their rows joined.

Law 3: a position is assigned once. A repository whose store was rolled back to an older state (a lost journal, an older copy) would
assign positions again that nodes have seen assigned. `claim` detects that from what a node reports when its session opens; `join`
combines the commit rows of all replicas, and lists the positions that no node reports and the contradictions between nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from varlog.model.cluster import LogStream, Topic
from varlog.model.commit import CommitRow, TopicMark
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN, NO_GLSN
from varlog.model.projection import Projection

# At most this many conflicts are listed; there may be one per row.
CONFLICTS_TOLD_MAX = 20


# --- One node against the repository ----------------------------------------------------------------------------------------


class ReplicaWord(NamedTuple):
    """What a node reports of one replica: it has ordered entries below `committed_end`, the last of them at position `last_glsn`
    (-1: not reported)."""

    epoch: Epoch
    committed_end: LLSN
    last_glsn: GLSN


@dataclass(frozen=True, slots=True)
class WitnessClaim:
    """A node contradicts the repository. `position`: the newest position that it knows. `order_alone`: only the order is newer
    there; the repository has lost nothing else that the node could know. `epoch`: that of a newer projection."""

    why: str
    position: GLSN
    order_alone: bool = True
    epoch: Epoch = NO_EPOCH


def claim_of_topic(node: NodeID, ours: TopicMark, theirs: TopicMark) -> WitnessClaim | None:
    """The claim of a node that knows newer positions of a topic, or a newer trim."""
    if theirs.high_watermark > ours.high_watermark:
        why = f"node {node} knows positions up to {theirs.high_watermark}, the repository up to {ours.high_watermark}"
        return WitnessClaim(why, max(theirs.high_watermark, theirs.trimmed), theirs.trimmed <= ours.trimmed)
    if theirs.trimmed > ours.trimmed:
        why = f"node {node} knows that positions up to {theirs.trimmed} are trimmed, the repository up to {ours.trimmed}"
        return WitnessClaim(why, theirs.trimmed, order_alone=False)
    return None


def claim_of_replica(
    node: NodeID, stream: LogStream, word: ReplicaWord, committed_end: LLSN, our_glsn: GLSN | None
) -> WitnessClaim | None:
    """The claim of a replica that has more of its stream's order than the repository, another order, or a newer epoch.
    `our_glsn`: the position of the replica's last entry in the repository, if it still knows."""
    name = f"log stream {stream.log_stream}"
    if word.committed_end > committed_end:
        why = (
            f"node {node} holds {word.committed_end - 1} ordered entries of {name}, up to position {word.last_glsn}, "
            f"the repository knows of {committed_end - 1}"
        )
        return WitnessClaim(why, word.last_glsn, word.epoch <= stream.epoch)
    # A replica that starts after trimmed entries has ordered entries and no row yet: it does not know the position of the last one.
    given = word.last_glsn > NO_GLSN and word.committed_end > FIRST_LLSN
    if our_glsn is not None and given and our_glsn != word.last_glsn:
        why = (
            f"node {node} has entry {word.committed_end - 1} of {name} at position {word.last_glsn}, "
            f"the repository at position {our_glsn}"
        )
        return WitnessClaim(why, word.last_glsn, order_alone=False)
    if word.epoch > stream.epoch:
        why = f"node {node} is in epoch {word.epoch} of {name}, the repository in epoch {stream.epoch}"
        return WitnessClaim(why, word.last_glsn, order_alone=False)
    return None


def claim_of_unit(node: NodeID, epoch: Epoch, projection: Projection | None) -> WitnessClaim | None:
    """The claim of a node that knows a newer projection of a sequenced topic than the repository."""
    ours = projection.epoch if projection is not None else NO_EPOCH
    if epoch <= ours:
        return None
    why = f"node {node} knows of projection {epoch}, the repository has projection {ours}"
    return WitnessClaim(why, NO_GLSN, order_alone=False, epoch=epoch)


def claim_of_copy(node: NodeID, epoch: Epoch, term: int, topic: Topic) -> WitnessClaim | None:
    """The claim of a node with a projection that a repository of `term` created, if the projection of this epoch here was created
    in a later term: they differ, and both may have assigned positions (law 3)."""
    made = term_of(topic, epoch)
    if made is None or made <= term:
        return None
    why = (
        f"node {node} keeps projection {epoch} of term {term}, and the repository created another one in term {made}: "
        "entries may be acknowledged in both"
    )
    return WitnessClaim(why, NO_GLSN, order_alone=False)


def term_of(topic: Topic, epoch: Epoch) -> int | None:
    """The term in which the projection of this epoch was created, if that is remembered."""
    made = [term for first, term in topic.terms if first <= epoch]
    return made[-1] if made else None


def claim_of_lows(
    node: NodeID, topic: Topic, projection: Projection, lows: Mapping[LogStreamID, LLSN]
) -> WitnessClaim | None:
    """The claim of a node whose units know a newer trim."""
    trimmed = trimmed_by(projection, lows.items())
    if trimmed <= topic.trimmed:
        return None
    why = (
        f"node {node} knows that positions up to {trimmed} are trimmed, the repository up to {topic.trimmed}"
    )
    return WitnessClaim(why, trimmed, order_alone=False)


def trimmed_by(projection: Projection, lows: Iterable[tuple[LogStreamID, LLSN]]) -> GLSN:
    """The position up to which units with nothing below these LLSNs were trimmed. The trimmed position itself belongs to one of
    the log streams, so with one unit of each this is exactly the trimmed position."""
    known = {chain.log_stream for chain in projection.chains}
    found = [
        projection.position(log_stream, LLSN(low - 1))[0]
        for log_stream, low in lows
        if log_stream in known and low > FIRST_LLSN
    ]
    return max(found, default=NO_GLSN)


# --- All nodes together -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReportedRange:
    """The commit rows that one replica reported, oldest first, consecutive in LLSN."""

    node: NodeID
    log_stream: LogStreamID
    rows: tuple[CommitRow, ...]


@dataclass(frozen=True, slots=True)
class AdoptedRow:
    """A run of positions, and the node that reported it first."""

    node: NodeID
    log_stream: LogStreamID
    row: CommitRow


@dataclass(frozen=True, slots=True)
class JoinedOrder:
    """The order from `begin` up to `end` (exclusive) as the nodes report it. `taken`: sorted by position. `missing`: ranges
    [begin, end) of positions that no node reports. `conflicts`: as sentences."""

    begin: GLSN
    end: GLSN
    taken: tuple[AdoptedRow, ...]
    missing: tuple[tuple[GLSN, GLSN], ...]
    conflicts: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every position is reported once, without a contradiction: then the order can be adopted."""
        return not self.missing and not self.conflicts

    @property
    def version(self) -> int:
        """The newest cut of any row."""
        return max((found.row.version for found in self.taken), default=0)


def join(
    begin: GLSN, high_watermark: GLSN, ends: Mapping[LogStreamID, LLSN], reported: Iterable[ReportedRange]
) -> JoinedOrder:
    """The order that the nodes report from `begin` on, at least up to `high_watermark`, which some node knows.

    `ends`: where the order of each stream ends before `begin`, as far as that is known; the reported rows must continue exactly
    there.
    """
    conflicts: list[str] = []
    lanes: dict[LogStreamID, _Lane] = {}
    for found in reported:
        lane = lanes.setdefault(found.log_stream, _Lane(found.log_stream, conflicts))
        for row in found.rows:
            if row.glsn_end > begin:
                lane.add(found.node, row if row.glsn_begin >= begin else row.rest(begin - row.glsn_begin))
    for log_stream, lane in lanes.items():
        lane.check(ends.get(log_stream))
    taken = sorted(
        (piece for lane in lanes.values() for piece in lane.pieces), key=lambda piece: piece.row.glsn_begin
    )
    end = GLSN(max([high_watermark + 1, begin, *(piece.row.glsn_end for piece in taken)]))
    missing: list[tuple[GLSN, GLSN]] = []
    at = begin
    before: AdoptedRow | None = None
    for piece in taken:
        row = piece.row
        if row.glsn_begin > at:
            missing.append((at, row.glsn_begin))
        elif row.glsn_begin < at and before is not None:
            conflicts.append(
                f"position {row.glsn_begin} is assigned twice: node {before.node} has it in log stream {before.log_stream}, "
                f"node {piece.node} in log stream {piece.log_stream}"
            )
        at, before = max(at, row.glsn_end), piece
    if at < end:
        missing.append((at, end))
    return JoinedOrder(begin, end, tuple(taken), tuple(missing), tuple(conflicts[:CONFLICTS_TOLD_MAX]))


class _Lane:
    """The rows of one stream, from all its replicas, each entry once."""

    def __init__(self, log_stream: LogStreamID, conflicts: list[str]) -> None:
        self.pieces: list[AdoptedRow] = []
        self._begins: list[int] = []
        self._log_stream = log_stream
        self._conflicts = conflicts

    def add(self, node: NodeID, row: CommitRow) -> None:
        rest: CommitRow | None = row
        while rest is not None:
            rest = self._add_first(node, rest)

    def _add_first(self, node: NodeID, row: CommitRow) -> CommitRow | None:
        """Add the first part of `row`, up to where the known rows change. Returns the rest."""
        at = bisect_right(self._begins, row.llsn_begin)
        known = self.pieces[at - 1] if at else None
        if known is not None and known.row.llsn_end > row.llsn_begin:
            count = min(row.count, known.row.llsn_end - row.llsn_begin)
            self._compare(node, row, known)
        else:
            count = min(row.count, self._begins[at] - row.llsn_begin) if at < len(self._begins) else row.count
            self.pieces.insert(at, AdoptedRow(node, self._log_stream, row.head(count)))
            self._begins.insert(at, row.llsn_begin)
        return row.rest(count) if count < row.count else None

    def _compare(self, node: NodeID, row: CommitRow, known: AdoptedRow) -> None:
        glsn = known.row.glsn_begin + row.llsn_begin - known.row.llsn_begin
        if (row.glsn_begin, row.epoch) != (glsn, known.row.epoch):
            self._conflicts.append(
                f"entry {row.llsn_begin} of log stream {self._log_stream} is at position {glsn} of epoch {known.row.epoch} on node "
                f"{known.node}, and at position {row.glsn_begin} of epoch {row.epoch} on node {node}"
            )

    def check(self, end: LLSN | None) -> None:
        """Check that entries have no gap, from where the order of the stream ended."""
        expected = end
        for found in self.pieces:
            row = found.row
            if expected is not None and row.llsn_begin != expected:
                self._conflicts.append(
                    f"node {found.node} continues with entry {row.llsn_begin} of log stream {self._log_stream} at position "
                    f"{row.glsn_begin}, where entry {expected} was expected"
                )
            expected = row.llsn_end
